"""Asks for the best ways to train a script; a process of its own searches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtribute._src.addons.compiling.topologies import ENVIRONMENT
from jaxtribute._src.addons.fitting.candidates import Outcome, ranked
from jaxtribute._src.addons.fitting.places import devices_in, missing_compiler
from jaxtribute._src.addons.fitting.search import MOST
from jaxtribute._src.addons.tools.user_scripts import run_module
from jaxtribute.errors import ArgumentError

SECONDS = 480.0
"""Seconds after which no further program is begun, unless it is asked for otherwise."""
SEARCHING = "JAXTRIBUTE_SEARCHING"
"""Variable of the environment of the process that searches."""
_LAST_S = 900.0
"""Seconds that the last program may take besides."""


@dataclass(frozen=True)
class Fit:
    """The results of a search.

    Attributes:
      answer: its answer, as the process gave it.
      found: the outcomes, in the order in which they were compiled.
    """

    answer: dict[str, Any]
    found: list[Outcome]

    @property
    def ranked(self) -> list[Outcome]:
        """Those that fit, the fastest first; of equal ones the one that needs less memory."""
        return ranked(self.found)

    def save(self, path: Path) -> None:
        """Writes the best one as JSON, for `jd.experimental.Automatic`."""
        path.write_text(json.dumps(self.ranked[0].as_dict()) + "\n", encoding="utf-8")


def fit(
    script: Path,
    arguments: Sequence[str],
    topology: str,
    *,
    budget: int | None = None,
    batch: int | None = None,
    most_batch: int | None = None,
    seconds: float = SECONDS,
    most: int = MOST,
    optimizer: bool = True,
) -> Fit:
    """Searches for the best ways to train a script.

    Args:
      script: a Python program that trains.
      arguments: its arguments.
      topology: the devices, such as `v5e:4x4`.
      budget: bytes of each that may be used; None for all.
      batch: examples of an update; None for the script's.
      most_batch: how many they may become; None for no more.
      seconds: after which no further program is begun.
      most: the most programs that are compiled.
      optimizer: whether the arguments of the script's optimizer may be others.

    Raises:
      ArgumentError: there is no such script, or there are no such devices.
      MissingLibraryError: their compiler is needed, and not installed.
      ProcessFailedError: the script fails.
    """
    if not script.is_file():
        raise ArgumentError(f"there is no script {str(script)!r}. HINT: give the path of a Python program.")
    topology = topology.strip().lower()
    analytic = missing_compiler(topology)
    settings = {"topology": topology, "analytic": analytic, "budget": budget, "batch": batch, "most_batch": most_batch}
    settings |= {"seconds": seconds, "most": most, "optimizer": optimizer}
    answer = run_module(
        "jaxtribute._src.addons.fitting.script",
        [json.dumps(settings), str(script), *arguments],
        devices_in(topology) if analytic else 1,
        script=script,
        settings={"JAX_PLATFORMS": "cpu", SEARCHING: "1", **ENVIRONMENT},
        deadline_s=seconds + _LAST_S,
    )
    return Fit(answer, [Outcome.read(one) for one in answer["found"]])
