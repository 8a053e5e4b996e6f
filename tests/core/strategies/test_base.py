from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from replicas import (
    components,
    each_executor,
    execute,
    fraction,
    here,
    ident,
    mirrored,
    one_device,
    per_replica,
    variable,
)

STRATEGIES = ["default", "one device", "mirrored 1", "mirrored 2", "mirrored 4"]


def strategy_of(name: str) -> jd.Strategy:
    if name == "default":
        return jd.get_strategy()
    return one_device(2) if name == "one device" else mirrored(int(name[-1]))


each_strategy = pytest.mark.parametrize("name", STRATEGIES)


@each_strategy
def test_replicas_and_names(name: str) -> None:
    strategy = strategy_of(name)
    replicas = int(name[-1]) if name.startswith("mirrored") else 1
    assert strategy.num_replicas_in_sync == replicas
    assert strategy.cluster_resolver is None
    assert repr(strategy) == f"<{type(strategy).__name__} with {replicas} replica(s)>"
    assert strategy.extended.strategy is strategy
    assert strategy.is_default == (name == "default")


@pytest.mark.quick_cases(4)
@each_strategy
@each_executor
def test_the_same_step_under_every_strategy(executor: str, name: str) -> None:
    """One training step of a linear model on four examples, whatever cuts them."""
    strategy = strategy_of(name)
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        w = jd.Variable(jnp.zeros((2, 1)), aggregation=jd.VariableAggregation.SUM)
        seen = jd.Variable(
            0, synchronization=jd.VariableSynchronization.ON_READ, aggregation=jd.VariableAggregation.SUM
        )
    x = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], np.float32)
    y = x.sum(1, keepdims=True)
    rows = [(xs, ys) for xs, ys in zip(np.split(x, replicas), np.split(y, replicas), strict=True)]
    batch = per_replica(strategy, rows)

    def step(batch: Any) -> Any:
        xs, ys = batch
        loss, gradient = jd.value_and_grad(lambda: ((xs @ w - ys) ** 2).sum() / 4, w)()
        w.assign_sub(gradient * 0.01)
        seen.assign_add(len(xs))
        return loss

    losses = [float(strategy.reduce("SUM", execute(executor, strategy, step, batch), axis=None)) for _ in range(2)]
    expected, reference = [], np.zeros((2, 1))
    for _ in range(2):
        error = x @ reference - y
        expected.append(float((error**2).sum() / 4))
        reference = reference - 0.01 * x.T @ error / 2
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(w.numpy(), reference, rtol=1e-4)
    assert int(seen.numpy()) == 8


@each_strategy
def test_run_takes_lists_and_keywords_and_options(name: str) -> None:
    strategy = strategy_of(name)
    result = strategy.run(lambda a, b, *, c: a + b + c, [1, 2], {"c": 3}, jd.RunOptions())
    assert result == 6
    assert strategy.run(lambda: 5) == 5
    assert strategy.run(lambda x: x, args=(jnp.ones(1),)).tolist() == [1.0]


@pytest.mark.parametrize("args", [jnp.ones(2), 3, "ab", {"a": 1}, None])
def test_run_refuses_bare_arguments(args: Any) -> None:
    for strategy in (mirrored(1), mirrored(2), jd.get_strategy()):
        with pytest.raises(
            ArgumentTypeError,
            match=rf"not {type(args).__name__} and NoneType.*HINT: strategy.run\(fn, args=\(x,\), kwargs",
        ):
            strategy.run(lambda x: x, args)


