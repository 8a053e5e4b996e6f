"""Tables over the replicas do what dense gradients do on one device; only rows travel, and only rows are written."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import jaxtribute as jd
import table_programs as programs
from jaxtribute._src.addons.tables.exchange import SIZES
from jaxtribute._src.addons.tables.rows import Places
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute.errors import (
    ArgumentError,
    ContextError,
    ShapeError,
    StrategyMixError,
    TraceError,
    VariableError,
)

STRATEGIES = {
    "default": jd.get_strategy,
    "one": lambda: jd.OneDeviceStrategy("cpu:0"),
    "two": lambda: jd.MirroredStrategy(2),
    "four": lambda: jd.MirroredStrategy(4),
    "sharded": lambda: jd.FullyShardedStrategy(2),
    "groups": lambda: jd.MirroredStrategy(4, replica_shape={"model": 2}),
}
explored = settings.get_current_profile_name() == "explore"
slowly = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
seeds = st.integers(0, 1 << 32)


@settings(max_examples=200 if explored else 4, suppress_health_check=slowly)
@given(name=st.sampled_from([*STRATEGIES]), seed=seeds, eager=st.booleans())
def test_programs_do_what_dense_gradients_do(name: str, seed: int, eager: bool) -> None:
    """Lazy and exact updates, of random tables and lookups, as `table_programs` draws them."""
    strategy = STRATEGIES[name]()
    program = programs.random_program(seed, strategy.num_replicas_in_sync)
    assume(programs.check(program, strategy, compiled=not eager))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=40 if explored else 2, suppress_health_check=slowly)
@given(seed=seeds, eager=st.booleans())
def test_two_workers(multi_process: SharedRunners, seed: int, eager: bool) -> None:
    multi_process(workers=2, devices=1).run(programs.on_worker, args=(seed, not eager), timeout_s=400)


def table_of(first: Any, **options: Any) -> Any:
    rows, width = first.shape
    return jd.nn.ShardedTable(rows, width, first, **options)


def test_no_array_of_the_tables_size_is_made_in_a_step() -> None:
    """A step's program takes tables and slots, and changes rows in place; and both tables share their exchanges."""
    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        tables = {name: jd.nn.ShardedTable(100_003, 4, name=name) for name in ("users", "items")}
        optimizer = jd.Optimizer(optax.adagrad(0.1), list(tables.values()))
    part = tables["users"].policy.places.part

    def replica(ids: Any) -> None:
        def loss() -> Any:
            found = jd.nn.embedding_lookup(tables, {"items": ids, "users": ids + 1})
            return (found["items"] ** 2).sum() + (found["users"] ** 2).sum()

        optimizer.apply_gradients(jd.grad(loss, list(tables.values()))())

    client = jax.devices()[0].client
    before = client.live_executables()
    jd.function(lambda ids: strategy.run(replica, (ids,)))(jnp.arange(16))
    known = set(map(id, before))
    texts = [one.hlo_modules()[0].to_string() for one in client.live_executables() if id(one) not in known]
    (text,) = (text for text in texts if "all-to-all" in text)
    made = re.findall(rf"= f32\[{part},4\]\S* ([a-z-]+)\(", text)
    assert set(made) <= {"parameter", "get-tuple-element", "scatter", "fusion"}
    # A fusion is of that scatter alone.
    assert made.count("fusion") <= made.count("scatter") == 4
    assert len(re.findall(r"may-alias|must-alias", text.partition("entry")[0])) == 4
    # Of ids, in a first round and in further ones, of rows and of gradients, which go back by the way of the lookup.
    assert len(re.findall(r" all-to-all\(", text)) == 2 + 2 * len(SIZES)
    # Of each table's ids, of both tables', and of what other replicas have: not of gradients.
    assert len(re.findall(r" sort\(", text)) == 4


