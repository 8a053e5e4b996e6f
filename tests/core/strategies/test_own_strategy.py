"""Strategies of one's own, written with public names only, as somebody outside the package would."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from replicas import components, each_executor, execute, fraction, here, one_device, per_replica, variable


class ReversedMirroredExtended(jd.StrategyExtended):
    """Replicas on the devices in reverse order; metrics are summed unless they say otherwise."""

    def __init__(self, devices: Sequence[str]) -> None:
        mesh = jd.extending.ReplicaMesh([jd.extending.resolve_device(name) for name in reversed(devices)])
        super().__init__(mesh, jd.HierarchicalCopyAllReduce())
        self.placed: list[str] = []

    def variable_policy(
        self, synchronization: jd.VariableSynchronization
    ) -> tuple[jd.extending.Policy, jd.VariableSynchronization]:
        self.placed.append(synchronization.name)
        if synchronization is jd.VariableSynchronization.ON_READ:
            return jd.extending.OnReadPolicy(self.mesh), synchronization
        return jd.extending.MirroredPolicy(self.mesh), jd.VariableSynchronization.ON_WRITE


class ReversedMirroredStrategy(jd.Strategy):
    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__(ReversedMirroredExtended(devices))


class ElsewhereExtended(jd.StrategyExtended):
    """Variables on one device, replicas on others."""

    def variable_policy(
        self, synchronization: jd.VariableSynchronization
    ) -> tuple[jd.extending.Policy, jd.VariableSynchronization]:
        return jd.extending.CentralPolicy(self.mesh, jd.extending.resolve_device("CPU:7")), synchronization


def reverse(replicas: int) -> ReversedMirroredStrategy:
    return ReversedMirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def elsewhere(replicas: int) -> jd.Strategy:
    mesh = jd.extending.ReplicaMesh([jd.extending.resolve_device(f"CPU:{i}") for i in range(replicas)])
    return jd.Strategy(ElsewhereExtended(mesh))


BOTH = pytest.mark.parametrize("make", [reverse, elsewhere])


def test_it_decides_where_replicas_run() -> None:
    strategy = reverse(3)
    assert [name[-5:] for name in strategy.extended.worker_devices] == ["CPU:2", "CPU:1", "CPU:0"]
    result = strategy.run(lambda: fraction() + 1)
    assert [part.devices() for part in result.values] == [{jax.devices()[i]} for i in (2, 1, 0)]
    assert repr(strategy) == "<ReversedMirroredStrategy with 3 replica(s)>"


def test_it_decides_where_variables_lie() -> None:
    strategy = reverse(2)
    assert variable(strategy, 1.0).device[-5:] == "CPU:1"
    assert strategy.extended.placed == ["AUTO"]  # type: ignore[attr-defined]
    assert variable(elsewhere(2), 1.0).device[-5:] == "CPU:7"


@each_executor
@BOTH
def test_collectives_and_variables_work(executor: str, make: Any) -> None:
    strategy = make(3)
    v = variable(strategy, 1.0, aggregation=jd.VariableAggregation.SUM)

    def replica(x: Any) -> Any:
        v.assign_add(x)
        return here().all_reduce("MEAN", x), here().all_gather(x[None], axis=0), here().merge_call(total, (x,))

    def total(strategy: jd.Strategy, x: Any) -> Any:
        return strategy.extended.reduce_to("SUM", x, v)

    x = per_replica(strategy, [jnp.float32(i) for i in range(3)])
    mean, rows, same = execute(executor, strategy, replica, x)
    assert components(v)[0] == 4.0
    assert components(mean) == [1.0] * 3
    assert components(rows) == [[0.0, 1.0, 2.0]] * 3
    assert components(same)[0] == 3.0


@pytest.mark.quick_cases(1)
@each_executor
@BOTH
def test_training_agrees_with_one_device(executor: str, make: Any) -> None:
    def losses(strategy: jd.Strategy) -> list[float]:
        with strategy.scope():
            w = jd.Variable(np.arange(6, dtype=np.float32).reshape(3, 2) / 10)
        optimizer = jd.Optimizer(optax.sgd(0.05, momentum=0.9), [w])

        def replica(x: Any) -> Any:
            loss, grads = jd.value_and_grad(lambda: ((x @ w - 1) ** 2).sum() / 8, [w])()
            optimizer.apply_gradients(grads)
            return loss

        def step(x: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)

        parts = np.split(np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), strategy.num_replicas_in_sync)
        batch = per_replica(strategy, [jnp.asarray(part) for part in parts])
        run = jd.function(step) if executor == "compiled" else step
        return [float(run(batch)) for _ in range(4)]

    np.testing.assert_allclose(losses(make(4)), losses(one_device(0)), rtol=1e-5)


def test_datasets_are_split_over_its_replicas() -> None:
    strategy = reverse(2)
    (batch,) = strategy.experimental_distribute_dataset([np.arange(4, dtype=np.float32)])
    assert components(batch) == [[0.0, 1.0], [2.0, 3.0]]


def test_its_scope_makes_it_current() -> None:
    strategy = reverse(2)
    with strategy.scope():
        assert jd.get_strategy() is strategy
        assert jd.in_cross_replica_context()
