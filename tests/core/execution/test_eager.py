"""A step that fails leaves the variables as they were, whatever runs it."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import jaxtribute as jd
from execution.test_threads import each_executor, each_strategy, step_of, strategies
from replicas import components, ident, mirrored, one_device, variable

SUM, MEAN = jd.VariableAggregation.SUM, jd.VariableAggregation.MEAN
ON_READ = jd.VariableSynchronization.ON_READ


class BadError(Exception):
    """What the failing steps raise."""


def fail() -> None:
    raise BadError


@pytest.mark.quick_cases(4)
@each_strategy
@each_executor
def test_a_failed_step_has_changed_nothing(name: str, executor: str) -> None:
    strategy = strategies()[name]
    mirrored_, plain = variable(strategy, jnp.ones(8), aggregation=MEAN), jd.Variable(1.0)
    counts = variable(strategy, 1.0, synchronization=ON_READ, aggregation=MEAN)
    with strategy.scope():
        optimizer = jd.Optimizer(optax.adam(1.0), [mirrored_])
    everything = [mirrored_, plain, counts, *optimizer.variables]
    before = [components(v) for v in everything]
    failing = [True]

    def fn() -> None:
        mirrored_.assign_add(jnp.ones(8))
        counts.assign_add(jnp.ones(()))
        optimizer.apply_gradients([jnp.ones(8)], reduce_op="MEAN")
        plain.assign(5.0)
        if failing[0]:
            fail()

    step = step_of(strategy, fn, executor)
    with pytest.raises(BadError):
        step()
    assert [components(v) for v in everything] == before
    failing[0] = False
    step()
    assert float(plain.numpy()) == 5.0
    assert [components(v) for v in everything[2:]] != before[2:]


def test_a_replica_that_fails_after_others_have_written() -> None:
    strategy = mirrored(3)
    counts = variable(strategy, 0.0, synchronization=ON_READ, aggregation=SUM)

    def fn() -> None:
        counts.assign_add(jnp.ones(()))
        if int(ident()) == 2:
            fail()

    with pytest.raises(BadError):
        strategy.run(fn)
    assert components(counts) == [0.0] * 3


def test_a_compiled_function_in_a_step_is_part_of_it() -> None:
    strategy = one_device(0)
    v, w = variable(strategy, jnp.zeros(4)), variable(strategy, jnp.ones(4))
    add: Any = jd.function(lambda x: (v.assign_add(x * w), v.read_value())[1])

    def fn(failing: bool) -> Any:
        v.assign_add(jnp.ones(4))
        add(jnp.ones(4))
        w.assign(jnp.full(4, 3.0))
        found = add(jnp.ones(4))
        if failing:
            fail()
        return found

    with pytest.raises(BadError):
        strategy.run(fn, (True,))
    assert (v.numpy().tolist(), w.numpy().tolist()) == ([0.0] * 4, [1.0] * 4)
    assert strategy.run(fn, (False,)).tolist() == [5.0] * 4
    assert (v.numpy().tolist(), w.numpy().tolist()) == ([5.0] * 4, [3.0] * 4)
    add(jnp.ones(4))
    assert v.numpy().tolist() == [8.0] * 4


def test_a_compiled_function_in_a_merge_call_is_part_of_the_step() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 0.0)
    add: Any = jd.function(lambda: v.assign_add(1.0))

    def fn(failing: bool) -> float:
        context: Any = jd.get_replica_context()
        context.merge_call(lambda _: add())
        context.merge_call(lambda _: v.assign_add(2.0))
        if failing:
            fail()
        return float(v.read_value())

    with pytest.raises(BadError):
        strategy.run(fn, (True,))
    assert float(v.numpy()) == 0.0
    assert strategy.run(fn, (False,)).values == (3.0, 3.0)  # pyright: ignore[reportAttributeAccessIssue]
    assert float(v.numpy()) == 3.0


@pytest.mark.parametrize("kind", ["none", "one device", "mirrored", "fully sharded", "on read"])
@pytest.mark.parametrize("moment", ["before", "unwritten", "written", "returned", "never"])
def test_values_read_around_a_step_outlive_later_steps(kind: str, moment: str) -> None:
    strategy: Any = {"none": jd.get_strategy(), "one device": one_device(0)}.get(kind, mirrored(2))
    if kind == "fully sharded":
        strategy = jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=1)
    options: dict[str, Any] = {"synchronization": ON_READ} if kind == "on read" else {}
    v, held = variable(strategy, jnp.zeros(4), aggregation=MEAN, **options), list[Any]()

    def fn() -> Any:
        if moment == "unwritten":
            held.append(v.read_value())
        v.assign_add(jnp.ones(4))
        if moment == "written":
            held.append(v.read_value())
        return v.read_value() if moment == "returned" else None

    if moment == "before":
        held.extend(v.values)
    result = strategy.run(fn)
    if moment == "returned":
        held.extend(strategy.experimental_local_results(result))
    expected = [1.0] * 4 if moment in ("written", "returned") else [0.0] * 4
    array = v.stored
    step = jd.function(lambda: (strategy.run(lambda: v.assign_add(jnp.ones(4))), None)[1])
    for _ in range(3):
        step()
    if kind in ("none", "one device"):  # whatever several replicas wrote they may hold
        assert array.is_deleted() == (moment not in ("written", "returned")), "what nobody holds is written over"
    assert [array.tolist() for array in held] == [expected] * len(held)
    assert [part.tolist() for part in v.values] == [[4.0] * len(v.values[0])] * len(v.values)


def test_a_step_that_fails_in_another_leaves_the_rest_of_it() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 0.0, aggregation=SUM)
    inner: list[Callable[[], Any]] = [lambda: v.assign_add(jnp.ones(())), fail]

    def fn() -> None:
        context: Any = jd.get_replica_context()
        context.merge_call(lambda s: s.run(inner[0]))

    strategy.run(fn)
    assert float(v.numpy()) == 2.0
    inner.reverse()
    with pytest.raises(BadError):
        strategy.run(fn)
    assert float(v.numpy()) == 2.0
