"""Memory and time of training steps, whole and within half of what their backward passes keep.

    python -m benchmarks.budget [--quick] [--accelerator] [--json FILE]

`scratch` is what the compiled program takes for values within a step, on each device, beside state and arguments.
"""

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
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "one device": lambda: jd.OneDeviceStrategy("cpu:0"),
    "mirrored on 2": lambda: jd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "one accelerator": lambda: jd.OneDeviceStrategy(jax.devices()[0]),
}
Weights = dict[str, Any]
Shape = tuple[int, ...]
Model = tuple[Callable[[Weights, jax.Array], jax.Array], dict[str, Shape], int, Shape]


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


def _layer(hidden: jax.Array, weights: Weights) -> jax.Array:
    normed = _normed(hidden)
    heads = (*hidden.shape[:2], HEADS, WIDTH // HEADS)
    q, k, v = ((normed @ weights[name]).reshape(heads) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("blhd,bmhd->bhlm", q, k), axis=-1)
    hidden = hidden + jnp.einsum("bhlm,bmhd->blhd", scores, v).reshape(hidden.shape) @ weights["o"]
    return hidden + jax.nn.gelu(_normed(hidden) @ weights["up"]) @ weights["down"]


def scanned_gpt(values: Weights, x: jax.Array) -> jax.Array:
    """Equal layers in a scan."""
    return jax.lax.scan(lambda h, w: (_layer(h, w), None), x, values)[0]


def unrolled_gpt(values: Weights, x: jax.Array) -> jax.Array:
    """The same layers one by one."""
    for i in range(len(values["q"])):
        x = _layer(x, {name: value[i] for name, value in values.items()})
    return x


def perceptron(values: Weights, x: jax.Array) -> jax.Array:
    """Many dense layers with a shortcut around each."""
    for i in range(len(values["w"])):
        x = x + jax.nn.gelu(x @ values["w"][i])
    return x


def convolutional(values: Weights, x: jax.Array) -> jax.Array:
    """Convolutions of 3 x 3 with a shortcut around each."""
    for i in range(len(values["w"])):
        x = x + jax.nn.relu(jax.lax.conv_general_dilated(x, values["w"][i], (1, 1), "SAME", dimension_numbers=_IMAGES))
    return x


_IMAGES = "NHWC", "HWIO", "NHWC"
_GPT = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
MODELS: dict[str, Model] = {
    "GPT, scanned": (scanned_gpt, _GPT, 6, (8, LENGTH, WIDTH)),
    "GPT, unrolled": (unrolled_gpt, _GPT, 6, (8, LENGTH, WIDTH)),
    "perceptron": (perceptron, {"w": (256, 256)}, 16, (4096, 256)),
    "convolutional": (convolutional, {"w": (3, 3, 16, 16)}, 8, (32, 32, 32, 16)),
}
"""Models: their layers, shapes of the weights of each, how many there are, and the shape of a batch."""


def made(name: str, strategy: jd.Strategy, memory: int, times: int) -> tuple[Callable[[], Any], Looking]:
    """A step, its first call made, and what was seen of it."""
    apply, shapes, layers, (examples, *rest) = MODELS[name]
    batch = (times * examples, *rest)
    random = np.random.default_rng(0)
    looking = Looking()
    with strategy.scope():
        weights = {
            key: jd.Variable(random.normal(0, 0.05, (layers, *shape)).astype(np.float32), name=key)
            for key, shape in shapes.items()
        }
        optimizer = jd.Optimizer(optax.adam(1e-3), weights)
    dataset = strategy.experimental_make_numpy_dataset(random.normal(size=batch).astype(np.float32)).batch(batch[0])
    x = next(iter(strategy.experimental_distribute_dataset(dataset)))

    def replica_step(x: jax.Array) -> jax.Array:
        def loss() -> jax.Array:
            values = {key: variable.read_value() for key, variable in weights.items()}
            return jnp.mean((apply(values, x) - x) ** 2)

        value, grads = jd.value_and_grad(loss, weights, memory=memory)()
        optimizer.apply_gradients(grads, reduce_op="MEAN")
        return value

    @jd.function
    def step() -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_step, (x,)), axis=None)

    with observe(looking, "budget", "dispatch"):
        step()
    return step, looking


def compared(name: str, place: str, steps: int) -> dict[str, Any]:
    """Figures of both steps, which take turns."""
    on_cpu = place != "one accelerator"
    strategy, larger, clock = STRATEGIES[place](), 1 if on_cpu else 32, time.process_time if on_cpu else time.monotonic
    whole, seen = made(name, strategy, 1 << 50, larger)
    half, less = made(name, strategy, seen.choice.everything // 2, larger)
    times: tuple[list[float], list[float]] = ([], [])
    worst = 0.0
    for _ in range(steps):
        losses: list[float] = []
        for step, taken in zip((whole, half), times, strict=True):
            start = clock()
            losses.append(float(step()))
            taken.append(clock() - start)
        worst = max(worst, abs(losses[0] - losses[1]) / abs(losses[0]))
    predicted = seen.choice.peak - less.choice.peak
    return {
        "model": name,
        "strategy": place,
        "scratch": seen.scratch,
        "scratch_within_half": less.scratch,
        "predicted_fall": predicted,
        "scratch_over_predicted": (seen.scratch - less.scratch) / predicted,
        "time": statistics.median(times[1]) / statistics.median(times[0]),
        "worst_loss": worst,
        "steps": steps,
    }


def main() -> None:
    """Prints the figures, and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps of one model")
    parser.add_argument("--accelerator", action="store_true", help="on the accelerator, with 32 times the examples")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    jd.config.set_logical_cpu_devices(2)
    places = [place for place in STRATEGIES if (place == "one accelerator") == options.accelerator]
    cases = [(name, place) for name in MODELS for place in places]
    rows: list[dict[str, Any]] = []
    for name, place in cases[:1] if options.quick else cases:
        rows.append(compared(name, place, 2 if options.quick else 50))
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
