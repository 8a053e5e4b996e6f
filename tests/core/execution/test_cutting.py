"""Replicas without examples take part in every gather, also of variables that they have no use for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from replicas import one_device

TABLE = np.linspace(-1, 1, 60, dtype=np.float32).reshape(10, 6)
KERNEL = np.linspace(1, -1, 48, dtype=np.float32).reshape(6, 8)
BATCHES = [np.arange(8) % 7, np.array([3]), np.array([9, 9, 0])]
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "four": lambda: jd.FullyShardedStrategy([f"CPU:{i}" for i in range(4)], min_bytes=0),
    "four of two": lambda: jd.FullyShardedStrategy(
        [f"CPU:{i}" for i in range(8)], min_bytes=0, devices_per_replica=2, layout={"kernel": (None, "model")}
    ),
}


class Lookup:
    """A table and a product, trained on the few rows of a batch.

    Args:
      strategy: whose replicas train.
    """

    def __init__(self, strategy: jd.Strategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.table, self.kernel = jd.Variable(TABLE, name="table"), jd.Variable(KERNEL, name="kernel")
            self.optimizer = jd.Optimizer(optax.adam(0.1), [self.table, self.kernel])

    def train(self, ids: Any) -> Any:
        """One replica's step."""

        def loss() -> Any:
            rows = jnp.tanh(jnp.asarray(self.table)[ids] @ jnp.asarray(self.kernel))
            return jd.nn.compute_average_loss((rows**2).sum(-1), global_batch_size=8)

        value, gradients = jd.value_and_grad(loss, [self.table, self.kernel])()
        self.optimizer.apply_gradients(gradients)
        return value

    def read(self, ids: Any) -> Any:
        """A sum for which a replica without examples reads neither variable, and one with two reads one twice."""
        if not ids.shape[0]:
            return jnp.zeros(())
        total = self.table.read_value()[ids].sum() + self.kernel.read_value()[0, 0] * ids.shape[0]
        return total + 0 * self.table.read_value().sum() if ids.shape[0] > 1 else total

    def run(self, step: Callable[[Any], Any]) -> list[float]:
        """The sums over the replicas, batch by batch."""

        @jd.function
        def whole(batch: Any) -> Any:
            return self.strategy.reduce("SUM", self.strategy.run(step, (batch,)), axis=None)

        return [float(whole(batch)) for batch in self.strategy.experimental_distribute_dataset(BATCHES)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_training_stays_compiled_and_is_one_devices(name: str, caplog: pytest.LogCaptureFixture) -> None:
    one, several = Lookup(one_device(1)), Lookup(STRATEGIES[name]())
    np.testing.assert_allclose(several.run(several.train), one.run(one.train), rtol=1e-5)
    np.testing.assert_allclose(several.table.numpy(), one.table.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(several.kernel.numpy(), one.kernel.numpy(), rtol=1e-5, atol=1e-6)
    assert "uncompiled" not in caplog.text


@pytest.mark.parametrize("name", STRATEGIES)
def test_variables_that_only_some_replicas_read(name: str, caplog: pytest.LogCaptureFixture) -> None:
    several = Lookup(STRATEGIES[name]())
    expected = [TABLE[ids].sum() + KERNEL[0, 0] * len(ids) for ids in BATCHES]
    np.testing.assert_allclose(several.run(several.read), expected, rtol=1e-5)
    assert "uncompiled" not in caplog.text
