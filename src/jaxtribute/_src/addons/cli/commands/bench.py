"""`jaxtribute bench`: how fast collectives, steps, input and checkpoints are on this machine or cluster."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtribute import Strategy

HELP = "measure collectives, step overhead, input and checkpoints on this machine or cluster"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    add = parser.add_argument
    add("--devices", type=int, metavar="N", help="split the CPU into N logical devices, where there is no accelerator")
    add("--only", metavar="PART,...", help="some of collectives, step, input, checkpoint (all)")
    add("--rounds", type=int, default=7, metavar="N", help="turns of each measurement, whose median counts (7)")
    add("--directory", type=Path, metavar="DIR", help="where checkpoints are tried; on a disk that all workers share")
    add("--json", type=Path, metavar="FILE", help="write the numbers there too; - prints them in place of the tables")
    add("--quick", action="store_true", help="few and small sizes, to try it out; the numbers mean little")
    parser.epilog = (
        "On a cluster run it once a process, as any training: jaxtribute launch --workers 2 -m jaxtribute bench. "
        "Ratios are to hand-written JAX on the same devices; bandwidth is what each device must send at least."
    )


def run(arguments: argparse.Namespace) -> int:
    """Measures, and prints on the first worker."""
    from rich.console import Console

    from jaxtribute._src.addons.bench import suite
    from jaxtribute.errors import JaxtributeError

    parts = arguments.only.split(",") if arguments.only else suite.PARTS
    known = ", ".join(suite.PARTS)
    if unknown := set(parts) - set(suite.PARTS):
        sys.stderr.write(f"jaxtribute bench: --only {', '.join(sorted(unknown))}: choose from {known}\n")
        return 2
    try:
        strategy = _strategy(arguments.devices)
        options = {"quick": arguments.quick, "rounds": arguments.rounds, "directory": arguments.directory}
        report = suite.run(strategy, parts, **options)
    except JaxtributeError as error:
        sys.stderr.write(f"jaxtribute bench: {error}\n")
        return 2
    # Every process measures, as all must make the same calls; one of them tells.
    if strategy.extended.mesh.local_ids[0] != 0:
        return 0
    text = json.dumps(report.as_dict(), indent=1) + "\n"
    if str(arguments.json) == "-":
        sys.stdout.write(text)
        return 0
    Console().print(report)
    if arguments.json is not None:
        arguments.json.write_text(text, encoding="utf-8")
    return 0


def _strategy(devices: int | None) -> Strategy:
    """All devices: of the cluster that the environment describes, else of this machine."""
    from jaxtribute import MirroredStrategy, MultiWorkerMirroredStrategy, config

    # Their number is fixed once JAX has started, as strategies start it.
    if devices is not None:
        config.set_logical_cpu_devices(devices)
    return MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else MirroredStrategy()
