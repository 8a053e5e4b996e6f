"""A compiled step reads what it has written, as eager code does, or says that it cannot know: never what was before."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute.errors import VariableError
from jaxtribute.partitioners import FixedShardsPartitioner
from parameter_servers.clusters import float32, int32, threads

SHAPE = (4, 2)
ONES = np.ones(SHAPE, np.float32)


@pytest.fixture(scope="module", params=[1, 2], ids=["whole", "split"])
def table(request: pytest.FixtureRequest) -> Generator[Any]:
    with threads(servers=2, partitioner=FixedShardsPartitioner(request.param)) as strategy:
        with strategy.scope():
            made = jd.Variable(np.zeros(SHAPE, np.float32), name="table")
        yield made


def rows(ids: Sequence[int], values: float) -> jd.IndexedSlices:
    return jd.IndexedSlices(np.full((len(ids), 2), values, np.float32), int32(ids))


def dense(gradient: Any) -> jax.Array:
    """The gradient of the whole table."""
    if not isinstance(gradient, jd.IndexedSlices):
        return gradient
    return jnp.zeros(SHAPE).at[gradient.indices].add(gradient.values)


Action = Callable[[Any], Any]
WRITES: dict[str, Action] = {
    "assign": lambda v: v.assign(ONES * 3),
    "assign_add": lambda v: v.assign_add(ONES),
    "assign_sub": lambda v: v.assign_sub(ONES * 2),
    "assign of itself": lambda v: v.assign(v * 2 + 1),
    "scatter_add": lambda v: v.scatter_add(rows([1, 1, 3], 5)),
    "scatter_sub": lambda v: v.scatter_sub(rows([0], 2)),
    "scatter_update": lambda v: v.scatter_update(rows([2], 9)),
    "scatter_mul": lambda v: v.scatter_mul(rows([1, 2], 2)),
    "scatter_max": lambda v: v.scatter_max(rows([3, 0], 1)),
    "under a gradient": lambda v: jd.grad(lambda: jnp.sum(v.assign_add(ONES) * 2), [v])(),
}
READS: dict[str, Action] = {
    "whole": jd.Variable.read_value,
    "lookup": lambda v: jd.nn.embedding_lookup(v, int32([1, 3])),
    "index": lambda v: v[2],
    "gradient": lambda v: jd.grad(lambda: (v * v).sum() * 1.0, [v])()[0],
    "gradient of a lookup": lambda v: dense(jd.grad(lambda: jnp.sum(jd.nn.embedding_lookup(v, int32([1])) ** 2), v)()),
    "arithmetic": lambda v: v + 1,
}


@settings(max_examples=30, deadline=None)
@given(actions=st.lists(st.sampled_from([*WRITES.items(), *READS.items()]), min_size=2, max_size=5))
def test_a_compiled_step_gives_what_eager_code_gives(table: Any, actions: list[tuple[str, Action]]) -> None:
    def step() -> list[Any]:
        return [
            jnp.asarray(found) for name, action in actions if (found := action(table)) is not None and name in READS
        ]

    table.assign(np.zeros(SHAPE, np.float32))
    expected, end = step(), table.numpy()
    table.assign(np.zeros(SHAPE, np.float32))
    found = jd.function(step)()
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)
    np.testing.assert_allclose(table.numpy(), end, atol=1e-6)


@pytest.mark.parametrize("read", READS)
def test_what_an_optimizer_has_updated_is_not_known_in_the_same_step(table: Any, read: str) -> None:
    with table.distribute_strategy.scope():
        optimizer = jd.Optimizer(optax.sgd(1.0, momentum=0.9), [table])
    (momentum,) = optimizer.variables

    def step() -> Any:
        optimizer.apply_gradients([ONES])
        return READS[read](table)

    table.assign(np.zeros(SHAPE, np.float32))
    with pytest.raises(VariableError, match=r"table:0 is read after apply_gradients in the same step.*HINT"):
        jd.function(step)()
    with pytest.raises(VariableError, match="is read after apply_gradients"):
        jd.function(lambda: (optimizer.apply_gradients([ONES]), momentum.read_value())[1])()
    np.testing.assert_array_equal(table.numpy(), np.zeros(SHAPE), "a step that is refused has sent something")


def test_two_updates_in_one_step_are_two_steps_or_an_error(table: Any) -> None:
    optimizer = jd.Optimizer(optax.sgd(0.1), [table])

    def update() -> jax.Array:
        loss, gradients = jd.value_and_grad(lambda: jnp.sum(table * table), [table])()
        optimizer.apply_gradients(gradients)
        return loss

    table.assign(ONES)
    assert [float(update()) for _ in range(2)] == pytest.approx([8, 8 * 0.64])
    with pytest.raises(VariableError, match="after apply_gradients"):
        jd.function(lambda: [update() for _ in range(2)])()


def test_writes_after_an_update_are_applied_in_order(table: Any) -> None:
    optimizer = jd.Optimizer(optax.sgd(1.0), [table])

    @jd.function
    def step() -> None:
        optimizer.apply_gradients([ONES])
        table.assign_add(ONES * 3)
        table.scatter_mul(rows([0], 10))

    table.assign(np.zeros(SHAPE, np.float32))
    step()
    np.testing.assert_array_equal(table.numpy()[:, 0], [20, 2, 2, 2])


def test_a_shard_and_its_variable_in_one_step() -> None:
    with threads(servers=2, partitioner=FixedShardsPartitioner(2)) as strategy, strategy.scope():
        table = jd.Variable(np.zeros(SHAPE, np.float32), name="table")
        assert isinstance(table, jd.coordinator.ShardedVariable)
        half = np.ones((2, 2), np.float32)
        assert table.variables[1] is table.variables[1]

        @jd.function
        def through_shards() -> Any:
            for shard in table.variables:
                shard.assign_add(half)
            return [shard.read_value() for shard in table.variables]

        for found in through_shards():
            np.testing.assert_array_equal(found, half)
        np.testing.assert_array_equal(table.numpy(), ONES)
        for write, read in (
            (lambda: table.variables[0].assign_add(half), table.read_value),
            (lambda: table.variables[0].assign_add(half), lambda: jd.nn.embedding_lookup(table, int32([3]))),
            (lambda: table.assign_add(ONES), table.variables[1].read_value),
        ):
            with pytest.raises(VariableError, match=r"is read after table.* was written in the same step.*HINT"):
                jd.function(lambda write=write, read=read: (write(), read())[1])()
        np.testing.assert_array_equal(table.numpy(), ONES)
        other = jd.Variable(ONES, name="other")
        assert float(jd.function(lambda: (table.assign_add(ONES), other.read_value().sum())[1])()) == 8


def test_rows_that_are_only_written_are_not_fetched() -> None:
    with threads() as strategy, strategy.scope():
        table = jd.Variable(np.zeros((2000, 4), np.float32))
        step = jd.function(lambda ids: [table.scatter_add(jd.IndexedSlices(jnp.ones((2, 4)), ids))].clear())
        client: Any = strategy.cluster.client  # pyright: ignore[reportOptionalMemberAccess]
        step(int32([3, 4]))
        before = client.received_bytes
        step(int32([3, 5]))
        assert client.received_bytes - before < 500
        assert table[3].tolist() == [2] * 4
        assert float(table.numpy().sum()) == float32(16)
