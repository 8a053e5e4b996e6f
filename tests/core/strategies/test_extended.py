import gc
import weakref
from typing import Any

import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute._src.core.points import Point
from jaxtribute._src.core.strategies import extended
from jaxtribute._src.core.values.policies.mirrored import MirroredPolicy
from jaxtribute._src.core.values.policies.on_read import OnReadPolicy
from jaxtribute._src.core.values.policies.plain import PlainPolicy
from jaxtribute.errors import ArgumentError, StrategyMixError
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

Synchronization = jd.VariableSynchronization


def test_where_variables_go() -> None:
    several, single = mirrored(2).extended, one_device(1).extended
    assert isinstance(several.variable_policy(Synchronization.AUTO)[0], MirroredPolicy)
    assert several.variable_policy(Synchronization.AUTO)[1] is Synchronization.ON_WRITE
    assert isinstance(several.variable_policy(Synchronization.ON_READ)[0], OnReadPolicy)
    with pytest.raises(ArgumentError, match=r"MirroredStrategy keeps a copy.*on 2 devices.*HINT"):
        several.variable_policy(Synchronization.NONE)
    for synchronization in Synchronization:
        policy, same = single.variable_policy(synchronization)
        assert isinstance(policy, PlainPolicy)
        assert same is synchronization


def test_variables_know_their_strategy() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0)
    assert strategy.extended.variable_created_in_scope(v)
    assert not mirrored(3).extended.variable_created_in_scope(v)
    assert not strategy.extended.variable_created_in_scope(jd.Variable(1.0))


def test_check_variable() -> None:
    v = variable(mirrored(2), 1.0, name="w")
    mirrored(2).extended.check_variable(v)
    mirrored(3).extended.check_variable(jd.Variable(1.0))
    with pytest.raises(StrategyMixError, match=r"w:0 was created in the scope of.*HINT"):
        mirrored(3).extended.check_variable(v)


def test_devices() -> None:
    extended = mirrored(2).extended
    names = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))
    assert extended.worker_devices == extended.parameter_devices == names
    assert extended.home is extended.mesh


@each_executor
def test_call_for_each_replica_is_run_without_its_checks(executor: str) -> None:
    strategy = mirrored(2)

    def call() -> Any:
        with strategy.scope():
            return strategy.extended.call_for_each_replica(lambda x, *, y: x + y + ident(), (jnp.int32(1),), {"y": 2})

    assert components((jd.function(call) if executor == "compiled" else call)()) == [3, 4]


@each_executor
def test_update_in_cross_replica_context(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0)
    calls: list[None] = []

    def add(v: jd.Variable, x: Any, *, times: int) -> Any:
        calls.append(None)
        return v.assign_add(x * times)

    def call() -> Any:
        with strategy.scope():
            return strategy.extended.update(v, add, args=(strategy.place(2.0),), kwargs={"times": 3})

    found = (jd.function(call) if executor == "compiled" else call)()
    assert float(found) == 7.0
    assert found is v or executor == "compiled"
    assert components(v) == [7.0, 7.0]
    assert len(calls) == 1


@each_executor
def test_reductions_in_a_merge_call(executor: str) -> None:
    strategy = mirrored(2)

    def merged(strategy: jd.Strategy, x: Any) -> Any:
        return [
            strategy.reduce("SUM", x, axis=None),
            strategy.reduce("MEAN", x, axis=0),
            strategy.reduce("SUM", x, axis=(0, 1)),
            strategy.gather(x, axis=1),
        ]

    result = execute(executor, strategy, lambda: here().merge_call(merged, (jnp.ones((2, 1)) * fraction(),)))
    assert [components(x)[1] for x in result] == [[[1.0], [1.0]], [0.5], 2.0, [[0.0, 1.0]] * 2]


def test_regroup() -> None:
    extended = mirrored(2).extended
    assert extended.regroup([1, 1]) == 1
    assert extended.regroup([1, 1], always=True).values == (1, 1)
    nest = extended.regroup([{"a": jnp.ones(1)}, {"a": jnp.zeros(1)}])
    assert components(nest["a"]) == [[1.0], [0.0]]


def test_it_tells_input_pipelines_the_replicas() -> None:
    assert mirrored(2).extended.input_context().num_replicas_in_sync == 2


def test_a_strategy_is_collected_with_the_functions_that_used_it() -> None:
    strategy = jd.MirroredStrategy(["CPU:6", "CPU:7"])
    each = per_replica(strategy, [jnp.ones(1), jnp.ones(1)])
    step = jd.function(lambda x: x + 1)
    strategy.run(step, (each,))
    alive = weakref.ref(strategy)
    del strategy, each, step
    gc.collect()
    assert alive() is None


@each_executor
def test_addons_look_at_what_replicas_run_before_and_after(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Point[Any] = Point("to look")
    monkeypatch.setattr(extended, "RUNS", runs)
    seen: list[Any] = []

    def look(fn: Any, nest: Any, replicas: int) -> Any:
        seen.append((fn, replicas))
        return lambda: seen.append("again")

    def fn(x: Any) -> Any:
        seen.append("run")
        return x

    def broken(x: Any) -> Any:
        raise ValueError("broken")

    runs.register(look)
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])  # a new one: each asks once
    execute(executor, strategy, fn, jnp.ones(2))
    assert seen[0] == (fn, 2)
    assert seen[-1] == "again"
    assert set(seen[1:-1]) == {"run"}
    seen.clear()
    with pytest.raises(ValueError, match="broken"):
        execute(executor, strategy, broken, jnp.ones(2))
    assert seen == [(broken, 2)], "nothing to look at again: the replicas have not run"