@pytest.mark.parametrize("name", STRATEGIES[1:])
def test_distribute_values_of_nests(name: str) -> None:
    strategy = strategy_of(name)
    replicas = strategy.num_replicas_in_sync
    contexts: list[Any] = []

    def value_fn(context: Any) -> Any:
        contexts.append((context.replica_id_in_sync_group, context.num_replicas_in_sync))
        return {"a": jnp.ones(2) * context.replica_id_in_sync_group, "b": [context.replica_id_in_sync_group]}

    value = strategy.experimental_distribute_values_from_function(value_fn)
    assert contexts == [(i, replicas) for i in range(replicas)]
    assert isinstance(value["a"], jd.PerReplica), "also with one replica, as in TensorFlow"
    assert components(value["a"]) == [[float(i)] * 2 for i in range(replicas)]
    assert value["b"][0].values == tuple(range(replicas))


# The examples of the documents.


def test_documents_number_of_replicas() -> None:
    strategy = mirrored(2)

    def run() -> Any:
        values = strategy.experimental_distribute_values_from_function(lambda context: context.num_replicas_in_sync)
        return strategy.run(lambda x: x * 2, args=(values,))

    assert run() == 4
    assert int(jd.function(run)()) == 4


def test_documents_all_reduce_of_ids() -> None:
    strategy = mirrored(2)

    def run() -> Any:
        values = strategy.experimental_distribute_values_from_function(
            lambda context: jnp.int32(context.replica_id_in_sync_group)
        )
        return strategy.run(lambda x: here().all_reduce("sum", x), args=(values,))

    for result in (run(), jd.function(run)()):
        assert components(result) == [1, 1]


def test_documents_tensor_input() -> None:
    @jd.function
    def replica_fn(x: Any) -> Any:
        return x * 2.0

    result = mirrored(2).run(replica_fn, args=(jnp.float32(3.0),))
    assert components(result) == [6.0, 6.0]


def test_documents_reduce_of_ids() -> None:
    strategy = mirrored(2)
    result = strategy.run(lambda: here().replica_id_in_sync_group)
    assert int(strategy.reduce("SUM", result, axis=None)) == 1
    devices = [x.devices().pop().id for x in strategy.experimental_local_results(result)]
    assert devices == [0, 1]


def test_documents_one_device_loop() -> None:
    strategy = one_device(0)
    result = 0
    for i in range(10):
        result += strategy.run(lambda x: x * 2, args=(i,))
    assert result == 90


def test_documents_batch_means() -> None:
    strategy = mirrored(2)
    full = per_replica(strategy, [np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)])
    assert strategy.reduce("sum", full, axis=None).tolist() == [4.0, 6.0, 8.0, 10.0]
    assert float(strategy.reduce("sum", full, axis=0)) == 28.0
    partial = per_replica(strategy, [np.arange(4, dtype=np.float32), np.arange(4, 6, dtype=np.float32)])
    assert float(strategy.reduce("MEAN", partial, axis=0)) == 15.0 / 6


# Other methods.


@each_strategy
def test_place(name: str) -> None:
    strategy = strategy_of(name)
    source = np.ones(2, np.float32)
    placed = strategy.place({"a": source, "b": [1, 2.5, jnp.bfloat16(3)], "v": jd.Variable(4.0), "n": None})
    source[:] = 7
    kind = jd.Mirrored if strategy.num_replicas_in_sync > 1 else jax.Array
    assert isinstance(placed["a"], kind)
    assert components(placed["a"])[-1] == [1.0, 1.0]
    assert [x.dtype.name for x in placed["b"]] == ["int32", "float32", "bfloat16"]
    assert components(placed["v"])[-1] == 4.0
    assert placed["n"] is None
    assert len(components(placed["a"])) == strategy.num_replicas_in_sync


def test_place_can_be_stepped() -> None:
    strategy = mirrored(2)
    state = strategy.place(jnp.zeros(2))
    state = strategy.run(lambda s: s + here().all_reduce("SUM", fraction()), (state,))
    assert components(state) == [[1.0, 1.0]] * 2


