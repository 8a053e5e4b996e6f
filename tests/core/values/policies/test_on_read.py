from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import VariableError
from ragged import cut, deal
from replicas import components, each_executor, execute, fraction, here, mirrored, variable

Aggregation = jd.VariableAggregation
ON_READ = jd.VariableSynchronization.ON_READ


def local(
    replicas: int, value: Any, aggregation: jd.VariableAggregation = Aggregation.SUM, name: str = "m"
) -> jd.Variable:
    return variable(mirrored(replicas), value, name=name, synchronization=ON_READ, aggregation=aggregation)


@pytest.mark.quick_cases(1)
@each_executor
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_write_and_read_their_own_value(executor: str, replicas: int) -> None:
    strategy, v = mirrored(replicas), local(replicas, jnp.zeros((2, 1)))

    def fn() -> Any:
        v.assign_add(jnp.full((2, 1), 1.0) * fraction())
        v.assign_sub(jnp.ones((2, 1)))
        return v.read_value(), v.shape

    each, _ = execute(executor, strategy, fn)
    assert components(each) == components(v) == [[[i - 1.0]] * 2 for i in range(replicas)]
    assert v.shape == (2, 1)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize(("aggregation", "expected"), [("SUM", 3.0), ("MEAN", 1.5), ("ONLY_FIRST_REPLICA", 1.0)])
def test_a_read_across_replicas_reduces(aggregation: str, expected: float) -> None:
    strategy, v = mirrored(2), local(2, 0.0, Aggregation[aggregation])
    strategy.run(lambda: (v.assign(fraction() + 1), None)[1])
    inside = jd.function(lambda: (v.read_value(), v + 0.0))
    with strategy.scope():
        scoped = v.read_value()
    merge = lambda: here().merge_call(lambda _: v.read_value())  # noqa: E731
    merged = [components(execute(executor, strategy, merge)) for executor in ("lockstep", "compiled")]
    assert float(v.read_value()) == float(scoped) == float(v.numpy()) == expected
    assert [float(x) for x in inside()] == [expected, expected]
    assert merged == [[expected] * 2] * 2


def test_without_aggregation_there_is_no_single_value() -> None:
    strategy, v = mirrored(2), local(2, 1.0, Aggregation.NONE)
    for read in (v.read_value, v.numpy, jd.function(v.read_value), lambda: v + 1.0):
        with pytest.raises(VariableError, match=r"m:0 keeps one value a replica.*HINT: read it in strategy.run"):
            read()
    assert [x.tolist() for x in strategy.experimental_local_results(v)] == [1.0, 1.0]
    assert components(strategy.run(lambda: v + fraction())) == [1.0, 2.0]


@pytest.mark.parametrize("how", ["eager", "function"])
def test_a_sum_is_assigned_in_equal_parts(how: str) -> None:
    v = local(4, 1.0)
    (jd.function(v.assign) if how == "function" else v.assign)(6.0)
    assert components(v) == [1.5] * 4
    assert v.numpy() == 6.0
    for write in (v.assign_add, v.assign_sub):
        with pytest.raises(VariableError, match=r"m:0.assign_.* no one place to add.*HINT: call it in strategy.run"):
            (jd.function(write) if how == "function" else write)(1.0)
    assert components(v) == [1.5] * 4


def test_a_sum_of_integers_keeps_its_dtype() -> None:
    v = local(2, 4)
    assert v.numpy() == 8
    assert v.assign(6).numpy() == 6
    assert v.dtype == v.read_value().dtype == np.int32


def test_an_initial_value_is_every_replicas() -> None:
    assert local(2, 1.0).numpy() == 2.0
    assert local(2, 1.0, Aggregation.MEAN).numpy() == 1.0
    assert components(local(2, [1.0, 2.0])) == [[1.0, 2.0]] * 2


def test_defaults_and_repr() -> None:
    v = local(2, 1.0)
    assert not v.trainable
    assert v.synchronization is ON_READ
    assert repr(v).startswith(
        "SyncOnReadVariable:{\n  0: <jd.Variable 'm:0' shape=() dtype=float32, numpy=1.>,\n  1: <jd"
    )


@pytest.mark.quick_cases(1, whole=True)
@each_executor
def test_reduce_gather_and_local_results_of_a_variable(executor: str) -> None:
    strategy, v = mirrored(2), local(2, [0.0, 0.0])
    strategy.run(lambda: (v.assign(jnp.arange(2.0) + fraction() * 10), None)[1])

    def cross(strategy: jd.Strategy) -> Any:
        return (
            strategy.reduce("SUM", v, axis=None),
            strategy.reduce("MEAN", v, axis=0),
            strategy.gather(v, axis=0),
            *strategy.experimental_local_results(v),
        )

    expected = [[10.0, 12.0], 5.5, [0.0, 1.0, 10.0, 11.0], [0.0, 1.0], [10.0, 11.0]]
    whole = cross(strategy) if executor == "lockstep" else jd.function(lambda: cross(strategy))()
    assert [np.asarray(x).tolist() for x in whole] == expected
    merged = execute(executor, strategy, lambda: here().merge_call(cross))
    assert [components(x)[1] for x in merged] == expected


def test_it_is_differentiated_as_what_it_reads() -> None:
    strategy = mirrored(2)
    for how, expected in ((Aggregation.SUM, 6.0), (Aggregation.MEAN, 3.0)):
        v = local(2, 3.0, how)
        assert float(jd.grad(lambda v=v: v * v * 0.5, v)()) == expected
        assert components(execute("compiled", strategy, jd.grad(lambda v=v: v * v * fraction(), v))) == [0.0, 6.0]
        assert components(execute("lockstep", strategy, jd.grad(lambda v=v: v * v * fraction(), v))) == [0.0, 6.0]


@each_executor
@pytest.mark.parametrize("make", [jd.MirroredStrategy, jd.CentralStorageStrategy, jd.FullyShardedStrategy])
def test_a_python_number_goes_to_each_replicas_own_value(make: Any, executor: str) -> None:
    """Such as its number of rows."""
    strategy = make(["CPU:0", "CPU:1"])
    v = variable(strategy, 0.0, synchronization=ON_READ, aggregation=Aggregation.SUM)
    parts = deal(strategy, jnp.ones(3), cut(3, 2))
    execute(executor, strategy, lambda x: v.assign_add(x.shape[0]), parts)
    assert float(v.read_value()) == 3
