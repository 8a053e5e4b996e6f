"""Embeddings: only the rows that are looked up travel, and only these are updated."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.addons.parameter_servers.variables.access import summed_rows
from jaxtribute.errors import ArgumentError, TraceError
from jaxtribute.partitioners import FixedShardsPartitioner
from parameter_servers.clusters import coordinated, float32, int32, threads
from table_programs import squares_step

ROWS, WIDTH = 40, 4
IDS = int32([[3, 17, 3], [39, 0, 17]])


def train(strategy: Any, run: Any, transform: Any, steps: int = 3) -> tuple[list[float], np.ndarray]:
    """A bag of words with a dense layer; the same under any strategy."""
    random = np.random.default_rng(1)
    with strategy.scope():
        table = jd.Variable(random.normal(size=(ROWS, WIDTH)).astype(np.float32), name="table")
        dense = jd.Variable(random.normal(size=(WIDTH,)).astype(np.float32), name="dense")
        optimizer = jd.Optimizer(transform, [table, dense])

    def update(ids: Any) -> Any:
        def loss() -> tuple[Any, Any]:
            rows = jd.nn.embedding_lookup(table, ids + jnp.int32(0))
            more = jd.nn.embedding_lookup(table, ids[:, 0])
            scores = (rows.sum(axis=1) + more) @ dense
            return (jnp.tanh(scores) ** 2).sum(), scores

        (value, _), gradients = jd.value_and_grad(loss, [table, dense], has_aux=True)()
        optimizer.apply_gradients(gradients)
        return value

    step = jd.function(lambda ids: strategy.run(update, (ids,)))
    losses = [float(run(step, (IDS + i) % ROWS)) for i in range(steps)]
    return losses, table.numpy()


@pytest.mark.parametrize("transform", [optax.sgd(0.1), optax.adagrad(0.1)], ids=["sgd", "adagrad"])
def test_training_a_table_on_servers_is_training_it_anywhere(transform: Any) -> None:
    expected, expected_table = train(jd.OneDeviceStrategy("cpu:0"), lambda step, ids: step(ids), transform)
    with coordinated(servers=2, partitioner=FixedShardsPartitioner(2)) as coordinator:
        losses, table = train(
            coordinator.strategy, lambda step, ids: coordinator.schedule(step, (ids,)).fetch(), transform
        )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(table, expected_table, rtol=1e-4, atol=1e-6)


MOVES: dict[str, Any] = {
    "sgd": optax.sgd(0.5),
    "adagrad": optax.adagrad(0.5),
    "norm of all": optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.5)),
    "centred": optax.chain(optax.centralize(), optax.sgd(0.5)),
    "weights by path": optax.masked(optax.sgd(0.5), {"table": True}),
}
MIXES: dict[str, Any] = {
    "in two steps": optax.MultiSteps(optax.sgd(0.5), 2),
    "in every second": optax.chain(optax.apply_every(2), optax.sgd(0.5)),
    "lamb": optax.lamb(0.5),
    "lars": optax.lars(0.5),
    "root mean square": optax.chain(optax.clip_by_block_rms(0.1), optax.sgd(1.0)),
    "adafactor": optax.adafactor(0.5, min_dim_size_to_factor=2),
}


@pytest.mark.quick_cases(5, whole=True)
@pytest.mark.parametrize("given", ["lookup", "slices"])
@pytest.mark.parametrize("name", [*MOVES, *MIXES])
def test_rows_alone_are_updated_as_with_the_whole_gradient_or_not_at_all(name: str, given: str) -> None:
    transform, weights = (MOVES | MIXES)[name], float32([[1, 2]])
    expected: Any = {"table": jnp.ones((5, 2))}
    state: Any = transform.init(expected)
    with threads() as strategy:
        with strategy.scope():
            table = jd.Variable(np.ones((5, 2), np.float32))
            optimizer = jd.Optimizer(transform, {"table": table})

        def gradient(ids: Any) -> Any:
            if given == "slices":
                return jd.IndexedSlices(jnp.ones((1, 2)) * weights, ids, (5, 2))

            def loss() -> Any:
                return (jd.nn.embedding_lookup(table, ids) * weights).sum()

            return jd.grad(loss, [table])()[0]

        step = jd.function(lambda ids: optimizer.apply_gradients({"table": gradient(ids)}))
        for row in (0, 1, 0, 3):
            if name in MIXES:
                with pytest.raises(ArgumentError, match=r"Variable:0.*HINT.*read_value\(\)\[ids\]"):
                    step(int32([row]))
                continue
            step(int32([row]))
            whole = {"table": jnp.zeros((5, 2)).at[row].set(weights[0])}
            updates, state = transform.update(whole, state, expected)
            expected = optax.apply_updates(expected, updates)
        np.testing.assert_allclose(table.numpy(), expected["table"], rtol=1e-6)


def numbered(shape: tuple[int, ...], shard_info: Any) -> np.ndarray:
    return np.full(shape, 0.01, np.float32) + np.float32(shard_info.offset[0] * 0)


def test_a_step_on_a_large_table_moves_its_rows_alone() -> None:
    rows, width, batch = 100_000, 64, 1024
    with threads(servers=2, partitioner=FixedShardsPartitioner(2)) as strategy:
        with strategy.scope():
            table = jd.Variable(functools.partial(numbered, shape=(rows, width)), dtype=np.float32)
            optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [table])

        @jd.function
        def step(ids: Any) -> Any:
            value, gradients = jd.value_and_grad(lambda: jd.nn.embedding_lookup(table, ids).sum(), [table])()
            optimizer.apply_gradients(gradients)
            return value

        random = np.random.default_rng(0)
        client = strategy.cluster.client  # pyright: ignore[reportOptionalMemberAccess]
        ids = random.integers(0, rows, batch).astype(np.int32)
        step(ids)
        before = client.sent_bytes + client.received_bytes
        step(random.integers(0, rows, batch).astype(np.int32))
        moved = client.sent_bytes + client.received_bytes - before
        assert 0.5e6 < moved < 1e6, f"{moved} bytes were moved"
        held = [
            sum(answer["sizes"].values())
            for answer, _ in client.call({i: ({"t": "sizes"}, []) for i in range(2)}).values()
        ]
        assert max(held) <= rows * width * 4 * 1.01, "a server holds more than its half of the table and its slot"
        np.testing.assert_allclose(table[ids[:1]].mean(), 0.01 - 0.1 * (ids == ids[0]).sum(), rtol=1e-4)


def test_a_table_that_is_read_as_a_whole_besides_has_a_whole_gradient() -> None:
    with threads() as strategy:
        with strategy.scope():
            table = jd.Variable(np.ones((5, 2), np.float32))

        @jd.function
        def step(ids: Any) -> Any:
            def loss() -> Any:
                return jd.nn.embedding_lookup(table, ids).sum() + (table * float32(2)).sum()

            return jd.grad(loss, [table])()[0]

        np.testing.assert_array_equal(step(int32([1, 1]))[:, 0], [2, 4, 2, 2, 2])
        eager = jd.grad(lambda: jd.nn.embedding_lookup(table, int32([4])).sum(), table)()
        np.testing.assert_array_equal(eager[:, 0], [0, 0, 0, 0, 1])


def test_rows_without_a_gradient_and_after_a_write() -> None:
    with threads() as strategy:
        with strategy.scope():
            table, scale = jd.Variable(np.ones((5, 2), np.float32)), jd.Variable(float32(3))

        @jd.function
        def step(ids: Any) -> Any:
            first = jd.nn.embedding_lookup(table, ids)
            grads = jd.grad(lambda: jd.nn.embedding_lookup(table, ids).sum() * scale, [scale])()
            table.assign_add(np.ones((5, 2), np.float32))
            return first.sum(), grads[0], jd.nn.embedding_lookup(table, ids).sum()

        assert [float(x) for x in step(int32([1, 2]))] == [4, 4, 8]


def test_ids_that_are_not_known_before_the_step() -> None:
    with threads() as strategy:
        with strategy.scope():
            table = jd.Variable(np.ones((5, 2), np.float32))
            pointer = jd.Variable(int32([1]))
        with pytest.raises(TraceError, match="ids that depend on variables"):
            jd.function(lambda: jd.nn.embedding_lookup(table, pointer))()
        with pytest.raises(ArgumentError, match="rows 1 to 9 were asked for"):
            jd.function(lambda ids: jd.nn.embedding_lookup(table, ids))(int32([1, 9]))


def test_lookup_of_plain_arrays_and_variables() -> None:
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(jd.nn.embedding_lookup(table, [2, 0]), table[[2, 0]])
    np.testing.assert_array_equal(jd.nn.embedding_lookup(jd.Variable(table), int32([1])), table[[1]])
    with pytest.raises(ArgumentError, match="HINT: pass integers"):
        jd.nn.embedding_lookup(table, [0.5])


@settings(max_examples=30)
@given(ids=st.lists(st.integers(0, 9), max_size=30))
def test_rows_of_the_same_id_are_added_up(ids: list[int]) -> None:
    rows = np.random.default_rng(0).normal(size=(len(ids), 3)).astype(np.float32)
    unique, sums = summed_rows(int32(ids), rows)
    expected = np.zeros((10, 3), np.float32)
    np.add.at(expected, int32(ids), rows)
    assert sorted(set(ids)) == unique.tolist()
    np.testing.assert_allclose(sums, expected[unique], rtol=1e-4, atol=1e-6)


def test_the_compiled_step_is_traced_no_more_than_it_must() -> None:
    with threads() as strategy:
        with strategy.scope():
            dense = jd.Variable(np.ones(3, np.float32))
        traces: list[int] = []

        @jd.function
        def step(x: Any) -> Any:
            def loss() -> Any:
                traces.append(1)
                return (dense * x).sum()

            return jd.grad(loss, dense)()

        step(np.ones(3, np.float32))
        assert len(traces) == 1


def test_a_table_is_one_of_the_servers() -> None:
    """The same lines as under replicas, with a combiner; the first rows are those of any strategy."""
    ids = np.array([[1, 5, -1], [7, 7, 0]], np.int32)

    def trained(strategy: Any, run: Any) -> Any:
        with strategy.scope():
            table = jd.nn.ShardedTable(ROWS, 3, name="items", seed=3)
            optimizer = jd.Optimizer(optax.adagrad(0.1), [table])

        step = squares_step(strategy, table, optimizer)
        before = table.numpy()
        for _ in range(3):
            run(step, ids)
        return before, table.numpy()

    expected = trained(jd.OneDeviceStrategy("cpu:0"), lambda step, ids: step(ids))
    with coordinated(servers=2, partitioner=FixedShardsPartitioner(2)) as coordinator:
        found = trained(coordinator.strategy, lambda step, ids: coordinator.schedule(step, (ids,)).fetch())
        with coordinator.strategy.scope(), pytest.raises(jd.errors.ArgumentError, match=r"exact.*servers"):
            jd.nn.ShardedTable(ROWS, 3, updates="exact")
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-6)


TRANSFORMS = {
    "sgd": optax.sgd(0.1),
    "decay": optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1)),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(0.1, weight_decay=0.1),
}
PADDED = [
    int32([[0, 6, 0], [3, 4, -1]]),
    int32([[1, 6, -1], [-1, -1, 5]]),
    int32([[-1, -1, -1], [-1, -1, -1]]),
    int32([[3, -1, -1], [1, 1, 6]]),
]


@pytest.mark.quick_cases(3, whole=True)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("servers", [1, 2])
def test_the_id_that_pads_is_no_row(servers: int, combiner: Any, transform: str) -> None:
    """Row 0 was looked up in its place: momentum and weight decay moved it."""
    first = np.arange(14, dtype=np.float32).reshape(7, 2) + 1

    def trained(strategy: Any, kind: str, run: Any) -> Any:
        with strategy.scope():
            table = jd.nn.ShardedTable(7, 2, first) if kind == "table" else jd.Variable(first)
            optimizer = jd.Optimizer(TRANSFORMS[transform], [table])

        def replica(ids: Any) -> Any:
            def loss() -> Any:
                return (jd.nn.embedding_lookup(table, ids, combiner=combiner) ** 2).sum()

            value, gradients = jd.value_and_grad(loss, [table])()
            optimizer.apply_gradients(gradients)
            return value

        step = jd.function(lambda ids: strategy.run(replica, (ids,)))
        return [float(run(step, ids)) for ids in PADDED], table.numpy()

    losses, expected = trained(jd.OneDeviceStrategy("cpu:0"), "table", lambda step, ids: step(ids))
    partitioner = FixedShardsPartitioner(2) if servers == 2 else None
    with coordinated(servers=servers, partitioner=partitioner) as coordinator:
        for kind in ("table", "variable"):
            found = trained(coordinator.strategy, kind, lambda step, ids: coordinator.schedule(step, (ids,)).fetch())
            np.testing.assert_allclose(found[0], losses, rtol=1e-5)
            np.testing.assert_allclose(found[1], expected, rtol=1e-5, atol=1e-6)


def test_the_id_that_pads_gives_zeros_wherever_it_is_looked_up() -> None:
    first = np.full((5, 2), np.inf, np.float32)
    ids = int32([[1, -1], [-1, -1]])
    with threads(servers=2, partitioner=FixedShardsPartitioner(2)) as strategy:
        with strategy.scope():
            table = jd.Variable(first)
        table.scatter_update(jd.IndexedSlices(np.ones((1, 2), np.float32), int32([1])))

        @jd.function
        def step(ids: Any) -> Any:
            def loss() -> Any:
                return jd.nn.embedding_lookup(table, ids, combiner="sum").sum()

            value, gradients = jd.value_and_grad(loss, [table])()
            rows: Any = gradients[0]
            table.scatter_sub(rows)
            return value, jd.nn.embedding_lookup(table, ids, combiner="sum")

        np.testing.assert_array_equal(jd.nn.embedding_lookup(table, ids, combiner="sum"), [[1, 1], [0, 0]])
        eager = jd.grad(lambda: jd.nn.embedding_lookup(table, ids, combiner="sum").sum(), table)()
        np.testing.assert_array_equal(eager[:, 0], [0, 1, 0, 0, 0])
        value, after = step(ids)
        assert float(value) == 2
        np.testing.assert_array_equal(after, [[0, 0], [0, 0]])
        np.testing.assert_array_equal(table.numpy()[:, 0], [np.inf, 0, np.inf, np.inf, np.inf])
        np.testing.assert_array_equal(
            jd.nn.embedding_lookup(table, np.array([[1, 1]], np.uint8), combiner="mean"), np.zeros((1, 2))
        )
        with pytest.raises(ArgumentError, match="rows -2 to 1"):
            jd.nn.embedding_lookup(table, int32([[1, -2]]), combiner="sum")