@pytest.mark.parametrize("result", [{}, [], (), (None, None), {"a": None}, {"a": []}])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_local_results_without_arrays_are_one_for_each_replica(result: Any, replicas: int) -> None:
    strategy = mirrored(replicas)
    for run in (strategy.run, jd.function(strategy.run)):
        assert strategy.experimental_local_results(run(lambda: result)) == (result,) * replicas
    assert strategy.experimental_local_results(strategy.run(lambda: None)) == (None,)


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_axes_may_be_integers_of_numpy(axis: Any) -> None:
    strategy = mirrored(2)
    x = strategy.run(lambda: jnp.float32([[1, 2]]))
    given: Any = tuple(map(np.int64, axis)) if isinstance(axis, tuple) else np.int64(axis)
    np.testing.assert_array_equal(strategy.reduce("SUM", x, axis=given), strategy.reduce("SUM", x, axis=axis))
    if not isinstance(axis, tuple):
        both: list[Any] = [given, jnp.asarray(axis)]
        for one in both:
            np.testing.assert_array_equal(strategy.gather(x, axis=one), strategy.gather(x, axis=axis))
            rows = strategy.run(lambda: here().all_gather(jnp.float32([[1, 2]]), axis=one))  # noqa: B023 (called at once)
            np.testing.assert_array_equal(rows, strategy.gather(x, axis=axis))


@pytest.mark.parametrize("axis", [None, "0", -1, 2, 0.0])
def test_what_is_no_axis_to_gather_along_is_refused(axis: Any) -> None:
    strategy = mirrored(2)
    x = strategy.run(lambda: jnp.float32([[1, 2]]))
    with pytest.raises(ArgumentError, match=r"cannot gather values of rank 2 along axis .*HINT"):
        strategy.gather(x, axis=axis)
    with pytest.raises(ArgumentError, match=r"cannot gather values of rank 2 along axis .*HINT"):
        strategy.run(lambda: here().all_gather(jnp.float32([[1, 2]]), axis=axis))


def test_local_results() -> None:
    strategy = mirrored(2)
    v, marker = variable(strategy, 1.0), object()
    each = strategy.run(fraction)
    assert [float(x) for x in strategy.experimental_local_results(each)] == [0.0, 1.0]
    assert [float(x) for x in strategy.experimental_local_results(v)] == [1.0, 1.0]
    assert strategy.experimental_local_results(marker) == (marker,)
    assert strategy.experimental_local_results([1, "a"]) == ([1, "a"], [1, "a"])
    assert strategy.experimental_local_results(None) == (None,)
    nest = strategy.experimental_local_results({"each": each, "same": 3})
    assert [(float(x["each"]), x["same"]) for x in nest] == [(0.0, 3), (1.0, 3)]
    assert strategy.experimental_local_results(strategy.place(2.0))[1].devices() == {jax.devices()[1]}


def test_value_context_and_run_options() -> None:
    from jaxtribute._src.core.strategies.base import ValueContext

    assert repr(ValueContext(1, 2)) == "ValueContext(replica_id_in_sync_group=1, num_replicas_in_sync=2)"
    assert (ValueContext().replica_id_in_sync_group, ValueContext().num_replicas_in_sync) == (0, 1)
    options = jd.RunOptions(experimental_enable_dynamic_batch_size=False, experimental_xla_options="x")
    assert not options.experimental_enable_dynamic_batch_size
    assert not options.experimental_bucketizing_dynamic_shape
    assert options.experimental_xla_options == "x"


def test_the_context_ends_when_the_function_fails() -> None:
    for strategy in (mirrored(1), mirrored(2)):
        with pytest.raises(KeyError):
            strategy.run(lambda: {}["missing"])
        assert not jd.has_strategy()


def test_ids_of_every_strategy() -> None:
    for name in STRATEGIES[1:]:
        strategy = strategy_of(name)
        assert components(strategy.run(ident)) == list(range(strategy.num_replicas_in_sync))
        assert strategy.experimental_local_results(strategy.run(ident))[0].dtype == np.int32
    assert jd.get_strategy().run(ident) == 0
