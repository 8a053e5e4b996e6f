"""Compiles a script for slices of several sizes, in a process of its own, which `plan` starts.

The first argument is a JSON object: `topology`, `most` devices of the table, `batch` and `weak` as `plan` has them, and
`seconds` after which no further size is begun. The script and its arguments follow. The last line of output is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax

from jaxtribute._src.addons.compiling import report
from jaxtribute._src.addons.compiling.step import DoesNotFitError
from jaxtribute._src.addons.compiling.targets import compile_script
from jaxtribute._src.addons.compiling.topologies import Topology, ladder, topology_named
from jaxtribute._src.addons.planning.inspection import Step
from jaxtribute._src.addons.tools.waiting import telling


def main(settings: str, script: str, *arguments: str) -> None:
    """Compiles the size that is asked for, then the others, and answers on standard output."""
    asked: dict[str, Any] = json.loads(settings)
    begun = time.perf_counter()
    mine = topology_named(asked["topology"])
    rows: list[int] = []

    def examples(step: Step) -> int | None:
        """Examples on each replica."""
        if asked["batch"]:
            return -(-asked["batch"] // (1 if asked["weak"] else step.replicas))
        # The size that was asked for is compiled first; what a replica gets there, it gets at all sizes.
        own = max(step.batch // step.replicas, 1)
        rows.append(own)
        return rows[0] if asked["weak"] else None

    def compiled(target: Topology) -> dict[str, Any]:
        try:
            with telling(f"compiling for {target.name}"):
                return report.as_dict(compile_script(Path(script), arguments, target, examples))
        except DoesNotFitError as error:
            short = "does not fit"
            return {"topology": target.name, "devices": len(target.devices), "refusal": str(error), "short": short}
        finally:
            # Programs for thousands of devices, kept one beside the other, would fill the memory.
            jax.clear_caches()

    # The size that was asked for comes first, as time may not suffice for the others.
    found = {mine.name: compiled(mine)}
    names = ladder(mine, asked["most"])
    for name in names:
        if name not in found and time.perf_counter() - begun < asked["seconds"]:
            found[name] = compiled(topology_named(name))
    curve = [found[name] for name in names if name in found]
    missing = [name for name in names if name not in found]
    answer = {"compiled": found[mine.name], "curve": curve, "left_out": missing}
    # The script may have left a line without an end.
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
