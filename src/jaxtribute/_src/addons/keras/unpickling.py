"""Unpickles objects of Keras in another process, which may not have imported Keras yet."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import cloudpickle

from jaxtribute._src.addons.parameter_servers.scheduling import pickling
from jaxtribute.extending import Context
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.keras.server_steps import Runner


def received(blob: bytes) -> Any:
    """Unpickles the coordinator's Keras objects on a worker, whose own Keras learns about strategies first."""
    _choose_backend()
    # As the entering of a scope does: the objects that are unpickled are then of the classes that know strategies.
    Context.announce()
    import keras as keras

    return pickling.loads(blob)


def runner(blob: bytes) -> Any:
    """A model's steps on a worker, out of the model and its optimizer."""
    model, optimizer = pickling.loads(blob)
    from jaxtribute._src.addons.keras.server_steps import Runner

    return Runner(model, optimizer, pickling.home().strategy)


def run_steps(steps: Runner, kind: str, dataset: Iterable[Nest], turn: int, number: int) -> Any:
    """Runs some steps of a `runner` on a pass over this worker's dataset; scheduled by a coordinator."""
    # Kept between calls: a closure runs some steps of a pass, and the next one on this worker goes on with it.
    batches = steps.batches(kind, dataset, turn)
    logs: Any = {}
    for _ in range(number):
        logs = steps.run(kind, [next(batches)])
    return logs


def rebuilt(blob: bytes) -> Any:
    """An object out of its pickled type and attributes, on a server."""
    _choose_backend()
    kind, attributes = cloudpickle.loads(blob)
    found = object.__new__(kind)
    found.__dict__.update(attributes)
    return found


def _choose_backend() -> None:
    # A worker is a process of its own, which has not seen what the program has set before its import of Keras.
    os.environ.setdefault("KERAS_BACKEND", "jax")
