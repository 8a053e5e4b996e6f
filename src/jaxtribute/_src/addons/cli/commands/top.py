"""`jaxtribute top`: a run in the terminal, while it goes on."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

HELP = "show in the terminal what a run does and where its time goes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder that `jaxtribute launch --run` records to")
    parser.add_argument("--once", action="store_true", help="print it once and end, as into a pipe")
    parser.add_argument("--json", action="store_true", help="print it once, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Shows the run until Ctrl-C."""
    from rich.console import Console

    from jaxtribute._src.addons.live.state import Run
    from jaxtribute._src.addons.live.terminal import show
    from jaxtribute.errors import ArgumentError

    try:
        found = Run(arguments.run)
        if arguments.json:
            sys.stdout.write(json.dumps(found.state()) + "\n")
            return 0
        # Ctrl-C is how the view is left.
        with suppress(KeyboardInterrupt):
            show(found, Console(highlight=False), once=arguments.once)
    except ArgumentError as error:
        sys.stderr.write(f"jaxtribute top: {error}\n")
        return 2
    return 0