def advised(variable: Any) -> bool:
    """True if Linux was asked to keep each part of a stored array in large pages."""
    text = Path("/proc/self/smaps").read_text()
    ranges = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags:([^\n]*)", text, re.MULTILINE | re.DOTALL)
    parts = [shard.data for shard in variable.stored.addressable_shards]
    middles = [part.unsafe_buffer_pointer() + part.nbytes // 2 for part in parts]
    return all(any(int(a, 16) <= one < int(b, 16) and " hg" in how for a, b, how in ranges) for one in middles)


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="the system has no large pages"
)
def test_large_tables_and_their_slots_lie_in_large_pages_for_good() -> None:
    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        table = jd.nn.ShardedTable(300_000, 16, lambda ids: jnp.ones((len(ids), 16)))
        optimizer = jd.Optimizer(optax.adagrad(0.1), [table])
        other = jd.Variable(np.ones((300_000, 16), np.float32))
    step = programs.squares_step(strategy, table, optimizer)
    step(jnp.arange(12).reshape(4, 3))
    assert advised(table)
    assert advised(optimizer.variables[0])
    assert not advised(other)
    table.assign(np.zeros((300_000, 16), np.float32))
    step(jnp.arange(12).reshape(4, 3))
    assert advised(table)


def test_the_first_rows_do_not_depend_on_the_number_of_replicas() -> None:
    whole = jd.nn.ShardedTable(70, 3, seed=4).numpy()
    for partition in ("striped", "range"):
        with jd.MirroredStrategy(4).scope():
            table = jd.nn.ShardedTable(70, 3, seed=4, partition=partition)
        np.testing.assert_array_equal(table.numpy(), whole)
        assert table.stored.addressable_shards[0].data.shape[0] < 70


@pytest.mark.parametrize(("rows", "replicas", "stripes"), [(1, 2, 1), (7, 2, 3), (40, 4, 40), (300, 3, 256)])
def test_places_are_one_to_one(rows: int, replicas: int, stripes: int) -> None:
    places = Places(rows, replicas, stripes)
    found = np.asarray(places.of_ids(jnp.arange(-2, rows + 2)))
    assert found[0] == found[-1] == places.stored
    np.testing.assert_array_equal(places.ids_at(jnp.asarray(found[2:-2])), np.arange(rows))
    value = np.arange(rows * 2).reshape(rows, 2)
    np.testing.assert_array_equal(places.stored_of(value, np)[found[2:-2]], value)
    np.testing.assert_array_equal(places.value_of(places.stored_of(value, np)), value)


def test_a_lazy_update_leaves_other_rows_alone() -> None:
    first = np.ones((8, 2), np.float32)
    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        table = table_of(first)
        optimizer = jd.Optimizer(optax.adam(0.1), [table])

    def replica(ids: Any) -> None:
        optimizer.apply_gradients(jd.grad(lambda: jd.nn.embedding_lookup(table, ids).sum(), [table])())

    step = jd.function(lambda ids: strategy.run(replica, (ids,)))
    step(jnp.asarray([1, 1]))
    step(jnp.asarray([2]))
    changed = (table.numpy() != first).any(axis=1)
    np.testing.assert_array_equal(changed, [False, True, True, *[False] * 5])
    # The same as Optax on these rows alone.
    with jax.numpy_dtype_promotion("standard"):
        state, params = optax.adam(0.1).init(jnp.ones(2)), jnp.ones(2)
        updates, _ = optax.adam(0.1).update(jnp.full(2, 4.0), state, params)
        expected: Any = optax.apply_updates(params, updates)
    np.testing.assert_allclose(table.numpy()[1], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "transform",
    [optax.lamb(0.1), optax.adafactor(0.1, min_dim_size_to_factor=2), optax.clip_by_block_rms(1.0)],
    ids=["lamb", "adafactor", "block_rms"],
)
def test_what_mixes_rows_is_refused_by_name(transform: Any) -> None:
    with pytest.raises(ArgumentError, match=r"cannot update items:0 by rows alone.*HINT"):
        jd.Optimizer(transform, [jd.nn.ShardedTable(40, 40, name="items")])


