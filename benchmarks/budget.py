"""Memory and time of a transformer's training step, whole and within half of what its backward pass keeps."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd
from jaxtribute.experimental import Event, Observer, observe

WIDTH, HEADS, LENGTH = 128, 4, 128


class Looking(Observer):
    """Keeps what was chosen for a budget, and the bytes that the step's compiler says it needs within."""

    def __init__(self) -> None:
        self.choice: Any = None
        self.scratch = 0

    def on_end(self, event: Event) -> None:
        """Keeps it."""
        if event.kind == "budget":
            self.choice = event.result
        elif not self.scratch:
            program: Any = event.subject
            compiled = program.lower(event.arguments[0]).compile()
            self.scratch = compiled.memory_analysis().temp_size_in_bytes


def _normed(hidden: jax.Array) -> jax.Array:
    return hidden * jax.lax.rsqrt(jnp.mean(hidden * hidden, axis=-1, keepdims=True) + 1e-5)


def _layer(hidden: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    normed = _normed(hidden)
    heads = (*hidden.shape[:2], HEADS, WIDTH // HEADS)
    q, k, v = ((normed @ weights[name]).reshape(heads) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("blhd,bmhd->bhlm", q, k), axis=-1)
    hidden = hidden + jnp.einsum("bhlm,bmhd->blhd", scores, v).reshape(hidden.shape) @ weights["o"]
    return hidden + jax.nn.gelu(_normed(hidden) @ weights["up"]) @ weights["down"]


def made(layers: int, examples: int, *, scanned: bool, memory: int) -> tuple[Callable[[], Any], Looking]:
    """A step, its first call made, and what was seen of it."""
    random = np.random.default_rng(0)
    shapes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    looking = Looking()
    with jd.OneDeviceStrategy("cpu:0").scope():
        weights = {
            name: jd.Variable(random.normal(0, 0.05, (layers, *shape)).astype(np.float32), name=name)
            for name, shape in shapes.items()
        }
        optimizer = jd.Optimizer(optax.adam(1e-3), weights)
    x = jnp.asarray(random.normal(size=(examples, LENGTH, WIDTH)).astype(np.float32))

    def loss() -> jax.Array:
        values = {name: variable.read_value() for name, variable in weights.items()}
        hidden = x
        if scanned:
            hidden = jax.lax.scan(lambda h, w: (_layer(h, w), None), hidden, values)[0]
        else:
            for i in range(layers):
                hidden = _layer(hidden, {name: value[i] for name, value in values.items()})
        return jnp.mean((hidden - x) ** 2)

    @jd.function
    def step() -> jax.Array:
        value, grads = jd.value_and_grad(loss, weights, memory=memory)()
        optimizer.apply_gradients(grads)
        return value

    with observe(looking, "budget", "dispatch"):
        step()
    return step, looking


def compared(layers: int, examples: int, steps: int, *, scanned: bool) -> dict[str, Any]:
    """Figures of both steps, which take turns."""
    whole, seen = made(layers, examples, scanned=scanned, memory=1 << 50)
    half, less = made(layers, examples, scanned=scanned, memory=seen.choice.everything // 2)
    times: tuple[list[float], list[float]] = ([], [])
    worst = 0.0
    for _ in range(steps):
        losses: list[float] = []
        for step, taken in zip((whole, half), times, strict=True):
            start = time.process_time()
            losses.append(float(step()))
            taken.append(time.process_time() - start)
        worst = max(worst, abs(losses[0] - losses[1]) / abs(losses[0]))
    predicted = seen.choice.peak - less.choice.peak
    return {
        "layers": "scanned" if scanned else "unrolled",
        "scratch": seen.scratch,
        "scratch_within_half": less.scratch,
        "predicted_fall": predicted,
        "measured_over_predicted": (seen.scratch - less.scratch) / predicted,
        "time": statistics.median(times[1]) / statistics.median(times[0]),
        "worst_loss": worst,
        "steps": steps,
    }


def main() -> None:
    """Prints the figures, and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps of a small model")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    layers, examples, steps = (2, 2, 2) if options.quick else (6, 8, 50)
    rows = [compared(layers, examples, steps, scanned=scanned) for scanned in (True, False)]
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
