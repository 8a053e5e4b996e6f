"""Plain JAX and Optax: parameters in a nest, the model a function of them.

python examples/plain_jax.py --strategy mirrored --devices 4
python examples/plain_jax.py --strategy one-device mirrored fully-sharded central-storage
python examples/plain_jax.py --checkpoint /tmp/digits        interrupt it, and run it again
"""

import sys

import common
import jax
import jax.numpy as jnp
import optax
from common import Arrays, Sums

import jaxtribute as jd


def init(key: jax.Array) -> dict[str, jax.Array]:
    """Parameters of a perceptron of 64, 128 and 10 units."""
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, 128)) * (2 / 64) ** 0.5,
        "b1": jnp.zeros(128),
        "w2": jax.random.normal(second, (128, 10)) * (2 / 128) ** 0.5,
        "b2": jnp.zeros(10),
    }


def apply(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    """Logits of shape (images, 10) for pixels of shape (images, 64)."""
    hidden = jax.nn.silu(images @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


class Training:
    """The parameters as variables, and a step that every strategy runs."""

    def __init__(self, strategy: jd.Strategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.params = jax.tree.map(jd.Variable, init(jax.random.key(0)))
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
        """Loss and hit of each image; a nest of variables is a nest of arrays to JAX."""
        params = jax.tree.map(jnp.asarray, self.params)
        return common.measured(apply(params, images), labels)


if __name__ == "__main__":
    sys.exit(common.main(__doc__, Training))
