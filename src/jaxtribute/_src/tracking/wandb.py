"""Weights & Biases. Needs the extra `jaxtribute[wandb]`; `WANDB_MODE=offline` and its other variables hold."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np

from jaxtribute._src.types import Foreign, HostArray, Json


class WeightsAndBiases:
    """A run of Weights & Biases.

    Args:
      directory: where its files go; the project has the name that `WANDB_PROJECT` gives, else the folder's.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._wandb: Foreign = import_module("wandb")
        self._run: Foreign = self._wandb.init(dir=str(directory), reinit="create_new")

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Logs the numbers of a step."""
        self._run.log(dict(values), step=step)

    def histogram(self, name: str, values: HostArray, step: int, time_s: float) -> None:
        """Logs a `wandb.Histogram`."""
        finite = values[np.isfinite(values)]
        if len(finite):
            self._run.log({name: self._wandb.Histogram(finite)}, step=step)

    def text(self, name: str, text: str, step: int, time_s: float) -> None:
        """Logs a table of one cell, as the service has no texts of their own."""
        self._run.log({name: self._wandb.Table(columns=["text"], data=[[text]])}, step=step)

    def configure(self, settings: Mapping[str, Json]) -> None:
        """Sets the run's configuration."""
        self._run.config.update(dict(settings), allow_val_change=True)

    def flush(self) -> None:
        """Does nothing: a process of the library's own sends."""

    def close(self) -> None:
        """Finishes the run."""
        self._run.finish()


def make(directory: Path) -> WeightsAndBiases:
    """The tracker of a folder."""
    return WeightsAndBiases(directory)
