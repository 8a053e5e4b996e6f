"""`CentralStorageStrategy`: what lies where, and the same results as every other strategy."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentTypeError, DeviceError, ShapeError, VariableError
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

AGG = jd.VariableAggregation
PREFIX = "/job:localhost/replica:0/task:0/device:CPU:"


def central(replicas: int, parameter: int = 0) -> jd.CentralStorageStrategy:
    return jd.CentralStorageStrategy([f"CPU:{i}" for i in range(replicas)], f"CPU:{parameter}")


def device_of(v: jd.Variable) -> set[int]:
    return {device.id for device in v.stored.devices()}


class TestDevices:
    def test_defaults(self) -> None:
        strategy = jd.CentralStorageStrategy()
        assert strategy.num_replicas_in_sync == 8
        assert strategy.extended.worker_devices == tuple(f"{PREFIX}{i}" for i in range(8))
        assert strategy.extended.parameter_devices == (f"{PREFIX}0",)
        assert strategy.cluster_resolver is None

    def test_the_older_name(self) -> None:
        assert jd.experimental.CentralStorageStrategy is jd.CentralStorageStrategy

    def test_the_parameter_device_need_not_compute(self) -> None:
        strategy = central(2, 5)
        v = variable(strategy, 1.0)
        assert v.device == f"{PREFIX}5"
        assert device_of(v) == {5}
        assert strategy.extended.worker_devices == (f"{PREFIX}0", f"{PREFIX}1")

    def test_mistakes(self) -> None:
        with pytest.raises(ArgumentTypeError, match="'CPU:0'"):
            jd.CentralStorageStrategy("CPU:0")
        with pytest.raises(DeviceError, match="twice"):
            jd.CentralStorageStrategy(["CPU:0", "CPU:0"])
        with pytest.raises(DeviceError, match="GPU:7"):
            jd.CentralStorageStrategy(["CPU:0"], "GPU:7")

    @pytest.mark.parametrize("how", list(jd.VariableSynchronization))
    def test_every_synchronization_means_one_copy(self, how: jd.VariableSynchronization) -> None:
        v = variable(central(2), 1.0, synchronization=how, aggregation=AGG.SUM)
        assert v.synchronization is how
        assert components(v) == [1.0]


class TestWrites:
    @pytest.mark.quick_cases(6)
    @each_executor
    @pytest.mark.parametrize(
        ("aggregation", "wanted"), [(AGG.SUM, 6.0), (AGG.MEAN, 2.0), (AGG.ONLY_FIRST_REPLICA, 1.0)]
    )
    @pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
    def test_replicas_are_aggregated(self, executor: str, aggregation: Any, wanted: float, method: str) -> None:
        strategy = central(3, 4)
        v = variable(strategy, 10.0, aggregation=aggregation)
        execute(executor, strategy, lambda: (getattr(v, method)(fraction() + 1), None)[1])
        result = {"assign": wanted, "assign_add": 10 + wanted, "assign_sub": 10 - wanted}[method]
        assert components(v) == [result]
        assert device_of(v) == {4}

    @each_executor
    def test_a_constant_array_counts_once_a_replica(self, executor: str) -> None:
        strategy = central(3)
        v = variable(strategy, 0.0, aggregation=AGG.SUM)
        constant = jnp.float32(2.0)
        execute(executor, strategy, lambda: (v.assign_add(constant), None)[1])
        assert components(v) == [6.0]

    @each_executor
    def test_without_aggregation_it_is_an_error(self, executor: str) -> None:
        v = variable(central(2), 0.0)
        with pytest.raises(VariableError, match="aggregation="):
            execute(executor, central(2), lambda: v.assign(fraction()))

    @each_executor
    def test_a_number_cannot_be_summed(self, executor: str) -> None:
        v = variable(central(2), 0.0, aggregation=AGG.SUM)
        with pytest.raises(VariableError, match="Python number is the same"):
            execute(executor, central(2), lambda: v.assign(1.0))

    @each_executor
    def test_replicas_see_what_they_wrote(self, executor: str) -> None:
        strategy = central(2, 3)
        v = variable(strategy, 1.0, aggregation=AGG.SUM)

        def replica() -> Any:
            v.assign_add(fraction())
            once = v.read_value()
            v.assign_add(fraction())
            return once, v.read_value() * 2

        once, twice = execute(executor, strategy, replica)
        assert components(once)[0] == 2.0
        assert components(twice)[0] == 6.0
        assert components(v) == [3.0]

    def test_outside_every_replica(self) -> None:
        v = variable(central(2, 3), [1.0, 2.0])
        v.assign_add([1.0, 1.0])
        v.assign_sub(mirrored(2).place(jnp.ones(2, jnp.float32)).data)
        assert components(v) == [[1.0, 2.0]]
        assert device_of(v) == {3}
        with pytest.raises(ShapeError, match=r"\(2,\)"):
            v.assign(1.0)

    def test_in_a_compiled_program_without_replicas(self) -> None:
        strategy = central(2, 3)
        v = variable(strategy, 1.0)

        @jd.function
        def step(x: Any) -> Any:
            v.assign_add(x)
            return v * 2

        assert float(step(jnp.float32(2.0))) == 6.0
        assert float(step(np.float32(2.0))) == 10.0
        assert float(step(mirrored(2).place(jnp.float32(1.0)).data)) == 12.0
        assert device_of(v) == {3}

    def test_constants_and_unchanged_values(self) -> None:
        strategy = central(2, 3)
        v, w = variable(strategy, 1.0), variable(strategy, 5.0)

        @jd.function
        def step() -> Any:
            strategy.run(fraction)
            v.assign(3.0)
            w.assign(w)
            return v.read_value(), 7

        for _ in range(2):
            assert [float(one) for one in step()] == [3.0, 7.0]
            assert components(v) + components(w) == [3.0, 5.0]
            assert device_of(v) | device_of(w) == {3}


class TestReads:
    @each_executor
    def test_replicas_get_the_value(self, executor: str) -> None:
        strategy = central(3, 5)
        v = variable(strategy, 4.0)
        assert components(execute(executor, strategy, lambda: v + fraction())) == [4.0, 5.0, 6.0]

    @each_executor
    def test_an_unchanged_read_is_mirrored(self, executor: str) -> None:
        strategy = central(2, 5)
        v = variable(strategy, 4.0)
        assert isinstance(execute(executor, strategy, v.read_value), jd.Mirrored)

    def test_outside_it_meets_other_arrays(self) -> None:
        strategy = central(2, 5)
        v = variable(strategy, 4.0)
        total = strategy.reduce("SUM", per_replica(strategy, [jnp.float32(1.0), jnp.float32(2.0)]), axis=None)
        assert float(v + total) == 7.0
        assert float(v.numpy()) == 4.0
        assert strategy.experimental_local_results(v)[0].devices() == {jax.devices()[5]}

    def test_what_was_read_stays_when_the_variable_changes(self) -> None:
        strategy = central(2)
        v = variable(strategy, jnp.ones(100))
        kept = v.read_value()

        @jd.function
        def step() -> None:
            strategy.run(fraction)
            v.assign_add(jnp.ones(100))

        step()
        step()
        np.testing.assert_array_equal(kept, np.ones(100))
        np.testing.assert_array_equal(v.numpy(), np.full(100, 3.0))

    def test_a_value_derived_from_a_variable_goes_to_the_replicas(self) -> None:
        strategy = central(2, 3)
        v = variable(strategy, 4.0)

        @jd.function
        def step() -> Any:
            return strategy.run(lambda x: x + fraction(), (v * 2,)), v.read_value()

        values, read = step()
        assert components(values) == [8.0, 9.0]
        assert read.devices() == set(jax.devices()[:2])  # as every result
        assert float(read) == 4.0

    @each_executor
    def test_gradients(self, executor: str) -> None:
        strategy = central(2, 3)
        v = variable(strategy, [1.0, 2.0])

        def replica() -> Any:
            grad = jd.grad(lambda: (v * v).sum() * (fraction() + 1), v)()
            return here().all_reduce("SUM", grad)

        assert components(execute(executor, strategy, replica))[0] == [6.0, 12.0]


def train(strategy: jd.Strategy, executor: str, transform: Any, steps: int = 4, size: int = 3) -> tuple[Any, ...]:
    """Losses and final parameters of a small regression, on 12 examples."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(12, size)).astype(np.float32)
    weights = rng.normal(size=(size, size)).astype(np.float32)
    with strategy.scope():
        w, b = jd.Variable(weights), jd.Variable(np.zeros((1, size), np.float32))
        count = jd.Variable(0, aggregation=AGG.ONLY_FIRST_REPLICA)
        optimizer = jd.Optimizer(transform, [w, b])

    def replica(x: Any) -> Any:
        loss, grads = jd.value_and_grad(lambda: ((x @ w + b) ** 2).sum() / 12, [w, b])()
        optimizer.apply_gradients(grads)
        count.assign_add(1)
        return loss

    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)

    run: Callable[[Any], Any] = jd.function(step) if executor == "compiled" else step
    parts = np.split(data, strategy.num_replicas_in_sync)
    batch = per_replica(strategy, [jnp.asarray(part) for part in parts])
    losses = [float(run(batch)) for _ in range(steps)]
    return losses, w, b, count, optimizer


