"""All suites by name: those that compare steps, and modules that measure in a way of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import (
    allreduce,
    elastic,
    first_epoch,
    islands,
    keras_fit,
    ledger,
    live,
    network,
    overhead,
    scaling,
    startup,
    suites,
)
from benchmarks.comparison import Comparison
from benchmarks.environments import python_of
from benchmarks.harness import ROOT

DEADLINE_S = 3600.0
Compare = Callable[[bool], list[Comparison]]


@dataclass(frozen=True)
class Module:
    """A benchmark with a command line of its own.

    Attributes:
      name: of the suite and of the module.
      what: what it measures.
      arguments: its command line.
      quick: what is added to see only that it runs.
      json: the option that takes the file for its figures; where it has none, what it prints is kept.
      tensorflow: the option that takes an interpreter with TensorFlow.
    """

    name: str
    what: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--quick",)
    json: str | None = "--json"
    tensorflow: str | None = None

    @property
    def module(self) -> str:
        """What Python runs."""
        return f"benchmarks.{self.name}"

    def run(self, quick: bool) -> Any:
        """Runs it, shows what it prints, and returns its figures or else its output as lines.

        Raises:
          RuntimeError: it ended with an error.
        """
        command = [sys.executable, "-m", self.module, *self.arguments, *(self.quick if quick else ())]
        if self.tensorflow:
            command += [self.tensorflow, python_of("tensorflow")]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "figures.json"
            if self.json:
                command += [self.json, str(file)]
            done = subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S)
            print(done.stdout, flush=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
            return json.loads(file.read_text()) if file.exists() else done.stdout.splitlines()


COMPARED: dict[str, Compare] = {
    "dispatch": suites.dispatch,
    "digits": suites.digits,
    "large": suites.large,
    "conv": suites.conv,
    "transformer": suites.transformer,
    "packing": suites.packing,
    "workers": suites.workers,
    "causes": suites.causes,
    "network": network.suite,
    "allreduce": allreduce.suite,
    "elastic": elastic.suite,
    "islands": islands.suite,
    "startup": startup.suite,
    "overhead": overhead.suite,
    "scaling": scaling.suite,
    "ledger": ledger.suite,
    "live": live.suite,
    "memory": suites.memory,
    "keras_fit": keras_fit.suite,
    "first_epoch": first_epoch.suite,
}

_MODULES = (
    Module("run_steps", "several steps a call"),
    Module("budget", "a step within half of the memory that its backward pass keeps"),
    Module("input", "distributing 50,000 images to 4 replicas", quick=("--rounds", "1"), tensorflow="--tensorflow"),
    Module(
        "lockstep",
        "eager strategy.run",
        quick=("--seconds", "0.3"),
        json=None,
        tensorflow="--tensorflow-python",
    ),
    Module("threads", "steps of several threads that share variables"),
    Module("ragged", "an epoch with a ragged last batch", quick=("--rounds", "3"), json=None),
    Module("central_storage", "central storage against mirrored", quick=("--rounds", "2"), json=None),
    Module("predicted", "steps as `jaxtribute plan` predicts them, beside what is measured", ("--times", "1")),
    Module("sharded_memory", "memory a device of fully sharded training"),
    Module("checkpoint", "what a save costs a training"),
    Module("automatic_layout", "bytes that the automatic layout moves, beside the best of all layouts"),
    Module("embeddings", "tables over 2 processes against TorchRec and dense gradients; Adam; ten times the rows"),
    Module("launch", "start-up of local workers, and the loss for each shape of a cluster"),
    Module("launcher_output", "100 MB of a rank's output beside a plain pipe, and a job that nobody reads"),
    Module("parameter_server", "training with parameter servers", tensorflow="--tensorflow"),
    Module(
        "parameter_server_network", "the same on two machines with 1 Gbit/s between them", tensorflow="--tensorflow"
    ),
    Module("faults", "failures of a worker: how soon, and whether the right one is named", ("--trials", "3")),
)
MODULES = {one.name: one for one in _MODULES if find_spec(one.module) is not None}


def names() -> list[str]:
    """Every suite."""
    return [*COMPARED, *MODULES]


def described(name: str) -> str:
    """One line on a suite."""
    return MODULES[name].what if name in MODULES else (COMPARED[name].__doc__ or "").split("\n")[0]
