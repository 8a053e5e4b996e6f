"""Trains to a given number of examples, synchronously or on islands that meet now and then, and tells the loss.

    python benchmarks/peers/outer_steps.py FOLDER --problem gpt --steps 400 --every 20 --outer 0.7,0.9 --rate 0.003

Without `--every` it trains alone, by whole batches. Islands tell their processes and steps in `FOLDER/island-RANK`,
and the first one the loss in `FOLDER/loss`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

BATCHES = {"digits": 128, "gpt": 16}
WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 2, 48
EVALUATED = 256
Losses = Any
"""Of a batch's arrays and the parameters: the loss of each example."""


def digits(seed: int) -> tuple[list[Any], Losses, Any, Iterator[tuple[Any, ...]]]:
    """A perceptron on handwritten digits: parameters, losses, what the loss is told of, and batches."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    x, y = (found.data / 16).astype(np.float32)[:1536], found.target.astype(np.int32)[:1536]
    chance = np.random.default_rng(seed)
    shapes = (64, 128), (128,), (128, 10), (10,)
    scales = 0.2, 0.0, 0.1, 0.0
    params = [chance.normal(scale=s, size=shape).astype(np.float32) for s, shape in zip(scales, shapes, strict=True)]

    def losses(params: Any, x: Any, y: Any) -> Any:
        a, b, c, d = params
        return optax.softmax_cross_entropy_with_integer_labels(jax.nn.relu(x @ a + b) @ c + d, y)

    def batches() -> Iterator[tuple[Any, ...]]:
        while True:
            order, size = chance.permutation(len(x)), BATCHES["digits"]
            yield from ((x[order[i : i + size]], y[order[i : i + size]]) for i in range(0, len(x), size))

    return params, losses, (x, y), batches()


def gpt(seed: int) -> tuple[list[Any], Losses, Any, Iterator[tuple[Any, ...]]]:
    """A GPT on the characters of some of Python's modules; the loss is told of the last tenth of them."""
    folder = Path(argparse.__file__).parent
    text = b"".join((folder / f"{name}.py").read_bytes() for name in ("argparse", "ast", "inspect", "typing"))
    known, tokens = np.unique(np.frombuffer(text, np.uint8), return_inverse=True)
    tokens, last = tokens.astype(np.int32), int(len(tokens) * 0.9)
    chance = np.random.default_rng(seed)
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)] * LAYERS
    shapes += [(len(known), WIDTH), (LENGTH, WIDTH)]
    params = [0.02 * chance.normal(size=shape).astype(np.float32) for shape in shapes]

    def normed(hidden: Any) -> Any:
        return hidden * jax.lax.rsqrt(jnp.mean(hidden * hidden, -1, keepdims=True) + 1e-5)

    def losses(params: Any, rows: Any) -> Any:
        *layers, table, places = params
        hidden = table[rows[:, :-1]] + places
        for projections, mixed, up, down in zip(*(layers[i::4] for i in range(4)), strict=True):
            each = (normed(hidden) @ projections).reshape(*hidden.shape[:2], 3, HEADS, WIDTH // HEADS)
            attended = jax.nn.dot_product_attention(*(each[:, :, i] for i in range(3)), is_causal=True)
            hidden += attended.reshape(hidden.shape) @ mixed
            hidden += jax.nn.gelu(normed(hidden) @ up) @ down
        logits = normed(hidden) @ table.T
        return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean(-1)

    def windows(starts: Any) -> Any:
        return tokens[starts[:, None] + np.arange(LENGTH + 1)]

    def batches() -> Iterator[tuple[Any, ...]]:
        while True:
            yield (windows(chance.integers(0, last - LENGTH - 1, BATCHES["gpt"])),)

    evaluated = np.random.default_rng(99).integers(last, len(tokens) - LENGTH - 1, EVALUATED)
    return params, losses, (windows(evaluated),), batches()


def strategy_of(options: argparse.Namespace) -> jd.Strategy:
    """The strategy that is asked for."""
    if not options.every:
        return jd.OneDeviceStrategy("CPU:0")
    rate, momentum = options.outer
    outer = optax.sgd(rate, momentum=momentum, nesterov=True) if momentum else optax.sgd(rate)
    return jd.experimental.ElasticStrategy(sync_every=options.every, outer_optimizer=outer)


def main() -> None:
    """Trains, and writes the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problem", choices=BATCHES, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--outer", type=lambda text: tuple(map(float, text.split(","))), default=(1.0, 0.0))
    parser.add_argument("--rate", type=float, default=0.002)
    parser.add_argument("--pace", type=float, default=0.0)
    options = parser.parse_args()
    strategy = strategy_of(options)
    initial, losses, evaluated, batches = {"digits": digits, "gpt": gpt}[options.problem](options.seed)
    with strategy.scope():
        params = [jd.Variable(value, name=f"w{place}") for place, value in enumerate(initial)]
        optimizer = jd.Optimizer(optax.adam(options.rate), params)

    def replica(*batch: Any) -> None:
        _, gradients = jd.value_and_grad(lambda: losses([p.read_value() for p in params], *batch).mean(), params)()
        optimizer.apply_gradients(zip(gradients, params, strict=True), reduce_op="MEAN")

    step = jd.function(lambda batch: strategy.run(replica, batch))
    rank = strategy.island if isinstance(strategy, jd.experimental.ElasticStrategy) else 0
    data = (batch for batch, _ in zip(batches, range(options.steps), strict=False))
    with (options.folder / f"island-{rank}").open("a", buffering=1) as file:
        for number, batch in enumerate(strategy.experimental_distribute_dataset(data)):
            step(batch)
            file.write(f"{os.getpid()} {number} {time.time()} 0\n")
            time.sleep(options.pace)
    if isinstance(strategy, jd.experimental.ElasticStrategy):
        strategy.synchronize()
    if rank == 0:
        loss = float(losses([jnp.asarray(p.read_value()) for p in params], *evaluated).mean())
        (options.folder / "loss").write_text(str(loss))


if __name__ == "__main__":
    main()
