"""What `strategy.extended` does with values and variables."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ContextError, StrategyMixError, VariableError
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

SUM, ON_READ = jd.VariableAggregation.SUM, jd.VariableSynchronization.ON_READ


def each(strategy: jd.Strategy) -> Any:
    return per_replica(strategy, [jnp.float32(i + 1) for i in range(strategy.num_replicas_in_sync)])


def elsewhere() -> jd.Variable:
    return variable(mirrored(3), 1.0)


class TestReduceTo:
    @pytest.mark.parametrize(("op", "wanted"), [("SUM", 6.0), ("mean", 2.0), (jd.ReduceOp.SUM, 6.0)])
    def test_to_a_variable(self, op: Any, wanted: float) -> None:
        strategy = mirrored(3)
        result = strategy.extended.reduce_to(op, each(strategy), variable(strategy, 0.0))
        assert isinstance(result, jd.Mirrored)
        assert components(result) == [wanted] * 3

    def test_to_a_device(self) -> None:
        strategy = mirrored(3)
        result = strategy.extended.reduce_to("SUM", each(strategy), "/cpu:2")
        assert result.devices() == {jax.devices()[2]}
        assert float(result) == 6.0

    def test_of_a_variable(self) -> None:
        strategy = mirrored(2)
        v = variable(strategy, 3.0, synchronization=ON_READ, aggregation=SUM)
        assert float(strategy.extended.reduce_to("SUM", v, "CPU:0")) == 6.0

    def test_of_a_plain_array(self) -> None:
        strategy = mirrored(2)
        assert components(strategy.extended.reduce_to("MEAN", jnp.float32(3.0), variable(strategy, 0.0))) == [3.0, 3.0]
        with pytest.raises(ArgumentError, match="2 replicas"):
            strategy.extended.reduce_to("SUM", jnp.float32(3.0), "CPU:0")

    def test_with_one_replica(self) -> None:
        assert float(one_device(1).extended.reduce_to("SUM", jnp.float32(3.0), "CPU:1")) == 3.0

    def test_a_list_of_devices_is_an_error(self) -> None:
        with pytest.raises(ArgumentTypeError, match="CPU:1"):
            mirrored(2).extended.reduce_to("SUM", each(mirrored(2)), ["CPU:0", "CPU:1"])

    def test_a_value_of_another_strategy_is_an_error(self) -> None:
        with pytest.raises(StrategyMixError, match="HINT"):
            mirrored(2).extended.reduce_to("SUM", each(mirrored(3)), "CPU:0")

    def test_in_the_scope_of_another_strategy_is_an_error(self) -> None:
        strategy = mirrored(2)
        v = variable(strategy, 1.0)
        calls: list[Callable[[], Any]] = [
            lambda: strategy.extended.reduce_to("MEAN", v, v),
            lambda: strategy.extended.batch_reduce_to("MEAN", [(v, v)]),
            lambda: strategy.extended.broadcast_to(1.0, v),
            lambda: strategy.extended.update(v, jd.Variable.assign, args=(2.0,)),
        ]
        for call in calls:
            with mirrored(3).scope(), pytest.raises(StrategyMixError, match="HINT"):
                call()
        assert float(v.read_value()) == 1.0

    @each_executor
    def test_inside_a_replica_function_is_an_error(self, executor: str) -> None:
        with pytest.raises(ContextError, match=r"HINT.*merge_call"):
            execute(executor, mirrored(2), lambda: mirrored(2).extended.reduce_to("SUM", jnp.float32(1.0), "CPU:0"))

    @each_executor
    def test_in_merge_call(self, executor: str) -> None:
        strategy = mirrored(3)
        v = variable(strategy, 0.0)

        def merged(strategy: jd.Strategy, x: Any) -> Any:
            return strategy.extended.reduce_to("MEAN", x, v)

        assert components(execute(executor, strategy, lambda: here().merge_call(merged, (fraction(),)))) == [1.0] * 3

    def test_in_a_compiled_program(self) -> None:
        strategy = mirrored(3)
        v = variable(strategy, 0.0)

        @jd.function
        def step(x: Any) -> Any:
            total = strategy.extended.reduce_to("SUM", x, v)
            v.assign_add(total)
            return total

        assert components(step(each(strategy))) == [6.0] * 3
        assert components(v) == [6.0] * 3


@each_executor
def test_batch_reduce_to_keeps_the_order(executor: str) -> None:
    strategy = mirrored(3)
    v = variable(strategy, 0.0)

    def merged(strategy: jd.Strategy, x: Any, n: Any) -> Any:
        return strategy.extended.batch_reduce_to("SUM", [(x, v), (n, v), (x, v)])

    def replica() -> Any:
        return here().merge_call(merged, (fraction(), jnp.asarray(ident(), jnp.int32)))

    assert [components(one) for one in execute(executor, strategy, replica)] == [[3.0] * 3, [3] * 3, [3.0] * 3]


def test_batch_reduce_to_mixed_destinations() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 0.0)
    pairs = [(each(strategy), v), (jnp.float32(5.0), "CPU:1"), (each(strategy), "CPU:3")]
    results = strategy.extended.batch_reduce_to("MEAN", pairs)
    assert [components(result) for result in results] == [[1.5, 1.5], [5.0], [1.5]]
    assert strategy.extended.batch_reduce_to("SUM", []) == []


@each_executor
def test_broadcast_to(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 0.0)
    assert components(strategy.extended.broadcast_to(jnp.float32(2.0), v)) == [2.0, 2.0]
    assert strategy.extended.broadcast_to(2.0, "CPU:3").devices() == {jax.devices()[3]}

    def merged(strategy: jd.Strategy) -> Any:
        return strategy.extended.broadcast_to(jnp.float32(4.0), v)

    assert components(execute(executor, strategy, lambda: here().merge_call(merged))) == [4.0, 4.0]


class TestUpdate:
    def test_runs_once_and_reaches_every_copy(self) -> None:
        strategy = mirrored(3)
        v = variable(strategy, 1.0)
        calls: list[int] = []

        def add(v: jd.Variable, x: Any) -> Any:
            calls.append(1)
            return v.assign_add(x).read_value()

        result = strategy.extended.update(v, add, args=(strategy.place(jnp.float32(2.0)),))
        assert len(calls) == 1
        assert components(v) == [3.0] * 3
        assert float(result) == 3.0

    def test_group_false_gives_components(self) -> None:
        strategy = mirrored(2)
        v = variable(strategy, 1.0)
        parts = strategy.extended.update(v, lambda v: v.assign_add(1.0), group=False)
        assert [float(part) for part in parts] == [2.0, 2.0]

    def test_keyword_arguments(self) -> None:
        v = variable(mirrored(2), 1.0)
        mirrored(2).extended.update(v, lambda v, by: v.assign_add(by), kwargs={"by": 4.0})
        assert components(v) == [5.0, 5.0]

    @each_executor
    def test_in_merge_call(self, executor: str) -> None:
        strategy = mirrored(2)
        v = variable(strategy, 1.0)

        def merged(strategy: jd.Strategy, x: Any) -> None:
            total = strategy.extended.reduce_to("SUM", x, v)
            strategy.extended.update(v, lambda v, x: v.assign_sub(x), args=(total,))

        execute(executor, strategy, lambda: here().merge_call(merged, (fraction() + 1,)))
        assert components(v) == [-2.0, -2.0]

    @each_executor
    def test_in_replica_context_updates_each_component(self, executor: str) -> None:
        strategy = mirrored(2)
        v = variable(strategy, 1.0, synchronization=ON_READ, aggregation=SUM)

        def replica() -> None:
            strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(fraction(),))

        execute(executor, strategy, replica)
        assert components(v) == [1.0, 2.0]

    @each_executor
    def test_in_replica_context_with_a_reduced_value(self, executor: str) -> None:
        strategy = mirrored(2)
        v = variable(strategy, 1.0)

        def merged(strategy: jd.Strategy, x: Any) -> Any:
            return strategy.extended.reduce_to("SUM", x, v)

        def replica() -> None:
            total = here().merge_call(merged, (fraction() + 1,))
            if executor == "lockstep":
                strategy.extended.update(v, lambda v, x: v.assign(x), args=(total,))
            else:
                v.distribute_strategy.extended.update(v, lambda v: v.assign_add(2.0))

        execute(executor, strategy, replica)
        assert components(v) == [3.0, 3.0]

    @each_executor
    def test_different_values_for_equal_copies_are_an_error(self, executor: str) -> None:
        strategy = mirrored(2)
        v = variable(strategy, 1.0)

        def replica() -> None:
            strategy.extended.update(v, lambda v, x: v.assign_add(x), args=(fraction(),))

        with pytest.raises(VariableError, match="reduce_to"):
            execute(executor, strategy, replica)
        assert components(v) == [1.0, 1.0]

    def test_per_replica_arguments_outside(self) -> None:
        strategy = mirrored(2)
        v = variable(strategy, 1.0, synchronization=ON_READ, aggregation=SUM)
        strategy.extended.update(v, lambda v, x: v.assign(x), args=(each(strategy),))
        assert components(v) == [1.0, 2.0]

    def test_with_one_replica(self) -> None:
        v = variable(one_device(1), 1.0)
        one_device(1).extended.update(v, lambda v, x: v.assign(x), args=(jnp.float32(2.0),))
        assert components(v) == [2.0]

    def test_a_variable_of_another_strategy_is_an_error(self) -> None:
        with pytest.raises(StrategyMixError, match="own strategy"):
            mirrored(2).extended.update(variable(mirrored(3), 1.0), lambda v: v.assign(2.0))


class TestPlacement:
    def test_colocated_variables_lie_alike(self) -> None:
        strategy = mirrored(2)
        first = variable(strategy, 1.0)
        with strategy.scope(), strategy.extended.colocate_vars_with(first):
            second = jd.Variable(2.0)
        with strategy.scope(), strategy.colocate_vars_with(first):
            third = jd.Variable(2.0)
        assert first.stored.sharding == second.stored.sharding == third.stored.sharding

    def test_colocation_needs_the_scope_and_a_variable_of_it(self) -> None:
        strategy = mirrored(2)
        with pytest.raises(ContextError, match="scope"), strategy.extended.colocate_vars_with(variable(strategy, 1.0)):
            pass
        other = elsewhere()
        with (
            strategy.scope(),
            pytest.raises(ArgumentError, match="Variable:0"),
            strategy.extended.colocate_vars_with(other),
        ):
            pass

    @pytest.mark.parametrize(
        "call",
        [
            lambda extended: extended.variable_created_in_scope(jnp.ones(2)),
            lambda extended: extended.update(jnp.ones(2), lambda v: v),
            lambda extended: extended.colocate_vars_with(3).__enter__(),
        ],
    )
    def test_what_is_no_variable_is_told(self, call: Callable[[Any], Any]) -> None:
        with mirrored(2).scope(), pytest.raises(ArgumentTypeError, match=r"is no variable.*HINT"):
            call(mirrored(2).extended)

    def test_variable_created_in_scope(self) -> None:
        strategy = mirrored(2)
        assert strategy.extended.variable_created_in_scope(variable(strategy, 1.0))
        assert not strategy.extended.variable_created_in_scope(elsewhere())

    def test_devices(self) -> None:
        extended = mirrored(2).extended
        names = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))
        assert extended.worker_devices == names
        assert extended.parameter_devices == names
        assert extended.non_slot_devices([variable(mirrored(2), 1.0)]) == names
        with pytest.raises(StrategyMixError):
            extended.non_slot_devices([elsewhere()])

    def test_small_answers(self) -> None:
        extended = mirrored(2).extended
        v = variable(mirrored(2), 1.0)
        assert extended.experimental_require_static_shapes is False
        assert extended.value_container(v) is v
        part = v.values[0]
        assert extended.value_container(part) is part
        assert float(extended.read_var(v)) == 1.0
        replica_results = extended.call_for_each_replica(lambda x: x + 1, (each(mirrored(2)),))
        assert components(replica_results) == [2.0, 3.0]


class TestLegacyMethods:
    def test_unwrap_gives_components(self) -> None:
        strategy = mirrored(2)
        assert [float(part) for part in strategy.unwrap(each(strategy))] == [1.0, 2.0]
        assert strategy.unwrap(3) == (3,)

    def test_group_waits(self) -> None:
        strategy = mirrored(2)
        result = strategy.run(lambda: jnp.ones((4, 4)) @ jnp.ones((4, 4)))
        strategy.group({"a": result, "b": variable(strategy, 1.0), "c": np.ones(2)}, name="all")
        assert all(part.is_ready() for part in result.values)  # pyright: ignore[reportAttributeAccessIssue]
