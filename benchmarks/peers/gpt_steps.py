"""A step of `examples/gpt.py` on one device by the library and by hand, and the device's memory at its peak.

python -m benchmarks.peers.gpt_steps --contender hand --size 125m
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import gpt

from benchmarks.harness import serve
from benchmarks.peers.arguments import timed

RATE = 3e-4


class Plain:
    """Stands in the example's model where it has variables: a parameter that a function is about to read."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def read_value(self) -> Any:
        """The parameter."""
        return self.value

    def __radd__(self, other: Any) -> Any:
        return other + self.value


class ByHand(gpt.Model):
    """The example's model of plain arrays, on one device."""

    def _matrix(self, name: str, *shape: int) -> Any:
        return self._kept(0.02 * jax.random.normal(jax.random.key(len(self.variables)), shape))

    def _ones(self, name: str, *shape: int) -> Any:
        return self._kept(jnp.ones(shape))

    def _kept(self, value: Any) -> Any:
        made: Any = Plain(value)
        self.variables.append(made)
        return made

    def _divided(self, values: jax.Array, dimension: int) -> jax.Array:
        return values


def by_hand(size: gpt.Size, tokens: Any) -> Callable[[], Any]:
    """The step as a JAX user writes it."""
    model, transform = ByHand(size, scanned=True), optax.adam(RATE)
    held: list[Any] = list(model.variables)

    def loss(params: list[Any], tokens: jax.Array) -> jax.Array:
        for one, value in zip(held, params, strict=True):
            one.value = value
        return model.losses(tokens).mean()

    def update(params: list[Any], slots: Any, tokens: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, slots = transform.update(grads, slots, params)
        return optax.apply_updates(params, updates), slots, value

    params = [one.value for one in held]
    state: list[Any] = [params, transform.init(params)]
    compiled, tokens = jax.jit(update, donate_argnums=(0, 1)), jnp.asarray(tokens)

    def step() -> Any:
        *state[:], value = compiled(*state, tokens)
        return value

    return step


def by_jaxtribute(size: gpt.Size, tokens: Any) -> Callable[[], Any]:
    """The step of the example."""
    strategy = jd.MirroredStrategy()
    with strategy.scope():
        model = gpt.Model(size, scanned=True)
        optimizer = jd.Optimizer(optax.adam(RATE), model.variables)

    def update(tokens: jax.Array) -> jax.Array:
        def loss() -> jax.Array:
            return jd.nn.compute_average_loss(model.losses(tokens).mean(axis=-1), global_batch_size=size.examples)

        value, gradients = jd.value_and_grad(loss, model.variables)()
        optimizer.apply_gradients(gradients)
        return value

    @jd.function
    def step(tokens: Any) -> jax.Array:
        return strategy.reduce("SUM", strategy.run(update, args=(tokens,)), axis=None)

    (batch,) = strategy.experimental_distribute_dataset([tokens])
    return lambda: step(batch)


def peak(_: int) -> tuple[float, float]:
    """The most bytes that the device has held; NaN where it tells none."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return float(stats.get("peak_bytes_in_use", "nan")), 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--contender", choices=("hand", "jaxtribute"))
    parser.add_argument("--size", choices=gpt.SIZES, default="small")
    asked = parser.parse_args()
    size = gpt.SIZES[asked.size]
    tokens = np.random.default_rng(0).integers(0, size.vocabulary, (size.examples, size.length + 1)).astype(np.int32)
    made = (by_hand if asked.contender == "hand" else by_jaxtribute)(size, tokens)
    serve({asked.contender: timed(made, float), "peak": peak})