def test_ids_that_name_no_row() -> None:
    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        table = table_of(np.ones((5, 2), np.float32), name="items")
    with pytest.raises(ArgumentError, match="no row 5 in items:0, which has 5"):
        strategy.run(lambda: jd.nn.embedding_lookup(table, jnp.asarray([1, 5])))
    compiled = jd.function(lambda ids: strategy.run(lambda ids: jd.nn.embedding_lookup(table, ids), (ids,)))
    rows = np.asarray(strategy.experimental_local_results(compiled(jnp.asarray([1, 5, -3])))[0])
    np.testing.assert_array_equal(np.isnan(rows).all(axis=1), [False, True, True])
    lists: Any = [[1, 2], [3]]
    for ragged in (lists, np.array(lists, object)):
        with pytest.raises(ShapeError, match=r"several lengths, \[2, 1\]. HINT: .*-1"):
            jd.nn.embedding_lookup(table, ragged, combiner="mean")
    padded = jd.nn.embedding_lookup(jd.nn.ShardedTable(3, 2), np.asarray([[-1, -1]]), combiner="mean")
    np.testing.assert_array_equal(padded, np.zeros((1, 2)))


@pytest.fixture
def sixty_four_bits() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize("dtype", ["uint32", "int64", "uint64"])
@pytest.mark.parametrize("options", [{}, {"updates": "exact"}, {"partition": "range"}], ids=str)
@pytest.mark.parametrize("name", ["default", "one", "two", "sharded"])
@pytest.mark.usefixtures("sixty_four_bits")
def test_ids_beyond_32_bits_name_no_row(name: str, options: Any, dtype: str) -> None:
    """Looked up, and in gradients that a program makes itself."""
    strategy = STRATEGIES[name]()
    with strategy.scope():
        table = table_of(np.arange(14, dtype=np.float32).reshape(7, 2), **options)
        optimizer = jd.Optimizer(optax.sgd(1.0), [table])
    wrong = [2**31, 2**31 + 1, 2**32 - 1, 2**32 + 1, 2**40 + 3, -(2**32) + 1, -(2**32), 2**63 - 1, 2**63 + 1, 2**64 - 1]
    limits = np.iinfo(dtype)
    wrong = [one for one in wrong if limits.min <= one <= limits.max]
    ids = np.array([0, *wrong, 6], dtype)

    @jd.function
    def step(ids: Any) -> Any:
        def replica(ids: Any) -> Any:
            rows = jd.nn.embedding_lookup(table, ids)
            optimizer.apply_gradients(jd.grad(lambda: jd.nn.embedding_lookup(table, ids).sum(), [table])())
            optimizer.apply_gradients([jd.IndexedSlices(jnp.ones((len(ids), 2)), ids)])
            return rows

        return strategy.run(replica, (ids,))

    data = strategy.experimental_distribute_dataset([ids])
    parts = strategy.experimental_local_results(step(next(iter(data))))
    rows = np.concatenate([np.asarray(part) for part in parts])
    np.testing.assert_array_equal(rows[:, 0], [0, *[np.nan] * len(wrong), 12])
    moved = np.arange(14).reshape(7, 2)[:, 0] - np.asarray(table.read_value())[:, 0]
    np.testing.assert_array_equal(moved, [2, 0, 0, 0, 0, 0, 2])


def test_short_indices_of_a_gradient_are_filled_up_beyond_the_rows() -> None:
    """Replicas of fewer rows get ids that name none: in 8 bits that of 300 rows would be another row."""
    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        table = jd.nn.ShardedTable(300, 1, lambda ids: jnp.ones((len(ids), 1)))
        optimizer = jd.Optimizer(optax.chain(optax.add_decayed_weights(0.5), optax.sgd(1.0)), [table])

    def replica(ids: Any) -> None:
        optimizer.apply_gradients([jd.IndexedSlices(jnp.zeros((len(ids), 1)), ids)])

    (ids,) = strategy.experimental_distribute_dataset([np.array([1, 2, 3], np.uint8)])
    strategy.run(replica, (ids,))
    np.testing.assert_array_equal(np.flatnonzero(table.numpy() != 1), [1, 2, 3])


