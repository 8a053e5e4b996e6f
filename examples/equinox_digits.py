"""Equinox: a module with its optimizer as one `jd.Model`.

python examples/equinox_digits.py --strategy fully-sharded --devices 4
"""

import sys

import common
import equinox as eqx
import jax
import optax
from common import Arrays, Sums

import jaxtribute as jd


class Training:
    """The module with its optimizer, and a step that every strategy runs."""

    def __init__(self, strategy: jd.Strategy) -> None:
        self.strategy = strategy
        model = eqx.nn.MLP(64, 10, width_size=128, depth=1, activation=jax.nn.silu, key=jax.random.key(0))
        with strategy.scope():
            self.model = self.state = jd.Model(model, optax.adam(2e-3))

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
        return self.model.minimize(self.loss, images, labels, has_aux=True)[1]

    def loss(self, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, Sums]:
        """The replica's part of the mean loss, and what it measured."""
        sums = self.measure(images, labels)
        return jd.nn.compute_average_loss(sums["losses"], global_batch_size=common.BATCH), sums

    def measure(self, images: jax.Array, labels: jax.Array) -> Sums:
        """Loss and hit of each image."""
        return common.measured(jax.vmap(self.model)(images), labels)


if __name__ == "__main__":
    sys.exit(common.main(__doc__, Training))
