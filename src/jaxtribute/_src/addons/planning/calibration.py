"""A script's step on this machine: predicted from its parts, and measured as a whole."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from jaxtribute._src.addons.planning.cost import StepCost
from jaxtribute._src.addons.planning.kinds import Device
from jaxtribute._src.addons.planning.prediction import Measured
from jaxtribute._src.addons.planning.probes import Parts
from jaxtribute._src.addons.tools import tables
from jaxtribute._src.addons.tools.user_scripts import run_module, with_devices
from jaxtribute.errors import ArgumentError, JaxtributeError
from jaxtribute.extending import slice_sizes

_SCRIPT = "jaxtribute._src.addons.planning.script"
_DEVICES = 2
"""Logical devices on which a script is looked at: with two, it has what replicas exchange."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A step on some devices of this machine.

    Attributes:
      devices: how many, in all processes.
      rows: examples on each.
      parts: what its parts take, each measured by itself; their sum is the prediction.
      measured: seconds of the whole step, measured.
      processes: how many processes have the devices.
    """

    devices: int
    rows: int
    parts: Parts
    measured: float
    processes: int = 1

    @property
    def predicted(self) -> float:
        """Seconds that a step is predicted to take."""
        return self.parts.compute + self.parts.collectives

    @property
    def error(self) -> float:
        """Relative error of the prediction against the measurement; above 0 if the prediction is too high."""
        return self.predicted / self.measured - 1

    def as_dict(self) -> dict[str, Any]:
        """The comparison as values that JSON can hold."""
        found = asdict(self)
        return found | found.pop("parts") | {"predicted": self.predicted, "error": self.error}


def script_cost(script: Path, arguments: Sequence[str], *, shapes: bool = False, most: int = 0) -> StepCost:
    """Measures a script's step in a process of its own with two logical CPU devices.

    Args:
      script: a Python program that trains.
      arguments: its arguments.
      shapes: True to give variables shapes and no memory: a model may be larger than the machine, and what needs the
        value of a variable before the first step is an error.
      most: the global batch that predictions are asked for; 0 for the script's.

    Raises:
      ArgumentError: there is no such script.
      ProcessFailedError: it fails, or makes no step; with what it printed.
    """
    _check(script)
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "cost.json")
        what = "shapes" if shapes else "cost"

        def looked_at(count: int) -> StepCost:
            given = [what, str(out), str(most), str(script), *with_devices(arguments, count)]
            run_module(_SCRIPT, given, count, script=script)
            return StepCost.load(out)

        cost = looked_at(_DEVICES)
        if cost.replicas == 1:
            return cost
        # A program of several replicas holds what they exchange, which one of a single replica does not.
        try:
            alone = looked_at(cost.per_replica)
        except JaxtributeError:
            return cost  # the script names devices, of which there are too few then
        return replace(cost, alone=alone, mixes=cost.mixes or alone.mixes) if alone.replicas == 1 else cost


def _check(script: Path) -> None:
    if not script.is_file():
        raise ArgumentError(f"there is no script {str(script)!r}. HINT: give a Python program, or what --save wrote.")


def calibrate(script: Path, arguments: Sequence[str], counts: Sequence[int]) -> tuple[StepCost, list[Comparison]]:
    """Predicts and measures a script's step for each number of devices of this machine.

    The parts of a step and the step itself are measured in turns, so that a machine that slows down does so for both.

    Returns:
      What the step costs, as the largest number of devices shows it, and a comparison for each number.

    Raises:
      ArgumentError: there is no such script, or it does not take the devices that there are.
      ProcessFailedError: it fails; with what it printed.
    """
    _check(script)
    with tempfile.TemporaryDirectory() as directory:
        # The cost of the largest number only: a program on one device has no collectives to look at.
        largest, out = max(counts), Path(directory, "cost.json")
        found: list[Comparison] = []
        for count in dict.fromkeys(counts):
            cost = str(out) if count == largest else "-"
            found.append(_compare(script, arguments, count, 1, cost))
        return StepCost.load(out), found


def calibrate_processes(script: Path, arguments: Sequence[str], workers: int) -> Comparison:
    """Predicts and measures a script's step on several processes of this machine, with one device each.

    Raises:
      ArgumentError: the script trains in each process by itself.
      ProcessFailedError: it fails; with what it printed.
    """
    return _compare(script, arguments, 1, workers, "-")


def _compare(script: Path, arguments: Sequence[str], each: int, workers: int, cost: str) -> Comparison:
    given, devices = with_devices(arguments, each), each * workers
    # In processes of their own: the number of logical devices is fixed once JAX has started.
    answer = run_module(_SCRIPT, ["measure", cost, "0", str(script), *given], each, workers, script=script)
    # The measurement ends the script; one that ends before has not been measured.
    if not answer:
        raise ArgumentError(f"{script} ended within two steps. HINT: let it train for longer; it is stopped.")
    if answer["replicas"] != devices:
        raise ArgumentError(
            f"{script} makes {answer['replicas']} replica(s) where {workers} process(es) of {each} device(s) were "
            "offered. HINT: let its strategy take the devices that there are: MirroredStrategy() without a list, or "
            "MultiWorkerMirroredStrategy, which joins the cluster, and is a MirroredStrategy where there is none."
        )
    rows = slice_sizes(max(answer["batch"], 1), devices)[0]
    return Comparison(devices, rows, Parts(**answer["parts"]), answer["step"], workers)


def interpolated(comparisons: Sequence[Comparison]) -> Measured:
    """Computing time on one device for any number of examples, from the measurements that were made alone.

    Only those of devices that share nothing are to be used: accelerators, not logical CPU devices.
    """
    # By rising numbers of examples, as `np.interp` needs them.
    points = np.array(sorted((one.rows, one.parts.compute) for one in comparisons), float)
    rows, seconds = points.T.tolist()

    def measured(wanted: int) -> float:
        # Beyond what was measured the time grows with the examples; below, the smallest measurement stands for what any
        # program costs.
        if wanted > rows[-1]:
            return seconds[-1] * wanted / rows[-1]
        return float(np.interp(wanted, rows, seconds))

    return measured


def is_here(device: Device) -> bool:
    """True if this machine's devices are of that kind, so that what was measured on them holds for it."""
    found = jax.devices()[0].device_kind.lower().replace(" ", "-")
    return device.name in found


def table(comparisons: Sequence[Comparison]) -> Table:
    """Predictions beside measurements."""
    headings = "devices,processes,examples on each,launch,products,passes,collectives,predicted,measured,error"
    result = tables.table("On this machine", headings.split(","), wrap=True)
    for one in comparisons:
        taken = (one.parts.launch, one.parts.products, one.parts.passes, one.parts.collectives)
        times = [f"{seconds * 1e3:.3f} ms" for seconds in (*taken, one.predicted, one.measured)]
        result.add_row(str(one.devices), str(one.processes), f"{one.rows:,}", *times, f"{one.error:+.0%}")
    return result
