"""Unpickles objects of Keras in another process, which may not have imported Keras yet."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import cloudpickle

from jaxtribute._src.parameter_servers.scheduling import pickling
from jaxtribute._src.types import Nest

if TYPE_CHECKING:
    from jaxtribute._src.integrations.keras.server_steps import Runner


def received(blob: bytes) -> Any:
    """Unpickles the coordinator's Keras objects on a worker, whose own Keras learns about strategies first."""
    _choose_backend()
    with pickling.home().strategy.scope():
        import keras as keras

    return pickling.loads(blob)


def runner(blob: bytes) -> Any:
    """A model's steps on a worker, out of the model and its optimizer."""
    model, optimizer = received(blob)
    from jaxtribute._src.integrations.keras.server_steps import Runner

    return Runner(model, optimizer, pickling.home().strategy)


def run_steps(steps: Runner, kind: str, dataset: Iterable[Nest], turn: int, number: int) -> Any:
    """Runs some steps of a `runner` on a pass over this worker's dataset; scheduled by a coordinator."""
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
    os.environ.setdefault("KERAS_BACKEND", "jax")
