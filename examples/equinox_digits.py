"""Equinox: a module's arrays become variables; in a step the module is combined from their values.

python examples/equinox_digits.py --strategy fully-sharded --devices 4
"""

import sys

import common
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from common import Arrays, Sums

import jaxtribute as jd


class Training:
    """The module's arrays as variables, and a step that every strategy runs."""

    def __init__(self, strategy: jd.Strategy) -> None:
        self.strategy = strategy
        model = eqx.nn.MLP(64, 10, width_size=128, depth=1, activation=jax.nn.silu, key=jax.random.key(0))
        arrays, self.static = eqx.partition(model, eqx.is_inexact_array)
        with strategy.scope():
            self.params = jax.tree.map(jd.Variable, arrays)
            self.optimizer = jd.Optimizer(optax.adam(2e-3), self.params)
        self.state = {"params": self.params, "optimizer": self.optimizer}

    @jd.function
    def step(self, batch: Arrays) -> Sums:
        """Trains on a batch; returns sums over all of its images."""
        return self.strategy.reduce("SUM", self.strategy.run(self.replica_step, batch), axis=0)

    @jd.function
    def test(self, batch: Arrays) -> Sums:
        """Measures a batch; returns sums over all of its images."""
        return self.strategy.reduce("SUM", self.strategy.run(self.measure, batch), axis=0)

    def replica_step(self, images: jax.Array, labels: jax.Array) -> Sums:
        """One replica's part of a step."""

        def loss() -> tuple[jax.Array, Sums]:
            sums = self.measure(images, labels)
            return jd.nn.compute_average_loss(sums["losses"], global_batch_size=common.BATCH), sums

        (_, sums), gradients = jd.value_and_grad(loss, self.params, has_aux=True)()
        self.optimizer.apply_gradients(gradients)
        return sums

    def measure(self, images: jax.Array, labels: jax.Array) -> Sums:
        """Loss and hit of each image, by the module with the variables' present values."""
        model = eqx.combine(jax.tree.map(jnp.asarray, self.params), self.static)
        return common.measured(jax.vmap(model)(images), labels)


if __name__ == "__main__":
    sys.exit(common.main(__doc__, Training))
