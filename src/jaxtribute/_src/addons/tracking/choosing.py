"""Trackers by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from jaxtribute._src.addons.tracking.protocol import Tracker
from jaxtribute._src.addons.tracking.sending import Sender
from jaxtribute.errors import ArgumentError, ArgumentTypeError, MissingLibraryError
from jaxtribute.extending import settings

TRACK = "JAXTRIBUTE_TRACK"
"""Names of trackers between commas, which every `jd.summary.Writer` then has too."""
_LIBRARIES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow", "csv": "", "jsonl": ""}
"""The library that each needs."""
_CLASSES = {
    "tensorboard": ("tensorboard", "EventFile"),
    "wandb": ("services", "WeightsAndBiases"),
    "mlflow": ("services", "MLflow"),
    "csv": ("plain_files", "Table"),
    "jsonl": ("plain_files", "JsonLines"),
}
"""The module and the name of each class, which is made with the folder of the figures."""


def check_name(name: str) -> None:
    """Refuses what is no tracker's name, or needs a library that is not there.

    Raises:
      ArgumentError: there is no such tracker.
      MissingLibraryError: its library is not installed.
    """
    if name not in _LIBRARIES:
        raise ArgumentError(f"there is no tracker {name!r}. HINT: name one of {', '.join(_LIBRARIES)}.")
    library = _LIBRARIES[name]
    if library and find_spec(library) is None:
        raise MissingLibraryError(
            f"tracking with {name!r} needs {library}, not installed. HINT: pip install -e '.[{name}]' in a clone."
        )


def chosen(trackers: Sequence[str | Tracker]) -> list[str | Tracker]:
    """The trackers that were asked for, here and by `JAXTRIBUTE_TRACK`, each name once.

    Raises:
      ArgumentError: there is no tracker of a name.
      ArgumentTypeError: an object is neither a name nor a tracker.
      MissingLibraryError: the library of one is not installed.
    """
    found: list[str | Tracker] = []
    for one in (*trackers, *told()):
        if isinstance(one, str):
            check_name(one)
        elif not isinstance(one, Tracker):
            raise ArgumentTypeError(
                f"{one!r} of type {type(one).__name__} is no tracker. HINT: give a name ({', '.join(_LIBRARIES)}), or "
                "an object with the methods of jd.summary.Tracker."
            )
        # The program and the environment may name the same one.
        if one not in found:
            found.append(one)
    return found


def told() -> list[str]:
    """The names of trackers that the environment has.

    Raises:
      ArgumentError: there is no tracker of a name.
      MissingLibraryError: the library of one is not installed.
    """
    asked = list(filter(None, map(str.strip, os.environ.get(TRACK, "").split(","))))
    for name in asked:
        check_name(name)
    return asked


settings.reader(TRACK, told)


def sender(tracker: str | Tracker, directory: Path) -> Sender:
    """A thread that calls a tracker, which is made in it if it is a name."""
    if isinstance(tracker, str):
        module, name = _CLASSES[tracker]
        make: Callable[[], Tracker] = partial(
            getattr(import_module(f"jaxtribute._src.addons.tracking.{module}"), name), directory
        )
        return Sender(tracker, make)
    return Sender(type(tracker).__name__, lambda: tracker)