def test_what_a_table_is_not_for() -> None:
    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        table = jd.nn.ShardedTable(5, 2, name="items")
        optimizer = jd.Optimizer(optax.sgd(0.1), [table])
        with pytest.raises(ArgumentError, match="accumulate_steps=2"):
            jd.Optimizer(optax.sgd(0.1), [table], accumulate_steps=2)
        several: Any = optax.MultiSteps(optax.sgd(0.1), 2)
        for transform in (several, optax.chain(optax.apply_every(2), optax.sgd(0.1))):
            with pytest.raises(ArgumentError, match=r"items:0, updates the rows of each call.*HINT"):
                jd.Optimizer(transform, [table])
    with pytest.raises(VariableError, match="embedding_lookup"):
        jd.function(lambda: strategy.run(lambda: table + 1.0))()
    with pytest.raises(ContextError, match=r"strategy\.run"):
        optimizer.apply_gradients([jd.IndexedSlices(jnp.ones((1, 2)), jnp.zeros(1, jnp.int32))])
    with pytest.raises(ArgumentError, match=r"ids and the tables differ in the features \['a', 'b'\]"):
        jd.nn.embedding_lookup({"a": table}, {"b": np.array([0])})
    with pytest.raises(ArgumentError, match="gives"):
        jd.nn.ShardedTable(5, 2, lambda ids: jnp.ones((len(ids), 3)))
    with closing(jd.experimental.ElasticStrategy()) as islands:
        for other in (jd.experimental.CentralStorageStrategy(["cpu:0", "cpu:1"]), islands):
            with other.scope(), pytest.raises(StrategyMixError, match=r"under .*Strategy.*HINT: use jd\.Variable"):
                jd.nn.ShardedTable(5, 2)


@pytest.mark.parametrize("before", [1, 2])
def test_checkpoints_by_rows_onto_any_number_of_replicas(before: int, tmp_path: Path) -> None:
    first = np.random.default_rng(0).normal(size=(301, 3)).astype(np.float32)

    def made(replicas: int) -> tuple[Any, Any]:
        with jd.MirroredStrategy(replicas).scope():
            table = table_of(first, name="t")
            return table, jd.Optimizer(optax.adagrad(0.1), [table])

    table, optimizer = made(before)
    value = first[::-1].copy()
    table.assign(value)
    slot = optimizer.variables[0]
    slot.assign(value * 2)
    path = jd.Checkpoint(table=table, optimizer=optimizer).save(tmp_path / "c")
    for replicas in (1, 2, 4):
        again, other = made(replicas)
        jd.Checkpoint(table=again, optimizer=other).restore(path)
        np.testing.assert_array_equal(again.numpy(), value)
        np.testing.assert_array_equal(other.variables[0].numpy(), value * 2)
    with jd.MirroredStrategy(2).scope():
        usual = jd.Optimizer(optax.adagrad(0.1), [plain := jd.Variable(first, name="t")])
    jd.Checkpoint(table=plain, optimizer=usual).restore(path)
    np.testing.assert_array_equal(plain.numpy(), value)
    plain.assign(first)
    path_of_plain = jd.Checkpoint(table=plain, optimizer=usual).save(tmp_path / "d")
    jd.Checkpoint(table=again, optimizer=other).restore(path_of_plain)
    np.testing.assert_array_equal(again.numpy(), first)


def test_a_combiner_of_a_plain_variable_is_that_of_a_table() -> None:
    first = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    ids, weights = np.asarray([[0, 5, -1], [-1, -1, -1]]), np.asarray([[1.0, 2.0, 3.0]], np.float32)
    for combiner in ("sum", "mean", "sqrtn"):
        plain = jd.nn.embedding_lookup(jd.Variable(first), ids, weights, combiner)
        np.testing.assert_allclose(plain, jd.nn.embedding_lookup(table_of(first), ids, weights, combiner), rtol=1e-6)
        np.testing.assert_array_equal(plain[1], 0)


def test_a_mean_over_weights_that_sum_up_to_nothing_is_zeros() -> None:
    """As TensorFlow's `div_no_nan` has it; and its gradients are numbers."""
    weights = jnp.asarray([[1.0, -1.0], [0.0, 0.0]])

    def mean(rows: Any, weights: Any, combiner: Any = "mean") -> Any:
        return jd.nn.embedding_lookup(rows, np.asarray([[0, 1], [2, 1]]), weights, combiner)

    rows = jnp.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(mean(rows, weights), 0)
    np.testing.assert_array_equal(mean(rows, weights, "sqrtn")[1], 0)
    gradients = jax.grad(lambda rows, weights: mean(rows, weights).sum(), (0, 1))(rows, weights)
    assert all(np.isfinite(one).all() for one in gradients)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("combiner", [None, "mean"])
