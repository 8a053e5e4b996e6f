"""Trains a perceptron on batches of uneven sizes, on islands that may be killed at any moment.

    python elastic_program.py FOLDER STEPS

Each island tells in `FOLDER/island-RANK` its process and each step that it has finished, and when; at its end it writes
what it has learned, and how often it has seen each example, to `FOLDER/result-RANK.npz`. After each step it rests for
PACE seconds, of the environment. Before its last steps it waits until so many islands are there as AWAIT says.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

PACE_S = float(os.environ.get("PACE", "0"))
AWAIT = int(os.environ.get("AWAIT", "0"))
LAST, DEADLINE_S = 50, 120.0
SIZES = (8, 5, 1)
"""Examples of the batches in turn: some islands get fewer than others, and some none."""
Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]


def batches(steps: int) -> list[Batch]:
    """Inputs, targets and numbers of the examples of each step."""
    chance, made, first = np.random.default_rng(3), list[Batch](), 0
    for step in range(steps):
        size = SIZES[step % len(SIZES)]
        x = chance.normal(size=(size, 4)).astype(np.float32)
        made.append((x, np.sin(x.sum(1)), np.arange(first, first + size, dtype=np.int32)))
        first += size
    return made


def initial() -> dict[str, np.ndarray[Any, Any]]:
    """Parameters before the first step."""
    chance = np.random.default_rng(1)
    return {
        "hidden": chance.normal(scale=0.5, size=(4, 16)).astype(np.float32),
        "output": chance.normal(scale=0.5, size=16).astype(np.float32),
    }


def loss_of(hidden: Any, output: Any, x: Any, y: Any, total: Any) -> Any:
    """An island's part of the mean loss of a batch."""
    return jnp.sum((jnp.tanh(x @ hidden) @ output - y) ** 2) / total


def expected(steps: int) -> dict[str, np.ndarray[Any, Any]]:
    """What plain Optax learns on one device."""
    parameters: Any = initial()
    optimizer = optax.adam(1e-2)
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(lambda p: loss_of(p["hidden"], p["output"], x, y, len(x)))(parameters)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state

    # Optax mixes types, which the tests' own setting of JAX refuses.
    with jax.numpy_dtype_promotion("standard"):
        for x, y, _ in batches(steps):
            parameters, state = step(parameters, state, x, y)
    return {name: np.asarray(value) for name, value in parameters.items()}


def told(strategy: Any, folder: Path, data: list[Batch]) -> Iterator[tuple[int, Any]]:
    """The batches; says after each what this island has come to."""
    with (folder / f"island-{strategy.island}").open("a", buffering=1) as file:
        for number, batch in enumerate(strategy.experimental_distribute_dataset(data)):
            end = time.monotonic() + DEADLINE_S
            # One that joins is waited for, and does not wait itself: it is given its steps.
            joins = strategy.extended.islands_mesh.islands.newcomer is not None
            while number == len(data) - LAST and len(strategy.islands) < AWAIT and not joins:
                assert time.monotonic() < end, f"{strategy.islands} are there"
                time.sleep(0.01)
            yield number, batch
            file.write(f"{os.getpid()} {number} {time.time()} {strategy.view}\n")
            if strategy.extended.islands_mesh.islands.newcomer is None:
                time.sleep(PACE_S)


def main(folder: Path, steps: int) -> None:
    strategy = jd.experimental.ElasticStrategy(silent_s=float(os.environ.get("SILENT_S", "5")), timeout_s=60.0)
    data = batches(steps)
    with strategy.scope():
        model = [jd.Variable(value, name=name) for name, value in initial().items()]
        examples = sum(len(ids) for _, _, ids in data)
        seen = jd.Variable(jnp.zeros(examples, jnp.int32), aggregation=jd.VariableAggregation.SUM, name="seen")
        optimizer = jd.Optimizer(optax.adam(1e-2), model)

    def replica(x: Any, y: Any, ids: Any, total: Any) -> None:
        hidden, output = model
        _, gradients = jd.value_and_grad(
            lambda: loss_of(hidden.read_value(), output.read_value(), x, y, total), model
        )()
        optimizer.apply_gradients(zip(gradients, model, strict=True))
        seen.assign_add(jnp.zeros(examples, jnp.int32).at[ids].add(1))

    @jd.function
    def step(batch: Any, total: Any) -> None:
        strategy.run(replica, (*batch, total))

    islands = strategy.islands
    for number, batch in told(strategy, folder, data):
        before = strategy.islands
        step(batch, jnp.float32(len(data[number][2])))
        # Behind the last step others may have ended before this one asks; one that joins is in it from the step on.
        islands = max(before, strategy.islands, key=len)
    learned: dict[str, Any] = dict(zip(initial(), map(np.asarray, model), strict=True))
    # Whole at once: the file is there when it is complete.
    scratch = folder / f"scratch-{strategy.island}.npz"
    np.savez(scratch, seen=np.asarray(seen), islands=islands, **learned)
    scratch.rename(folder / f"result-{strategy.island}.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
