"""Figures sent to services that keep the runs of a project: MLflow, and Weights & Biases."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np

from jaxtribute._src.addons.tracking.protocol import counted
from jaxtribute.typing import Foreign, HostArray, Json

_EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_LOCAL = "MLFLOW_ALLOW_FILE_STORE"
_LONGEST = 6000
"""Letters of a parameter's value."""
_AT_ONCE, _AT_ONCE_S = 500, 1.0
"""Numbers that are sent in one call, and the seconds for which they are gathered: a call takes milliseconds."""


class MLflow:
    """A run of MLflow, through its client: the library's own current run, if the program has one, is left alone.

    Needs the extra `jaxtribute[mlflow]`; `MLFLOW_TRACKING_URI` and its other variables hold.

    Args:
      directory: where a local store goes, in `mlruns`, if `MLFLOW_TRACKING_URI` names no server.
    """

    def __init__(self, directory: Path) -> None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            os.environ.setdefault(_LOCAL, "true")  # a store of plain files has to be asked for in new versions
        mlflow: Foreign = import_module("mlflow")
        self._entities: Foreign = import_module("mlflow.entities")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (directory / "mlruns").absolute().as_uri()
        self._client: Foreign = mlflow.MlflowClient(uri)
        name = os.environ.get(_EXPERIMENT, "Default")
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self._metrics: list[Foreign] = []
        self._sent = time.monotonic()
        self._run: str = self._client.create_run(experiment, run_name=directory.name).info.run_id

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Logs the numbers of a step, with those of others."""
        moment = int(time_s * 1000)
        self._metrics += [self._entities.Metric(name, value, moment, step) for name, value in values.items()]
        if len(self._metrics) >= _AT_ONCE or time.monotonic() - self._sent > _AT_ONCE_S:
            self.flush()

    def histogram(self, name: str, values: HostArray, step: int, time_s: float) -> None:
        """Logs counts and edges of 30 equal bins as a file of JSON, as the service has no histograms of its own."""
        found = {**counted(values), "step": step, "time": time_s}
        self._client.log_dict(self._run, found, f"histograms/{name}/{step}.json")

    def text(self, name: str, text: str, step: int, time_s: float) -> None:
        """Logs a file."""
        self._client.log_text(self._run, text, f"texts/{name}/{step}.txt")

    def configure(self, settings: Mapping[str, Json]) -> None:
        """Logs the settings as parameters."""
        params = [self._entities.Param(name, str(value)[:_LONGEST]) for name, value in settings.items()]
        self._client.log_batch(self._run, params=params)

    def flush(self) -> None:
        """Sends the numbers that were gathered."""
        metrics, self._metrics = self._metrics, []
        for first in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[first : first + _AT_ONCE])
        self._sent = time.monotonic()

    def close(self) -> None:
        """Ends the run."""
        self.flush()
        self._client.set_terminated(self._run)


class WeightsAndBiases:
    """A run of Weights & Biases.

    Needs the extra `jaxtribute[wandb]`; `WANDB_MODE=offline` and its other variables hold.

    Args:
      directory: where its files go; the project has the name that `WANDB_PROJECT` gives, else the folder's.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._wandb: Foreign = import_module("wandb")
        # A run of its own beside one that the program may have begun.
        self._run: Foreign = self._wandb.init(dir=str(directory), reinit="create_new")

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Logs the numbers of a step."""
        self._run.log(dict(values), step=step)

    def histogram(self, name: str, values: HostArray, step: int, time_s: float) -> None:
        """Logs a `wandb.Histogram`."""
        # The service has no bins for what is not finite, and raises.
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
