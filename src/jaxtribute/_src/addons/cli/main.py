"""Finds the commands and runs the one that is asked for."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, cast

from jaxtribute._src.addons.cli import commands
from jaxtribute._src.addons.cli.streams import standard_streams

WRONG = 2
"""Exit status of wrong arguments, or of surroundings in which no command can run."""


class Command(Protocol):
    """A module of `jaxtribute._src.addons.cli.commands`."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Tells the parser what the command takes."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Runs the command and returns the exit status."""
        ...


def find_commands() -> dict[str, Command]:
    """The commands by name, in the order of the alphabet."""
    found: dict[str, Command] = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(commands.__path__)):
        module = importlib.import_module(f"{commands.__name__}.{name}")
        found[name.replace("_", "-")] = cast("Command", module)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `jaxtribute` with the given arguments, those of the process by default, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="jaxtribute", description="The programming model of tf.distribute on JAX.")
    parser.add_argument("--version", action="version", version=f"jaxtribute {version('jaxtribute')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    found = find_commands()
    # All of them, whichever is asked for, so that `--help` lists them: they import what is heavy only as they run.
    parsers = {name: subparsers.add_parser(name, help=one.HELP, description=one.HELP) for name, one in found.items()}
    for name, command in found.items():
        command.add_arguments(parsers[name])
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:  # told with the usage of the command, which has the options
        parsers[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        Path.cwd()
    except OSError as error:
        sys.stderr.write(
            f"jaxtribute {arguments.command}: the working folder is not there: {error.strerror}. HINT: it was removed "
            "or moved; change to another one, such as with cd.\n"
        )
        return WRONG
    return found[arguments.command].run(arguments)


def entry_point() -> None:
    """Runs the `jaxtribute` script."""
    with standard_streams():
        sys.exit(main())
