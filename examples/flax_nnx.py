"""Flax NNX: a module with its optimizer as one `jd.Model`.

python examples/flax_nnx.py --strategy mirrored --devices 4
"""

import sys

import common
import jax
import optax
from common import Arrays, Sums
from flax import nnx

import jaxtribute as jd


class Classifier(nnx.Module):
    """A perceptron of 64, 128 and 10 units."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.LayerNorm(128, rngs=rngs)
        self.output = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits of shape (images, 10) for pixels of shape (images, 64)."""
        return self.output(nnx.silu(self.norm(self.hidden(images))))


class Training:
    """The module with its optimizer, and a step that every strategy runs."""

    def __init__(self, strategy: jd.Strategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = self.state = jd.Model(Classifier(nnx.Rngs(0)), optax.adam(2e-3))

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
        return common.measured(self.model(images), labels)


if __name__ == "__main__":
    sys.exit(common.main(__doc__, Training))
