"""Uses of strategies and replicas that programs of TensorFlow make, away from the main road."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from replicas import components, each_executor, execute, here, ident, mirrored, one_device, variable

SEVERAL: dict[str, Callable[[], jd.Strategy]] = {
    "mirrored": lambda: mirrored(2),
    "sharded": lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
}
each_of_several = pytest.mark.parametrize("make", SEVERAL.values(), ids=SEVERAL.keys())


@each_of_several
def test_a_replica_may_return_none_where_others_return_arrays(make: Callable[[], jd.Strategy]) -> None:
    strategy = make()
    result = strategy.run(lambda: None if int(ident()) == 0 else jnp.ones(2))
    assert isinstance(result, jd.PerReplica)
    assert result.values[0] is None
    np.testing.assert_array_equal(result.values[1], np.ones(2))
    nest = strategy.run(lambda: {"a": jnp.ones(2) if int(ident()) == 0 else None, "b": None, "c": 1})
    assert nest["a"].values[1] is None
    assert (nest["b"], nest["c"]) == (None, 1)
    with pytest.raises(jd.errors.ContextError, match="HINT"):
        strategy.run(lambda: (1, 2) if int(ident()) == 0 else None)
    with pytest.raises(jd.errors.JaxtributeError, match="HINT"):
        strategy.reduce("SUM", result, None)


@each_of_several
def test_a_replica_context_can_be_entered(make: Callable[[], jd.Strategy]) -> None:
    strategy = make()
    v = variable(strategy, 2.0)
    with jd.ReplicaContext(strategy, 1) as context:
        assert jd.get_replica_context() is context
        assert jd.get_strategy() is strategy
        assert not jd.in_cross_replica_context()
        assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (1, 2)
        assert float(v) == 2.0
        for call in (
            lambda: context.all_reduce("SUM", jnp.ones(2)),
            lambda: context.all_gather(jnp.ones(2), 0),
            lambda: context.merge_call(lambda strategy: None),
        ):
            with pytest.raises(jd.errors.ContextError, match=r"alone.*HINT"):
                call()
        with pytest.raises(jd.errors.ContextError, match="HINT"):
            jd.ReplicaContext(strategy, 0).__enter__()
    assert jd.get_replica_context() is not context
    with mirrored(3).scope(), pytest.raises(jd.errors.ContextError, match="HINT"):
        context.__enter__()


def test_the_context_of_an_only_replica_reduces_alone() -> None:
    with jd.ReplicaContext(one_device(0), 0) as context:
        assert context.all_reduce("SUM", jnp.ones(())) == 1.0
        assert context.merge_call(lambda strategy: strategy.num_replicas_in_sync) == 1


class OwnOps(jd.CrossDeviceOps):
    """As TensorFlow asks for subclasses: without `summation`."""

    def __init__(self) -> None:
        self.calls = 0

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        self.calls += 1
        return super().reduce_implementation(reduce_op, per_replica_value, destinations, options)

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        self.calls += 1
        return super().batch_reduce_implementation(reduce_op, value_destination_pairs, options)


@each_executor
def test_cross_device_operations_need_no_summation(executor: str) -> None:
    ops = OwnOps()
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=ops)
    total = execute(executor, strategy, lambda: here().all_reduce("SUM", jnp.float32(2)))
    assert components(total) == [4.0] * len(components(total))
    each = strategy.run(lambda: jnp.float32(ident()))
    assert float(strategy.extended.batch_reduce_to("SUM", [(each, "CPU:0")])[0]) == 1.0
    assert float(ops.reduce("MEAN", each, "CPU:0")) == 0.5
    assert ops.calls > 0


@each_of_several
def test_run_inside_jax_jit_reads_variables_as_they_are(make: Callable[[], jd.Strategy]) -> None:
    strategy = make()
    v = variable(strategy, 2.0)

    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(lambda x: x * v, (x,)), None)

    def loop(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c, step(c)), x, None, length=2)[1]

    replicas = strategy.num_replicas_in_sync
    for value in (2.0, 3.0):
        v.assign(value)
        for run in (step, jax.jit(step), jd.function(step)):
            np.testing.assert_array_equal(run(jnp.ones(2)), [value * replicas] * 2)
        if not isinstance(strategy, jd.CentralStorageStrategy):  # JAX's loops run on the device of their start
            np.testing.assert_array_equal(loop(jnp.ones(2)), [[value * replicas] * 2] * 2)
    w = variable(strategy, 1.0, aggregation="MEAN")
    with pytest.raises(jd.errors.TraceError, match=r"jax\.jit.*HINT: use jd\.function"):
        jax.jit(lambda: strategy.run(lambda: w.assign(w * 2)))()
    assert float(w) == 1.0


@each_of_several
def test_calls_of_replicas_in_the_scope_of_another_strategy_are_refused(make: Callable[[], jd.Strategy]) -> None:
    strategy = make()
    with mirrored(3).scope(), pytest.raises(jd.errors.StrategyMixError, match=r"call_for_each_replica.*HINT"):
        strategy.extended.call_for_each_replica(lambda: 1)


@each_of_several
@each_executor
def test_variables_of_a_strategy_on_other_devices_are_refused(make: Callable[[], jd.Strategy], executor: str) -> None:
    strategy = make()
    for other in (mirrored(3), one_device(2)):
        v = variable(other, 1.0, aggregation="SUM")
        for write in (lambda v=v: v.assign(3.0), lambda v=v: v.assign_add(jnp.float32(1.0))):
            with pytest.raises(jd.errors.StrategyMixError, match="HINT"):
                execute(executor, strategy, write)
            with strategy.scope(), pytest.raises(jd.errors.StrategyMixError, match="HINT"):
                write()
        assert float(v) == 1.0


@pytest.mark.quick_cases(2)
@each_of_several
@each_executor
def test_strategies_on_the_same_devices_share_variables(make: Callable[[], jd.Strategy], executor: str) -> None:
    for other in SEVERAL.values():
        v = variable(other(), jnp.ones(4), aggregation="SUM")
        execute(executor, make(), lambda v=v: _add(v))
        np.testing.assert_array_equal(v, [4.0] * 4)


def _add(v: jd.Variable) -> None:
    v.assign_add(jnp.ones(4) * (1.0 + jnp.asarray(ident(), jnp.float32)))


def test_a_numpy_dataset_of_tensorflow_1() -> None:
    from jaxtribute.compat import v1

    strategy = v1.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = strategy.experimental_make_numpy_dataset((np.arange(6.0, dtype=np.float32), np.arange(6)))
    assert [spec.shape for spec in jax.tree.leaves(dataset.element_spec)] == [(), ()]
    assert str(dataset.element_spec[0].dtype) in ("float32", "<dtype: 'float32'>")
    rows = list(dataset.take(4).batch(2).prefetch(1))
    assert [np.asarray(x).tolist() for x, _ in rows] == [[0.0, 1.0], [2.0, 3.0]]
    sums = [
        float(strategy.reduce("SUM", strategy.run(lambda batch: batch[0].sum(), (batch,)), None))
        for batch in strategy.experimental_distribute_dataset(dataset.take(4).batch(2))
    ]
    assert sums == [1.0, 5.0]
