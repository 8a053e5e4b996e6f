"""A training on several workers into which one fault is put; a worker tells what it cost in a line `COST seconds FROM
moment TO moment`.

    jaxtribute launch --workers 2 --run DIR tests/support/live_program.py FAULT FOLDER [SECONDS]

The fault is `none`, or one of the last worker: `input`, `slow`, `stuck`, `save`, `kill`.
"""

import os
import signal
import subprocess
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
from jaxtribute._src.core.checkpoint import committing

FAULT, FOLDER = sys.argv[1], Path(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 5.0
UNITS, BATCH = 256, 64
BEFORE, DURING, AFTER = 300, 100, 300

strategy = jd.MultiWorkerMirroredStrategy()
faulty = jax.process_index() == jax.process_count() - 1
again = int(os.environ.get("JAXTRIBUTE_RESTART", "0")) > 0


def batches(context: jd.InputContext) -> Iterator[Any]:
    """Batches without end, of which one may come late."""
    generator = np.random.default_rng(context.input_pipeline_id)
    rows = BATCH // context.num_input_pipelines
    images = generator.normal(size=(rows, UNITS)).astype("float32")
    count = 0
    while True:
        count += 1
        if FAULT == "input" and faulty and count == BEFORE:
            lose(SECONDS)
        yield images, images[:, :1]


def tell(cost: float, begin: float) -> None:
    """Tells what a fault has cost that began at a moment of `time.time` and is over."""
    print(f"COST {cost} FROM {begin} TO {time.time()}", flush=True)


def lose(seconds: float) -> None:
    """Sleeps, and tells for how long it was."""
    start = time.time()
    time.sleep(seconds)
    tell(time.time() - start, start)


def stop_for_a_while() -> None:
    """Stops this process, which another one lets go on."""
    start = time.time()
    with subprocess.Popen(["sh", "-c", f"sleep {SECONDS}; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)
    tell(time.time() - start, start)


with strategy.scope():
    kernel = jd.Variable(jnp.full((UNITS, UNITS), 0.01), name="kernel")
    head = jd.Variable(jnp.full((UNITS, 1), 0.01), name="head")
    optimizer = jd.Optimizer(optax.sgd(1e-4), [kernel, head])


def update(images: jax.Array, targets: jax.Array) -> jax.Array:
    """One replica's part of a step."""

    def loss() -> jax.Array:
        return jd.nn.compute_average_loss(
            ((jnp.tanh(images @ kernel) @ head - targets)[:, 0]) ** 2, global_batch_size=BATCH
        )

    value, gradients = jd.value_and_grad(loss, [kernel, head])()
    optimizer.apply_gradients(gradients)
    return value


@jd.function
def train_step(batch: Any) -> jax.Array:
    """One step."""
    return strategy.reduce("SUM", strategy.run(update, args=batch), axis=None)


def train(steps: int, pause_s: float = 0.0) -> None:
    """Trains, with a pause of the last worker after each step."""
    slept, begin = 0.0, time.time()
    for number in range(steps):
        loss = train_step(next(iterator))
        if pause_s and faulty:
            start = time.monotonic()
            time.sleep(pause_s)
            slept += time.monotonic() - start
        if number % 10 == 0:
            writer.write(loss=loss)
    if slept:
        tell(slept, begin)


iterator = iter(
    strategy.distribute_datasets_from_function(batches, jd.InputOptions(experimental_per_replica_buffer_size=0))
)
checkpoint = jd.Checkpoint(kernel=kernel, head=head)
writer = jd.summary.Writer(FOLDER / "figures", trackers=["jsonl"])
if again:
    checkpoint.restore(FOLDER / "checkpoint")
train(BEFORE)
if FAULT == "slow":
    train(DURING, SECONDS / DURING)
elif FAULT == "stuck" and faulty:
    stop_for_a_while()
elif FAULT == "save":
    write = committing.Save._write  # pyright: ignore[reportPrivateUsage]

    def write_slowly(self: Any) -> None:
        """Writes as onto a disk that is slow."""
        if faulty:
            lose(SECONDS)
        write(self)

    setattr(committing.Save, "_write", write_slowly)  # noqa: B010
    checkpoint.write(FOLDER / "slow", block=True)
elif FAULT == "kill" and not again:
    checkpoint.write(FOLDER / "checkpoint", block=True)
    start = time.time()
    while not (faulty and time.time() - start > SECONDS):  # the others are ended by the launcher
        train(10)
    if faulty:
        tell(time.time() - start, start)
        os.kill(os.getpid(), signal.SIGKILL)
train(AFTER)
writer.close()
