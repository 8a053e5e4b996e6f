"""Copies that should be the same on all replicas, and are not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute.errors import DivergenceError
from worker_programs import replica_context
from worker_programs import strategy as workers_strategy


@pytest.fixture(scope="module")
def strategy() -> jd.Strategy:
    return jd.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])


def spoil(variable: jd.Variable, replica: int, by: float) -> None:
    """Changes one replica's copy behind the library's back."""
    mesh = variable.policy.mesh
    assert mesh is not None
    copies = [np.array(part) for part in mesh.local_parts(variable.stored)]
    if replica in mesh.local_ids:
        copies[mesh.local_ids.index(replica)].reshape(-1)[-1] += by
    parts = [jax.device_put(copy, device) for copy, device in zip(copies, mesh.local_devices, strict=True)]
    variable.bind(jax.make_array_from_single_device_arrays(variable.shape, mesh.replicated, parts))


def test_equal_copies_pass(strategy: jd.Strategy) -> None:
    with strategy.scope():
        w = jd.Variable(jnp.array([1.0, jnp.nan]), name="w")
        optimizer = jd.Optimizer(optax.adam(0.1), [w])
    jd.debug.check_replicas({"w": w, "slots": optimizer.variables, "other": [1, "text", None, jnp.ones(2)]})


def test_a_copy_that_drifted_is_named(strategy: jd.Strategy) -> None:
    with strategy.scope():
        good, bad = jd.Variable(jnp.zeros(2), name="good"), jd.Variable(jnp.ones((2, 2)), name="bad")
    spoil(bad, 2, 0.25)
    with pytest.raises(DivergenceError, match=r"bad:0 at \['layer'\]\[1\].*replica 2 differs.*by up to 0\.25.*HINT"):
        jd.debug.check_replicas({"layer": [good, bad]})
    jd.debug.check_replicas(bad, every=5, step=3)
    with pytest.raises(DivergenceError):
        jd.debug.check_replicas(bad, every=5, step=5)


def test_values_that_may_differ_are_left_alone(strategy: jd.Strategy) -> None:
    with strategy.scope():
        seen = jd.Variable(
            0, synchronization=jd.VariableSynchronization.ON_READ, aggregation=jd.VariableAggregation.SUM
        )
    value = strategy.run(lambda: replica_context().replica_id_in_sync_group)
    jd.debug.check_replicas([seen, value, jd.Variable(1.0)])
    mirrored = strategy.place(jnp.arange(3))
    jd.debug.check_replicas(mirrored)


def on_a_worker() -> str:
    with workers_strategy().scope():
        w = jd.Variable(jnp.zeros(3), name="w")
    jd.debug.check_replicas(w)
    spoil(w, 3, 2.0)
    try:
        jd.debug.check_replicas(w)
    except DivergenceError as error:
        return str(error)
    return "no error"


@pytest.mark.slow
def test_a_copy_of_another_worker(multi_process: SharedRunners) -> None:
    found: list[Any] = multi_process(workers=2, devices=2).run(on_a_worker)
    for text in found:
        assert "replica 3 differs from replica 0 by up to 2" in text
