"""Variables on servers: whole and split ones read, write and slice alike."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportAttributeAccessIssue=false

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.parameter_servers.strategy import ParameterServerStrategy
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError, VariableError
from jaxtribute.partitioners import FixedShardsPartitioner, Partitioner
from parameter_servers.clusters import SHARED, coordinated, float32, int32, threads
from transformations import CASES, dictionary

TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)


@pytest.fixture(scope="module")
def strategy() -> Any:
    with threads(servers=2, partitioner=FixedShardsPartitioner(3)) as made:
        yield made


@pytest.fixture
def table(strategy: ParameterServerStrategy) -> jd.Variable:
    with strategy.scope():
        return jd.Variable(TABLE, name="table")


def test_a_split_variable_reads_as_one(strategy: ParameterServerStrategy, table: Any) -> None:
    assert isinstance(table, jd.coordinator.ShardedVariable)
    assert isinstance(table, jd.Variable)
    assert (table.shape, table.dtype, table.name, table.trainable) == ((7, 2), np.float32, "table:0", True)
    np.testing.assert_array_equal(table.numpy(), TABLE)
    np.testing.assert_array_equal(table + jnp.ones_like(TABLE), TABLE + 1)
    assert [shard.shape for shard in table.variables] == [(3, 2), (2, 2), (2, 2)]
    np.testing.assert_array_equal(table.variables[1].numpy(), TABLE[3:5])
    assert table.variables[2].name == "table/part_2:0"
    assert {shard.server for shard in table.layout.shards} == {0, 1}
    assert "3 shard(s) on parameter server(s) 0, 1" in repr(table)
    assert strategy.extended.parameter_devices[1] == "/job:ps/replica:0/task:1/device:CPU:0"
    assert table.device.startswith("/job:ps/")


def test_a_scalar_is_on_one_server(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        count = jd.Variable(3, name="count", trainable=False)
    assert not isinstance(count, jd.coordinator.ShardedVariable)
    assert count.assign_add(4) is count
    assert int(count) == 7
    assert not count.trainable


def test_writes_reach_every_shard(table: Any) -> None:
    table.assign_add(np.ones_like(TABLE))
    table.assign_sub(2 * np.ones_like(TABLE))
    np.testing.assert_array_equal(table.numpy(), TABLE - 1)
    table.assign(TABLE * 2)
    np.testing.assert_array_equal(table.numpy(), TABLE * 2)
    table.variables[0].assign_add(np.ones((3, 2), np.float32))
    assert table.numpy()[0, 0] == 1


@pytest.mark.parametrize("how", ["add", "sub", "mul", "div", "min", "max", "update"])
def test_scattered_writes_are_those_of_a_plain_variable(table: Any, how: str) -> None:
    plain = jd.Variable(TABLE)
    delta = jd.IndexedSlices(np.full((3, 2), 4, np.float32), int32([6, 0, 3]))
    for variable in (table, plain):
        getattr(variable, f"scatter_{how}")(delta)
    np.testing.assert_allclose(table.numpy(), plain.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    "key",
    [0, -1, slice(2, 6), slice(None, None, 3), [5, 1], (slice(1, 3), 1), (4, 0), (Ellipsis, 1)],
    ids=str,
)
def test_slices_fetch_their_rows(table: Any, key: Any) -> None:
    np.testing.assert_array_equal(table[key], TABLE[key])


def test_rows(table: Any) -> None:
    ids = int32([[6, 0], [0, 2]])
    np.testing.assert_array_equal(table.sparse_read(ids), TABLE[ids])
    np.testing.assert_array_equal(jd.nn.embedding_lookup(table, ids), TABLE[ids])
    with pytest.raises(ArgumentError, match="rows 0 to 7 were asked for of a variable with 7"):
        table.sparse_read(int32([0, 7]))


def test_only_what_changed_is_fetched_again(strategy: ParameterServerStrategy, table: Any) -> None:
    client = strategy.cluster.client  # pyright: ignore[reportOptionalMemberAccess]
    big = np.zeros((3, 1000), np.float32)
    with strategy.scope():
        large = jd.Variable(big)
    assert large.numpy().shape == (3, 1000)
    before = client.received_bytes
    assert large.numpy().shape == (3, 1000)
    assert client.received_bytes - before < 500


def rows_of(shape: tuple[int, ...], shard_info: jd.coordinator.ShardInfo, dtype: Any = np.float32) -> np.ndarray:
    assert shape == shard_info.shape
    first = np.arange(shape[0]) + shard_info.offset[0]
    return np.broadcast_to(first[:, None], shape).astype(dtype)


def test_each_server_computes_its_own_part_of_an_initial_value(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        made = jd.Variable(functools.partial(rows_of, shape=(50, 3)), dtype=np.float32)
    np.testing.assert_array_equal(made.numpy()[:, 1], np.arange(50))


def test_an_initial_value_that_is_computed_whole(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        made = jd.Variable(lambda: jnp.ones((4, 4), jnp.bfloat16))
        other = jd.Variable(functools.partial(np.ones, shape=(2, 2)), dtype=np.float32)
    assert made.dtype == jnp.bfloat16
    made.assign_add(jnp.ones((4, 4), jnp.bfloat16))
    np.testing.assert_array_equal(made.numpy().astype(np.float32), np.full((4, 4), 2.0))
    assert other.numpy().sum() == 4


def test_mistakes_are_those_of_any_variable(strategy: ParameterServerStrategy, table: Any) -> None:
    with pytest.raises(ShapeError):
        table.assign(np.zeros((2, 2), np.float32))
    with pytest.raises(ArgumentTypeError):
        table.assign_add("x")
    with pytest.raises(VariableError, match="cannot be copied"):
        __import__("copy").deepcopy(table)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize(
    "write", ["assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_max", "scatter_mul"]
)
def test_booleans_are_not_added_up(strategy: ParameterServerStrategy, write: str, compiled: bool) -> None:
    with strategy.scope():
        flags = jd.Variable(np.zeros(3, bool))
    delta: Any = jd.IndexedSlices(np.ones(1, bool), int32([1])) if "scatter" in write else np.ones(3, bool)
    call = lambda: getattr(flags, write)(delta)  # noqa: E731
    with pytest.raises(VariableError, match=rf"{write}: the variable has dtype bool.*HINT"):
        (jd.function(call) if compiled else call)()
    flags.scatter_update(jd.IndexedSlices(np.ones(1, bool), int32([1])))
    assert flags.numpy().tolist() == [False, True, False]


class Columns(Partitioner):
    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        return [1, 2]


def test_other_axes_are_not_split() -> None:
    with threads(partitioner=Columns()) as strategy, strategy.scope(), pytest.raises(ArgumentError, match=r"\[1, 2\]"):
        jd.Variable(TABLE)


def test_what_a_worker_writes_while_it_differentiates_keeps_what_others_write() -> None:
    with coordinated() as coordinator:
        with coordinator.strategy.scope():
            variable, weight = jd.Variable(float32(0.0)), jd.Variable(float32(2.0))
        SHARED["push"] = lambda: variable.policy.access.change("add", variable, [float32(10.0)])

        def step() -> Any:
            def loss() -> Any:
                variable.assign_add(1.0)
                importlib.import_module("parameter_servers.clusters").SHARED["push"]()
                return weight * weight

            return jd.value_and_grad(loss, [weight])()[0]

        assert float(coordinator.schedule(step).fetch()) == 4.0
        assert float(variable.numpy()) == 11.0


SEPARABLE = [name for name, case in CASES.items() if case.separable and not (case.gives or case.each)]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", SEPARABLE)
def test_a_transformation_sees_the_users_nest(strategy: ParameterServerStrategy, name: str) -> None:
    """Variables in several shards, of which a server has two, and others on one server alone."""
    case = CASES[name]
    with strategy.scope():
        net = jax.tree.map(jd.Variable, dictionary())
        optimizer = jd.Optimizer(case.make(dictionary()), net)
    params = jax.tree.map(jnp.asarray, dictionary())
    transform = case.make(params)
    with jax.numpy_dtype_promotion("standard"):
        state = transform.init(params)
        for step in range(4):
            grads = jax.tree.map(lambda leaf, step=step: jnp.cos(leaf + step), params)
            optimizer.apply_gradients(grads)
            updates, state = transform.update(grads, state, params)
            params = optax.apply_updates(params, updates)
    for ours, plain in ((net, params), (optimizer.state, state)):
        # Made again by JAX, as hyperparameters that can be set are Optax's dictionary then.
        made = jax.tree.map(lambda leaf: leaf, ours, is_leaf=lambda leaf: isinstance(leaf, jd.Variable))
        got, tree = jax.tree.flatten(made, is_leaf=lambda leaf: isinstance(leaf, jd.Variable))
        wanted, plain_tree = jax.tree.flatten(plain)
        assert tree == plain_tree
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=2e-6, atol=2e-6)


def test_servers_take_gradients_alone(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        v = jd.Variable(np.ones(4, np.float32))
        optimizer = jd.Optimizer(optax.adam(0.1), [v])
    with pytest.raises(ArgumentError, match=r"value=1\.0 is not for it\. HINT"):
        optimizer.apply_gradients([v.numpy()], value=1.0)
    with pytest.raises(ArgumentError, match=r"gradients_for_each_example=True is not for it\. HINT"):
        optimizer.apply_gradients([np.ones((3, 4), np.float32)])
