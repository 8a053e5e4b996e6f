from typing import Any

import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute._src.core.values.policies.mirrored import MirroredPolicy
from jaxtribute.errors import VariableError
from replicas import components, each_executor, execute, fraction, here, mirrored, variable

Aggregation = jd.VariableAggregation


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("replicas", [2, 3, 8])
@each_executor
def test_what_replicas_write_is_aggregated(executor: str, replicas: int) -> None:
    strategy = mirrored(replicas)
    total, mean, first = (
        variable(strategy, jnp.ones((2, 1)), aggregation=how)
        for how in (Aggregation.SUM, Aggregation.MEAN, Aggregation.ONLY_FIRST_REPLICA)
    )

    def fn() -> None:
        for v in (total, mean, first):
            v.assign_add((fraction() + 1) * jnp.ones((2, 1)))

    execute(executor, strategy, fn)
    sums = replicas * (replicas + 1) / 2
    assert components(total) == [[[1 + sums]] * 2] * replicas
    assert components(mean) == [[[1 + sums / replicas]] * 2] * replicas
    assert components(first) == [[[2.0]] * 2] * replicas
    assert isinstance(total.policy, MirroredPolicy)


@each_executor
def test_a_write_is_seen_by_what_follows(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0, aggregation=Aggregation.SUM)

    def fn() -> Any:
        first = v.assign_add(fraction()).read_value()
        second = v.assign_add(first).read_value()
        return first, second, v + fraction()

    first, second, mixed = execute(executor, strategy, fn)
    assert components(first) == [2.0, 2.0]
    assert components(second) == [6.0, 6.0]
    assert components(mixed) == [6.0, 7.0]
    assert components(v) == [6.0, 6.0]


@pytest.mark.parametrize("dtype", ["bool", "int32", "bfloat16", "float32"])
@each_executor
def test_dtypes(executor: str, dtype: str) -> None:
    strategy = mirrored(2)
    first = variable(strategy, jnp.zeros(2, dtype), aggregation=Aggregation.ONLY_FIRST_REPLICA)
    execute(executor, strategy, lambda: (first.assign(jnp.ones(2, dtype)), None)[1])
    assert first.dtype == dtype
    assert components(first) == [jnp.ones(2, dtype).tolist()] * 2
    if dtype != "bool":
        total = variable(strategy, jnp.zeros(2, dtype), aggregation=Aggregation.SUM)
        execute(executor, strategy, lambda: (total.assign_add(jnp.ones(2, dtype)), None)[1])
        assert total.dtype == dtype
        assert components(total) == [[2.0, 2.0]] * 2


@each_executor
def test_the_python_number_of_every_replica_cannot_be_summed(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0, name="w", aggregation=Aggregation.SUM)
    with pytest.raises(VariableError, match=r"w:0.assign_add\(2.0\): a Python number is the same.*HINT: pass an array"):
        execute(executor, strategy, lambda: v.assign_add(2.0))


@each_executor
def test_cross_replica_writes_in_a_merge_call_are_not_aggregated(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0, aggregation=Aggregation.SUM)

    def merged(strategy: jd.Strategy, x: Any) -> None:
        v.assign_add(strategy.reduce("SUM", x, axis=None))
        v.assign_add(1.0)

    execute(executor, strategy, lambda: here().merge_call(merged, (fraction() + 1,)))
    assert components(v) == [5.0, 5.0]


@each_executor
def test_a_replica_that_fails_before_all_have_written_leaves_the_variable(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0, aggregation=Aggregation.MEAN)
    calls: list[None] = []

    def fn() -> None:
        calls.append(None)
        if len(calls) == 2 or executor == "compiled":
            raise KeyError
        v.assign_add(1.0)

    with pytest.raises(KeyError):
        execute(executor, strategy, fn)
    assert components(v) == [1.0, 1.0]


def test_reduce_and_gather_of_a_variable() -> None:
    strategy = mirrored(2)
    v = variable(strategy, [1.0, 2.0])
    assert strategy.reduce("SUM", v, axis=None).tolist() == [2.0, 4.0]
    assert strategy.reduce("MEAN", v, axis=None).tolist() == [1.0, 2.0]
    assert strategy.reduce("SUM", v, axis=0).tolist() == 6.0
    assert strategy.gather(v, axis=0).tolist() == [1.0, 2.0, 1.0, 2.0]
    assert [x.tolist() for x in strategy.experimental_local_results(v)] == [[1.0, 2.0]] * 2