class TestTraining:
    @pytest.mark.quick_cases(1)
    @each_executor
    @pytest.mark.parametrize("name", ["sgd", "rmsprop"])
    def test_agrees_with_one_device(self, executor: str, name: str) -> None:
        transform = {"sgd": optax.sgd(0.1, momentum=0.9), "rmsprop": optax.rmsprop(0.05, momentum=0.9)}[name]
        losses, w, _, count, optimizer = train(central(4, 5), executor, transform)
        wanted, same, *_ = train(one_device(0), "compiled", transform)
        np.testing.assert_allclose(losses, wanted, rtol=1e-5)
        np.testing.assert_allclose(w.numpy(), same.numpy(), rtol=1e-5)
        assert int(count) == 4
        for slot in optimizer.variables:
            assert device_of(slot) == {5}
        assert device_of(w) == {5}

    def test_large_variables_go_up_alone(self) -> None:
        losses, *_ = train(central(2, 0), "compiled", optax.sgd(0.001), size=200)
        wanted, *_ = train(one_device(0), "compiled", optax.sgd(0.001), size=200)
        np.testing.assert_allclose(losses, wanted, rtol=1e-5)

    def test_a_step_takes_what_was_assigned_between(self) -> None:
        strategy = central(2, 3)
        v, w = variable(strategy, 1.0, aggregation=AGG.SUM), variable(strategy, 1.0)

        @jd.function
        def step() -> Any:
            return strategy.run(lambda: (v + w + fraction(), v.assign_add(fraction()), None)[0])

        assert components(step()) == [2.0, 3.0]
        v.assign(10.0)
        assert components(step()) == [11.0, 12.0]
        w.assign(5.0)
        assert components(step()) == [16.0, 17.0]
        assert components(v) == [12.0]

    def test_two_runs_in_one_program(self) -> None:
        strategy = central(2, 3)
        v = variable(strategy, 1.0, aggregation=AGG.SUM)

        def replica() -> Any:
            v.assign_add(fraction() + 1)
            return v + fraction()

        @jd.function
        def step() -> Any:
            first = strategy.run(replica)
            v.assign_add(strategy.reduce("SUM", first, axis=None))
            return strategy.run(replica)

        # 1 + 3 = 4; the replicas return 4 and 5; 4 + 9 = 13; 13 + 3 = 16.
        assert components(step()) == [16.0, 17.0]
        assert components(v) == [16.0]
        step()
        assert components(v) == [16.0 + 3 + (2 * 19 + 1) + 3]

    def test_variables_of_no_strategy_take_part(self) -> None:
        strategy = central(2, 3)
        v, loose = variable(strategy, 1.0, aggregation=AGG.SUM), jd.Variable(2.0)

        @jd.function
        def step() -> Any:
            result = strategy.run(lambda: (v.assign_add(fraction() + loose), v + loose)[1])
            loose.assign_add(v)
            return result

        assert components(step())[0] == 1 + 5 + 2
        assert float(loose) == 8.0

    def test_a_new_shape_is_compiled_for(self) -> None:
        strategy = central(2)
        v = variable(strategy, 0.0, aggregation=AGG.SUM)
        step = jd.function(lambda x: strategy.run(lambda x: (v.assign_add(x.sum()), None)[1], (x,)))
        for rows in (2, 4, 2):
            step(per_replica(strategy, [jnp.ones(rows)] * 2))
        assert components(v) == [16.0]


