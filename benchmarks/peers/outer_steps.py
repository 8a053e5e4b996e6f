"""Trains to a given number of examples, synchronously or on islands that meet now and then, and tells the loss.

    python benchmarks/peers/outer_steps.py FOLDER --problem gpt --steps 400 --warm 100 --every 20 --rate 0.03

Without `--every` it trains alone, by whole batches; with `--warm` so many steps before the islands part. The learning
rate falls to zero over all steps. Islands tell their processes and steps in `FOLDER/island-RANK`, and the first one in
`FOLDER/loss` the loss of examples that it has not trained on.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

BATCHES = {"digits": 128, "gpt": 32}
WIDTH, HEADS, LAYERS, LENGTH = 32, 4, 2, 32
TRAINED = 1280
"""Of 1,797 digits; the others are evaluated."""
READ, EVALUATED = 30_000, 512
"""Characters that the GPT is trained on, and sequences that it is evaluated on."""
Losses = Any
"""Of a batch's arrays and the parameters: the loss of each example."""


def digits(seed: int) -> tuple[list[Any], Losses, Any, Iterator[tuple[Any, ...]]]:
    """A perceptron on handwritten digits: parameters, losses, what the loss is told of, and batches."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    order = np.random.default_rng(99).permutation(len(found.data))
    inputs, labels = (found.data / 16).astype(np.float32)[order], found.target.astype(np.int32)[order]
    x, y = inputs[:TRAINED], labels[:TRAINED]
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

    return params, losses, (inputs[TRAINED:], labels[TRAINED:]), batches()


def gpt(seed: int) -> tuple[list[Any], Losses, Any, Iterator[tuple[Any, ...]]]:
    """A GPT on the characters of a module of Python's; the loss is told of what follows those."""
    text = Path(argparse.__file__).read_bytes()[: READ + READ // 2]
    known, tokens = np.unique(np.frombuffer(text, np.uint8), return_inverse=True)
    tokens = tokens.astype(np.int32)
    chance = np.random.default_rng(seed)
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)] * LAYERS
    shapes += [(len(known), WIDTH), (LENGTH, WIDTH)]
    scales = [rows**-0.5 for rows, _ in shapes[:-2]] + [0.02, 0.02]
    params = [chance.normal(scale=s, size=shape).astype(np.float32) for s, shape in zip(scales, shapes, strict=True)]

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
            yield (windows(chance.integers(0, READ - LENGTH - 1, BATCHES["gpt"])),)

    evaluated = np.random.default_rng(99).integers(READ, len(tokens) - LENGTH - 1, EVALUATED)
    return params, losses, (windows(evaluated),), batches()


def strategy_of(options: argparse.Namespace) -> jd.Strategy:
    """The strategy that is asked for."""
    if not options.every:
        return jd.OneDeviceStrategy("CPU:0")
    rate, momentum = options.outer
    outer = optax.sgd(rate, momentum=momentum, nesterov=True) if momentum else optax.sgd(rate)
    hints = jd.experimental.CommunicationOptions(wire=options.wire, error_feedback=options.feedback)
    return jd.experimental.ElasticStrategy(
        sync_every=options.every,
        overlap_steps=options.overlap,
        fragments=options.fragments,
        outer_optimizer=outer,
        communication_options=hints,
    )


def rule_of(options: argparse.Namespace) -> optax.GradientTransformation:
    """The inner optimizer."""
    rate = optax.warmup_cosine_decay_schedule(0.0, options.rate, options.ramp, options.steps)
    if options.inner == "muon":
        return optax.contrib.muon(rate)
    return optax.adamw(rate, weight_decay=options.decay)


class Training:
    """Parameters and an optimizer under a strategy.

    Args:
      strategy: the strategy.
      values: of the parameters.
      losses: of a batch's arrays and the parameters.
      rule: the optimizer.
      slots: of the optimizer, as another training has left them.
    """

    def __init__(
        self,
        strategy: jd.Strategy,
        values: Sequence[Any],
        losses: Losses,
        rule: optax.GradientTransformation,
        slots: Sequence[Any] = (),
    ) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.params = [jd.Variable(value, name=f"w{place}") for place, value in enumerate(values)]
            self.optimizer = jd.Optimizer(rule, self.params)
            for variable, value in zip(self.optimizer.variables, slots, strict=False):
                variable.assign(value)

        def replica(*batch: Any) -> None:
            loss = lambda: losses([each.read_value() for each in self.params], *batch).mean()  # noqa: E731
            _, gradients = jd.value_and_grad(loss, self.params)()
            self.optimizer.apply_gradients(zip(gradients, self.params, strict=True), reduce_op="MEAN")

        self._step = jd.function(lambda batch: strategy.run(replica, batch))

    def train(self, batches: Iterable[Any], told: Callable[[int], object] = bool) -> None:
        """Takes a step for each batch, and tells its number afterwards."""
        for number, batch in enumerate(self.strategy.experimental_distribute_dataset(batches)):
            self._step(batch)
            told(number)

    def values(self) -> list[Any]:
        """The values of the parameters."""
        return [np.asarray(each.read_value()) for each in self.params]


def main() -> None:
    """Trains, and writes the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problem", choices=BATCHES, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200, help="of all; the rate falls to zero meanwhile")
    parser.add_argument("--warm", type=int, default=0, help="steps before islands part")
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--overlap", type=int, default=0, help="steps that changes travel")
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--wire", help="the type in which changes travel")
    parser.add_argument("--feedback", action="store_true", help="sends later what rounding has lost")
    parser.add_argument("--outer", type=lambda text: tuple(map(float, text.split(","))), default=(1.0, 0.0))
    parser.add_argument("--inner", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--rate", type=float, default=0.002)
    parser.add_argument("--ramp", type=int, default=0, help="steps in which the rate rises")
    parser.add_argument("--decay", type=float, default=0.0, help="of weights, under AdamW")
    parser.add_argument("--pace", type=float, default=0.0)
    options = parser.parse_args()
    strategy, rule = strategy_of(options), rule_of(options)
    values, losses, evaluated, batches = {"digits": digits, "gpt": gpt}[options.problem](options.seed)
    slots: list[Any] = []
    if options.warm:
        alone = Training(jd.OneDeviceStrategy("CPU:0"), values, losses, rule)
        alone.train(itertools.islice(batches, options.warm))
        values, slots = alone.values(), [np.asarray(each.read_value()) for each in alone.optimizer.variables]
    training = Training(strategy, values, losses, rule, slots)
    islands, rank = None, 0
    if isinstance(strategy, jd.experimental.ElasticStrategy):
        islands, rank = strategy._islands, strategy.island  # pyright: ignore[reportPrivateUsage]
    with (options.folder / f"island-{rank}").open("a", buffering=1) as file:

        def told(number: int) -> None:
            # One that is started again is given what it has missed, and does not dawdle meanwhile.
            if islands is None or islands.newcomer is None:
                file.write(f"{os.getpid()} {number} {time.time()} 0\n")
                time.sleep(options.pace)

        training.train(itertools.islice(batches, options.steps - options.warm), told)
    if isinstance(strategy, jd.experimental.ElasticStrategy):
        strategy.synchronize()
    if rank == 0:
        loss = float(losses([jnp.asarray(value) for value in training.values()], *evaluated).mean())
        (options.folder / "loss").write_text(str(loss))


if __name__ == "__main__":
    main()
