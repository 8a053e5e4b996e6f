"""Trains on all workers, as slowly as it is told, and does to itself what a file orders: the soak's synchronous part.

    python training.py FOLDER

A worker looks at `FOLDER/orders/RANK` before each step; it removes the file and does what stands there. No step passes
the number in `FOLDER/gate`. The first worker writes what was learned, and how often each example was seen in each
epoch, to `FOLDER/result.npz`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

STEPS, EVERY, PAUSE_S = 48, 3, 0.04
"""Steps in all, between two checkpoints, and how long each takes at least."""
EXAMPLES, BATCH = 24, 8
EPOCHS = STEPS * BATCH // EXAMPLES


def no_room() -> None:
    """Lets every file that grows beyond a few bytes fail to be written, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))


def killed_in_the_next_rename(at: int) -> None:
    """Ends this process where it gives a file or folder its name."""
    rename, count = Path.rename, [0]

    def kill(path: Path, target: Any) -> Path:
        count[0] += 1
        if count[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(path, target)

    Path.rename = kill


def clock(seconds: float) -> None:
    """Sets this process's clock."""
    now = time.time
    time.time = lambda: now() + seconds


def silent() -> None:
    """Lets this worker give no more signs of life."""
    with jd.testing.inject(jd.testing.drop_heartbeats(at="soak", restart=None)):
        jd.testing.point("soak")


def odd_output() -> None:
    """Writes what is no text, and much of it."""
    os.write(1, b"\xff\xfe\x00\x1b[2J\r" * 5000 + b"x" * 100_000 + b"\n")


def child() -> None:
    """Leaves a process behind."""
    if not os.fork():
        time.sleep(3600)
        os._exit(0)


def fail() -> None:
    raise RuntimeError("os.fsdecode gives such: " + os.fsdecode(b"caf\xe9"))


def fail_in_a_thread() -> None:
    threading.Thread(target=fail).start()


def no_descriptors() -> None:
    """Lets this process open no more files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


ORDERS: dict[str, Callable[[], object]] = {
    "exits with 3": lambda: os._exit(3),
    "exits with 0": lambda: os._exit(0),
    "sys.exit": lambda: sys.exit(5),
    "segmentation fault": lambda: ctypes.string_at(0),
    "aborts": os.abort,
    "raises": fail,
    "a thread of it raises": fail_in_a_thread,
    "hangs": lambda: time.sleep(3600),
    "is slow": lambda: time.sleep(3),
    "falls silent": silent,
    "clock goes an hour ahead": lambda: clock(3600),
    "clock goes an hour back": lambda: clock(-3600),
    "disk is full": no_room,
    "no more files can be opened": no_descriptors,
    "killed before its first rename": lambda: killed_in_the_next_rename(1),
    "killed before its second rename": lambda: killed_in_the_next_rename(2),
    "prints what is no text": odd_output,
    "leaves a child": child,
}


class Orders:
    """What this worker is told from outside, between steps."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file, self._gate = folder / "orders" / str(rank), folder / "gate"

    def before(self, step: int) -> None:
        """Waits until a step may be done, and does what is ordered."""
        time.sleep(PAUSE_S)
        while True:
            if self._file.exists():
                order = self._file.read_text()
                self._file.unlink()
                print(f"does as ordered: {order}", flush=True)
                ORDERS[order]()
            if int(self._gate.read_text() or 0) > step:
                return
            time.sleep(0.02)


def main(folder: Path) -> None:
    strategy = jd.MultiWorkerMirroredStrategy()
    rank = strategy.cluster_resolver.task_id
    orders = Orders(folder, rank)
    rng = np.random.default_rng(0)
    with strategy.scope():
        w = jd.Variable(rng.normal(size=(6, 4)).astype(np.float32), name="w")
        seen = jd.Variable(
            np.zeros((EPOCHS, EXAMPLES), np.int32),
            name="seen",
            aggregation=jd.VariableAggregation.SUM,
            trainable=False,
        )
        count = jd.Variable(0, name="count", aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA, trainable=False)
    optimizer = jd.Optimizer(optax.adam(1e-2), [w])
    rows = (rng.normal(size=(EXAMPLES, 6)).astype(np.float32), np.arange(EXAMPLES, dtype=np.int32))
    dataset = strategy.experimental_make_numpy_dataset(rows).shuffle(seed=7).batch(BATCH).repeat(EPOCHS)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    def replica(x: Any, ids: Any) -> None:
        def loss() -> Any:
            losses = jnp.tanh(x @ w.read_value()).sum(-1)
            return jd.nn.compute_average_loss(losses, global_batch_size=BATCH)

        _, gradients = jd.value_and_grad(loss, [w])()
        optimizer.apply_gradients(gradients)
        epoch = count.read_value() // (EXAMPLES // BATCH)
        seen.assign_add(jnp.zeros((EPOCHS, EXAMPLES), jnp.int32).at[epoch, ids].add(1))
        count.assign_add(jnp.int32(1))

    train = jd.function(lambda batch: strategy.run(replica, batch))
    checkpoint = jd.Checkpoint(w=w, optimizer=optimizer, seen=seen, steps=count, data=iterator)
    manager = jd.CheckpointManager(checkpoint, folder / "checkpoints", max_to_keep=2)
    handler = jd.experimental.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)
    print(f"pid {os.getpid()} starts at {handler.total_run_calls}", flush=True)
    with handler.watch_preemption_scope():
        while handler.total_run_calls < STEPS:
            orders.before(handler.total_run_calls)
            handler.run(train, next(iterator))
            if rank == 0:
                print(f"step {handler.total_run_calls}", flush=True)
            if handler.total_run_calls % EVERY == 0:
                manager.save()
    manager.close()
    if rank == 0:
        arrays: dict[str, Any] = {v.name: np.asarray(v.read_value()) for v in (w, seen, count, *optimizer.variables)}
        np.savez(folder / "result.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
