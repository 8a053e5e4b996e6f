"""A script's step on this machine: predicted from its parts, and measured as a whole."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from jaxtribute.errors import ArgumentError
from jaxtribute.input.splitting import slice_size
from jaxtribute.planning.cost import StepCost
from jaxtribute.planning.kinds import Device
from jaxtribute.planning.machine import run_module
from jaxtribute.planning.prediction import Measured

_SCRIPT = "jaxtribute.planning.script"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured with so many devices.

    Attributes:
      devices: how many, in all processes.
      rows: examples on each.
      compute: seconds in which all devices, each by itself, compute a step of so many examples.
      collectives: seconds of a step's collectives, without anything else.
      processes: how many processes have the devices.
    """

    devices: int
    rows: int
    compute: float
    collectives: float
    processes: int = 1

    @property
    def step(self) -> float:
        """What a step is predicted to take."""
        return self.compute + self.collectives


@dataclass(frozen=True, slots=True)
class Comparison:
    """A step on some devices of this machine.

    Attributes:
      measurement: its parts, measured one by one; together they are the prediction.
      measured: seconds of the whole step, measured.
    """

    measurement: Measurement
    measured: float

    @property
    def error(self) -> float:
        """How far the prediction is off, relative to what was measured; above 0 where it is too high."""
        return self.measurement.step / self.measured - 1

    def as_dict(self) -> dict[str, Any]:
        """The comparison as values that JSON can hold."""
        parts = asdict(self.measurement) | {"predicted": self.measurement.step}
        return parts | {"measured": self.measured, "error": self.error}


def with_devices(arguments: Sequence[str], devices: int) -> list[str]:
    """The script's arguments with the number of devices where `{devices}` stands."""
    return [argument.replace("{devices}", str(devices)) for argument in arguments]


def script_cost(script: Path, arguments: Sequence[str], devices: int = 2, workers: int = 1) -> StepCost:
    """What a script's step costs, found out in a process of its own with so many devices, or in several processes.

    Raises:
      ArgumentError: there is no such script.
      ProcessFailedError: it fails, or makes no step; with what it printed.
    """
    if not script.is_file():
        raise ArgumentError(f"there is no script {str(script)!r}. HINT: give a Python program, or what --save wrote.")
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "cost.json")
        run_module(_SCRIPT, ["cost", str(out), str(script), *with_devices(arguments, devices)], devices, workers)
        return StepCost.load(out)


def calibrate(script: Path, arguments: Sequence[str], counts: Sequence[int]) -> tuple[StepCost, list[Comparison]]:
    """Predicts and measures a script's step for each number of devices of this machine.

    Computing is measured with every device by itself, collectives without computing; the prediction is their sum.
    Prediction and measurement alternate, so that a machine that slows down does so for both.

    Raises:
      ArgumentError: there is no such script.
      ProcessFailedError: it fails, or fixes its number of devices; with what it printed.
    """
    cost = script_cost(script, arguments, max(counts))
    found: list[Comparison] = []
    for count in counts:
        parts = measure(script, arguments, cost, count)
        whole = run_module(_SCRIPT, ["time", "-", str(script), *with_devices(arguments, count)], count)
        found.append(Comparison(parts, whole["seconds"]))
    return cost, found


def measure(script: Path, arguments: Sequence[str], cost: StepCost, devices: int) -> Measurement:
    """Measures, in a process of its own, a step's computing and its collectives on some devices of this machine.

    Raises:
      ProcessFailedError: the script fails, or fixes its number of devices; with what it printed.
    """
    rows = slice_size(cost.batch, devices)
    wanted = [[one.kind, list(one.parts)] for one in cost.exchanged()] if devices > 1 else []
    with tempfile.TemporaryDirectory() as directory:
        request = Path(directory, "request.json")
        request.write_text(json.dumps({"devices": devices, "rows": rows, "collectives": wanted}))
        answer = run_module(_SCRIPT, ["parts", str(request), str(script), *with_devices(arguments, devices)], devices)
    return Measurement(devices, rows, answer["compute"], answer["collectives"])


def calibrate_processes(script: Path, arguments: Sequence[str], workers: int) -> Comparison:
    """Predicts and measures a script's step on several processes of this machine, with one device each.

    Between processes a step may make other collectives than within one.

    Raises:
      ArgumentError: the script trains in each process by itself.
      ProcessFailedError: it fails; with what it printed.
    """
    cost, given = script_cost(script, arguments, 1, workers), with_devices(arguments, 1)
    if cost.replicas != workers:
        raise ArgumentError(
            f"{script} trains {cost.replicas} replica(s) in each of {workers} processes by itself. HINT: use "
            "MultiWorkerMirroredStrategy, which joins the cluster, and is a MirroredStrategy where there is none."
        )
    rows = slice_size(cost.batch, workers)
    wanted = [[one.kind, list(one.parts)] for one in cost.exchanged()]
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(workers) as pool:
        alone, together = Path(directory, "alone.json"), Path(directory, "together.json")
        alone.write_text(json.dumps({"devices": 1, "rows": rows, "collectives": []}))
        together.write_text(json.dumps({"collectives": wanted}))
        answers = pool.map(lambda _: run_module(_SCRIPT, ["parts", str(alone), str(script), *given], 1), range(workers))
        compute = max(answer["compute"] for answer in answers)
        exchange = run_module(_SCRIPT, ["exchange", str(together), str(script)], 1, workers)["collectives"]
    whole = run_module(_SCRIPT, ["time", "-", str(script), *given], 1, workers)
    return Comparison(Measurement(workers, rows, compute, exchange, workers), whole["seconds"])


def interpolated(comparisons: Sequence[Comparison]) -> Measured:
    """What computing takes on one device for any number of examples, from the measurements that were made alone.

    Only those of devices that share nothing are to be used: accelerators, not logical CPU devices.
    """
    points = sorted((one.measurement.rows, one.measurement.compute) for one in comparisons)
    rows, seconds = [float(row) for row, _ in points], [second for _, second in points]

    def measured(wanted: int) -> float:
        if wanted > rows[-1]:
            return seconds[-1] * wanted / rows[-1]
        return float(np.interp(wanted, rows, seconds))

    return measured


def is_here(device: Device) -> bool:
    """Whether this machine's devices are of that kind, so that what was measured on them holds for it."""
    found = jax.devices()[0].device_kind.lower().replace(" ", "-")
    return device.name in found


def table(comparisons: Sequence[Comparison]) -> Table:
    """Predictions beside measurements."""
    result = Table(title="On this machine", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in (
        "devices",
        "processes",
        "examples on each",
        "compute",
        "collectives",
        "predicted",
        "measured",
        "error",
    ):
        result.add_column(heading, justify="right")
    for one in comparisons:
        parts = one.measurement
        times = [f"{seconds * 1e3:.3f} ms" for seconds in (parts.compute, parts.collectives, parts.step, one.measured)]
        result.add_row(str(parts.devices), str(parts.processes), f"{parts.rows:,}", *times, f"{one.error:+.0%}")
    return result
