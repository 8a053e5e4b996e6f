"""Haiku's way: pure functions; the training state goes into each step and comes out of it. No variables.

    python examples/haiku_style.py --strategy mirrored --devices 4

`init` and `apply` could be those of `haiku.transform(...)` or of a Flax Linen module. The state is placed by the
strategy once; the gradients are reduced by hand.
"""

import sys
from typing import Any

import common
import jax
import jax.numpy as jnp
import optax
from common import Arrays, Sums

import jaxtribute as jd

Params = dict[str, dict[str, jax.Array]]
OPTIMIZER = optax.adam(2e-3)


def init(key: jax.Array) -> Params:
    """Parameters of a perceptron of 64, 128 and 10 units, by module."""
    sizes, keys = {"hidden": (64, 128), "output": (128, 10)}, jax.random.split(key)
    return {
        name: {"w": jax.random.normal(key, shape) * (2 / shape[0]) ** 0.5, "b": jnp.zeros(shape[1])}
        for key, (name, shape) in zip(keys, sizes.items(), strict=True)
    }


def apply(params: Params, images: jax.Array) -> jax.Array:
    """Logits of shape (images, 10) for pixels of shape (images, 64)."""
    hidden = jax.nn.silu(images @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["output"]["w"] + params["output"]["b"]


def replica_step(state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Sums]:
    """One replica's part of a step: the new state, and the loss and hit of each image."""

    def loss(params: Params) -> tuple[jax.Array, Sums]:
        sums = common.measured(apply(params, images), labels)
        return jd.nn.compute_average_loss(sums["losses"], global_batch_size=common.BATCH), sums

    gradients, sums = jax.grad(loss, has_aux=True)(state["params"])
    context = jd.get_replica_context()
    assert context is not None
    gradients = context.all_reduce("SUM", gradients)
    updates, slots = OPTIMIZER.update(gradients, state["slots"])
    return {"params": optax.apply_updates(state["params"], updates), "slots": slots}, sums


class Training:
    """Holds the state between steps."""

    def __init__(self, strategy: jd.Strategy) -> None:
        params = init(jax.random.key(0))
        self.strategy = strategy
        self.state = strategy.place({"params": params, "slots": OPTIMIZER.init(params)})

        def step(state: Any, batch: Arrays) -> tuple[Any, Sums]:
            state, sums = strategy.run(replica_step, (state, *batch))
            return state, strategy.reduce("SUM", sums, axis=0)

        def test(state: Any, batch: Arrays) -> Sums:
            images, labels = batch
            sums = strategy.run(lambda p, x, y: common.measured(apply(p, x), y), (state["params"], images, labels))
            return strategy.reduce("SUM", sums, axis=0)

        self._step, self._test = jd.function(step, donate_argnums=0), jd.function(test)

    def step(self, batch: Arrays) -> Sums:
        """Trains on a batch; returns sums over all of its images."""
        self.state, sums = self._step(self.state, batch)
        return sums

    def test(self, batch: Arrays) -> Sums:
        """Measures a batch; returns sums over all of its images."""
        return self._test(self.state, batch)


if __name__ == "__main__":
    sys.exit(common.main(__doc__, Training))
