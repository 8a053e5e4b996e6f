"""`jaxtribute trace`: where the time of a script's steps goes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HELP = "record a profile of a script's training steps, and tell where their time goes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a Python program that trains with jd.function")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="steps to measure (5)")
    parser.add_argument("--skip", type=int, default=3, metavar="N", help="steps that go before, which compile (3)")
    parser.add_argument("--out", type=Path, default=Path("jaxtribute-trace"), metavar="DIR", help="where the files go")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.epilog = "Options of the command stand before SCRIPT; what follows it is the script's own."


def run(arguments: argparse.Namespace) -> int:
    """Runs the script under the profiler and prints the table."""
    from rich.console import Console

    from jaxtribute._src.addons.profiling import record
    from jaxtribute.errors import ArgumentError

    try:
        breakdown, files = record.record(
            arguments.script,
            arguments.arguments,
            directory=arguments.out,
            steps=arguments.steps,
            skip=arguments.skip,
        )
    except ArgumentError as error:
        sys.stderr.write(f"jaxtribute trace: {error}\n")
        return 2
    if arguments.json:
        sys.stdout.write(json.dumps(breakdown.as_dict() | {"files": str(files)}) + "\n")
        return 0
    console = Console()
    console.print(breakdown)
    if breakdown.compiled:
        console.print(
            f"{breakdown.compiled} function(s) were compiled within these steps, as for a last batch or an evaluation, "
            f"and the host's time is theirs too. HINT: --skip {arguments.skip + arguments.steps + 5} leaves them out.",
            highlight=False,
        )
    # Not broken over lines, so that paths can be copied.
    console.print(
        f"\nFor Perfetto (ui.perfetto.dev): {files / 'perfetto_trace.json.gz'}", soft_wrap=True, highlight=False
    )
    console.print(
        f"For TensorBoard's profile plugin: tensorboard --logdir {arguments.out}", soft_wrap=True, highlight=False
    )
    return 0