class TestOneComputeDevice:
    def test_on_the_parameter_device_it_is_one_device(self) -> None:
        strategy = central(1)
        v = variable(strategy, 1.0)
        assert float(strategy.run(lambda: v.assign_add(1.0).read_value())) == 2.0

    @each_executor
    def test_on_another_device(self, executor: str) -> None:
        strategy = central(1, 3)
        v = variable(strategy, 1.0)

        def replica(x: Any) -> Any:
            v.assign_add(x)
            return v + x, (v * x)[None], jnp.asarray(ident())

        results = execute(executor, strategy, replica, jax.device_put(jnp.float32(2.0), jax.devices()[0]))
        assert [np.asarray(result).tolist() for result in results] == [5.0, [6.0], 0]
        assert all(isinstance(result, jax.Array) for result in results)
        assert device_of(v) == {3}

    @each_executor
    def test_training(self, executor: str) -> None:
        losses, w, *_ = train(central(1, 3), executor, optax.sgd(0.05, momentum=0.9))
        wanted, *_ = train(one_device(0), "compiled", optax.sgd(0.05, momentum=0.9))
        np.testing.assert_allclose(losses, wanted, rtol=1e-5)
        assert device_of(w) == {3}


@each_executor
def test_update_runs_on_the_parameter_device(executor: str) -> None:
    strategy = central(3, 6)
    v = variable(strategy, 1.0)
    seen: list[Any] = []

    def change(v: jd.Variable, x: Any) -> None:
        seen.append(x)
        v.assign_add(x)

    def merged(strategy: jd.Strategy, x: Any) -> None:
        strategy.extended.update(v, change, args=(strategy.extended.reduce_to("SUM", x, v),))

    execute(executor, strategy, lambda: here().merge_call(merged, (fraction(),)))
    assert components(v) == [4.0]
    assert len(seen) == 1
    if executor == "lockstep":
        assert seen[0].devices() == {jax.devices()[6]}