def test_the_last_batch_leaves_replicas_fewer_rows_or_none(
    combiner: Any, compiled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a step is compiled; where it runs as Python, the update of all replicas is compiled all the same."""
    first = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    ids = np.random.default_rng(1).integers(0, 7, size=(10, 3)).astype(np.int32)

    def trained(strategy: jd.Strategy) -> Any:
        with strategy.scope():
            table = table_of(first)
            optimizer = jd.Optimizer(optax.adagrad(0.1), [table])

        def replica(ids: Any) -> None:
            def loss() -> Any:
                return (jd.nn.embedding_lookup(table, ids, combiner=combiner) ** 2).sum()

            optimizer.apply_gradients(jd.grad(loss, [table])())

        def step(ids: Any) -> None:
            strategy.run(replica, (ids,))

        run = jd.function(step) if compiled else step
        examples = strategy.experimental_make_numpy_dataset(ids)
        for batch in strategy.experimental_distribute_dataset(examples.batch(6)):  # the last has 2, 2 and 0 of its 4
            run(batch)
        return table.numpy()

    np.testing.assert_allclose(trained(jd.MirroredStrategy(3)), trained(jd.OneDeviceStrategy("CPU:0")), atol=1e-6)
    assert not caplog.records


def test_tables_are_drawn_and_exported(tmp_path: Path) -> None:
    """A safetensors file has the whole table, in the order of its ids, and is read onto any number of replicas."""
    pytest.importorskip("safetensors")
    from jaxtribute.integrations import safetensors

    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        table = jd.nn.ShardedTable(301, 3, name="items", updates="exact")
    assert "301 x 3 float32, rows in turn" in str(strategy.visualize([table]))
    safetensors.save({"items": table}, tmp_path / "t.safetensors")
    for other in (jd.MirroredStrategy(4), jd.OneDeviceStrategy("cpu:0")):
        with other.scope():
            again = jd.nn.ShardedTable(301, 3, seed=1)
            plain = jd.Variable(np.zeros((301, 3), np.float32))
        for one in (again, plain):
            safetensors.load({"items": one}, tmp_path / "t.safetensors")
            np.testing.assert_array_equal(one.numpy(), table.numpy())


def test_tables_are_shown_pickled_and_copied() -> None:
    with jd.MirroredStrategy(2).scope():
        table = jd.nn.ShardedTable(301, 3, name="items", updates="exact", partition="range")
        optimizer = jd.Optimizer(optax.adam(0.1), [table])
        assert "301 rows of 3 float32; over 2 replica(s), exact" in repr(table)
    dumped = pickle.dumps(table)
    with jd.MirroredStrategy(4).scope():
        again = pickle.loads(dumped)
    copied = copy.deepcopy(table)
    table.assign(np.zeros((301, 3), np.float32))
    for one in (again, copied):
        assert one.policy.exact
        np.testing.assert_array_equal(one.numpy(), jd.nn.ShardedTable(301, 3).numpy())
        np.testing.assert_array_equal(jd.nn.embedding_lookup(one, np.array([300])), one.numpy()[300:])
    assert optimizer.trainable_variables == (table,)
    with pytest.raises(ArgumentError, match="StringLookup"):
        jd.nn.embedding_lookup(table, ["a"])  # pyright: ignore[reportArgumentType]


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("count", [4, 3])
def test_a_norm_in_the_step_of_rows_that_are_added_up(count: int, eager: bool) -> None:
    """As the guide to tables shows: an all-reduce keeps a row for each replica that has it."""
    strategy, first = jd.MirroredStrategy(2), np.ones((5, 2), np.float32)
    batch = np.array([1, 2, 1, 2])[:count], np.arange(1.0, 5.0, dtype=np.float32)[:count]
    with strategy.scope():
        table = table_of(first)
        optimizer = jd.Optimizer(optax.sgd(1.0), [table])

    def replica(ids: Any, by: Any) -> Any:
        context: Any = jd.get_replica_context()
        gradients: Any = jd.grad(lambda: jnp.sum(jd.nn.embedding_lookup(table, ids).sum(1) * by), [table])()
        (rows,) = context.all_reduce("SUM", gradients)
        most = len(rows.indices)
        ids, places = jnp.unique(rows.indices, return_inverse=True, size=most, fill_value=rows.dense_shape[0])
        values = jax.ops.segment_sum(rows.values, places, most)
        norm = optax.tree.norm(values)
        optimizer.apply_gradients([jd.IndexedSlices(values / norm, ids)], reduce_op=None)
        return norm

    (rows,) = strategy.experimental_distribute_dataset([batch])
    run = lambda rows: strategy.run(replica, rows)  # noqa: E731
    norms = strategy.experimental_local_results((run if eager else jd.function(run))(rows))
    dense = np.zeros((5, 2))
    np.add.at(dense, batch[0], np.stack([batch[1]] * 2, axis=1))
    np.testing.assert_allclose(np.asarray(norms), np.linalg.norm(dense), rtol=1e-5)
    np.testing.assert_allclose(first - table.numpy(), dense / np.linalg.norm(dense), rtol=1e-5, atol=1e-6)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("reduced", ["by the optimizer", "before it"])
def test_two_tables_share_a_norm_and_gradients_may_be_reduced_before(reduced: str) -> None:
    """The rows of one table count once in a norm over both, wherever they are added up."""
    first = {
        name: np.linspace(-1.0, 1.0 + place, 18, dtype=np.float32).reshape(9, 2) for place, name in enumerate("ab")
    }
    ids = np.array([[0, 3], [3, 8], [8, 8], [1, 3]])

    def trained(strategy: Any) -> list[Any]:
        with strategy.scope():
            tables = {name: table_of(rows, updates="lazy") for name, rows in first.items()}
            optimizer = jd.Optimizer(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(1.0)), list(tables.values()))

        def replica(ids: Any) -> None:
            def loss() -> Any:
                found = jd.nn.embedding_lookup(tables, {"a": ids[:, 0], "b": ids[:, 1]})
                return (found["a"] ** 2).sum() + 3 * (found["b"] ** 2).sum()

            gradients = jd.grad(loss, list(tables.values()))()
            if reduced == "by the optimizer":
                optimizer.apply_gradients(gradients)
            else:
                context = jd.get_replica_context()
                assert context is not None
                optimizer.apply_gradients(context.all_reduce("SUM", gradients), reduce_op=None)

        data = strategy.experimental_distribute_dataset([ids])
        jd.function(lambda rows: strategy.run(replica, (rows,)))(next(iter(data)))
        return [np.asarray(table.read_value()) for table in tables.values()]

    alone = trained(jd.OneDeviceStrategy("cpu:0"))
    for replicas in (2, 3):
        for ours, expected in zip(trained(jd.MirroredStrategy(replicas)), alone, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


KINDS = ("cond", "scan", "jit", "remat", "nested", "switch")


def branched(kind: str, look: Any, ids: Any) -> Any:
    """A loss of rows that are looked up in a transformation, by ids of the code around it."""
    if kind == "cond":
        return jax.lax.cond(jnp.sum(ids) >= 0, lambda: (look(ids) ** 2).sum(1), lambda: look(ids).sum(1) * 3)
    if kind == "scan":
        body: Any = lambda total, by: (total + (look(ids) ** 2).sum(1) * by, None)  # noqa: E731
        return jax.lax.scan(body, jnp.zeros(ids.shape), jnp.arange(3.0))[0]
    if kind == "jit":
        return jax.jit(lambda by: (look(ids) ** 2).sum(1) * by)(2.0)
    if kind == "remat":
        return jax.checkpoint(lambda by: (look(ids) ** 2).sum(1) * by)(2.0)
    if kind == "switch":
        return jax.lax.switch(1, [lambda: look(ids).sum(1), lambda: (look(ids) ** 3).sum(1)])
    inner: Any = lambda by: jax.lax.cond(True, lambda: (look(ids) ** 2).sum(1) * by, lambda: by * look(ids).sum(1))  # noqa: E731
    return jax.vmap(inner)(jnp.ones(2)).sum(0)


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("count", [4, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["one", "two", "sharded"])
def test_lookups_in_branches_and_loops_by_ids_from_outside(name: str, kind: str, count: int, eager: bool) -> None:
    strategy, first = STRATEGIES[name](), np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)
    ids = np.array([0, 1, 2, 2])[:count]
    with strategy.scope():
        table = table_of(first)
        optimizer = jd.Optimizer(optax.sgd(1.0), [table])

    def replica(ids: Any) -> None:
        def loss() -> Any:
            return branched(kind, lambda ids: jd.nn.embedding_lookup(table, ids), ids).sum()

        optimizer.apply_gradients(jd.grad(loss, [table])())

    (rows,) = strategy.experimental_distribute_dataset([ids])
    run = lambda rows: strategy.run(replica, (rows,))  # noqa: E731
    (run if eager else jd.function(run))(rows)
    expected = jax.grad(lambda rows: branched(kind, lambda ids: rows[ids], jnp.asarray(ids)).sum())(jnp.asarray(first))
    np.testing.assert_allclose(first - table.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [4, 3])
def test_two_tables_in_the_branches_of_one_condition(count: int) -> None:
    strategy, first = jd.MirroredStrategy(2), np.arange(6, dtype=np.float32).reshape(3, 2)
    with strategy.scope():
        tables = [table_of(first), table_of(first)]
        optimizer = jd.Optimizer(optax.sgd(1.0), tables)

    def replica(ids: Any, which: Any) -> None:
        def loss() -> Any:
            one, other = (lambda table=table: jd.nn.embedding_lookup(table, ids).sum() for table in tables)
            return jax.lax.cond(which[0] > 0, one, other)

        optimizer.apply_gradients(jd.grad(loss, tables)())

    step = jd.function(lambda ids, which: strategy.run(replica, (ids, which)))
    (ids,) = strategy.experimental_distribute_dataset([np.arange(count) % 3])
    step(ids, jnp.ones(1))
    moved = [first - table.numpy() for table in tables]
    np.testing.assert_array_equal(moved[0][:, 0], np.bincount(np.arange(count) % 3, minlength=3))
    np.testing.assert_array_equal(moved[1], np.zeros((3, 2)))


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("kind", ["vmap", "scan", "remat", "jit"])
@pytest.mark.parametrize("name", ["one", "two"])
def test_ids_of_a_transformation_are_refused_by_what_to_write(name: str, kind: str, eager: bool) -> None:
    strategy = STRATEGIES[name]()
    with strategy.scope():
        table = jd.nn.ShardedTable(5, 2, name="items")
        optimizer = jd.Optimizer(optax.sgd(1.0), [table])
    look: Any = lambda ids: jd.nn.embedding_lookup(table, ids).sum()  # noqa: E731
    ways: dict[str, Any] = {
        "vmap": jax.vmap(look),
        "scan": lambda ids: jax.lax.scan(lambda total, one: (total + look(one), None), 0.0, ids)[0],
        "remat": jax.checkpoint(look),
        "jit": jax.jit(look),
    }

    def replica(ids: Any) -> None:
        optimizer.apply_gradients(jd.grad(lambda: ways[kind](ids).sum(), [table])())

    run = lambda ids: strategy.run(replica, (ids,))  # noqa: E731
    (ids,) = strategy.experimental_distribute_dataset([np.arange(4)])
    with pytest.raises(TraceError, match=r"items:0 are looked up within jd.grad.*HINT: look all rows up before it"):
        (run if eager else jd.function(run))(ids)


@pytest.mark.quick_cases(11, whole=True)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [5, 512])
@pytest.mark.parametrize("name", ["default", "two", "sharded"])
def test_a_table_is_written_outside_of_replicas_as_a_plain_variable(name: str, rows: int, compiled: bool) -> None:
    """Of 512 rows the stored array is as long, in another order."""
    strategy, first = STRATEGIES[name](), np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    with strategy.scope():
        table, plain = table_of(first, name="items"), jd.Variable(first)
    some = jd.IndexedSlices(jnp.ones((2, 2)), jnp.array([1, 4]))

    def write() -> None:
        for one in (table, plain):
            one.assign_add(first)
            one.assign_sub(jnp.flip(first))
            for how in ("add", "sub", "mul", "max", "update"):
                getattr(one, f"scatter_{how}")(some)

    (jd.function(write) if compiled else write)()
    np.testing.assert_array_equal(table, plain)
    if strategy.num_replicas_in_sync > 1:
        for change in (lambda: table.scatter_add(some), lambda: table.assign_add(first)):
            with pytest.raises(
                VariableError, match=r"items:0 is a table, which a replica function cannot assign. HINT"
            ):
                strategy.run(lambda change=change: change() is None)
