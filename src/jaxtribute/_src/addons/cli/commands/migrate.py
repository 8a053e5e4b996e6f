"""`jaxtribute migrate`: what has to change in a TensorFlow program."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtribute._src.addons.compat.migrate.findings import Finding
    from jaxtribute._src.addons.compat.migrate.scan import Report

HELP = "list what has to change in TensorFlow programs, and change what is mechanical"
LEFT, FAILED = 1, 2
"""Exit statuses: something is left to change; a file cannot be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a Python program or a notebook, which is not run"
    )
    parser.add_argument("--write", action="store_true", help="make the changes that are mechanical")
    parser.epilog = (
        "Exit status: 0 if nothing is left to change or to look at, 1 if something is, 2 if a file cannot be read. "
        "A line with the comment `# jaxtribute: ok` has been looked at."
    )


def run(arguments: argparse.Namespace) -> int:
    """Lists the uses of TensorFlow in each file; with `--write` changes the files."""
    # All files, also behind one that cannot be read; the worst decides.
    statuses = [_migrate(path, write=arguments.write) for path in arguments.files]
    return max(statuses)


def _migrate(path: Path, *, write: bool) -> int:
    from jaxtribute._src.addons.compat.migrate.documents import read
    from jaxtribute._src.addons.compat.migrate.scan import scan
    from jaxtribute._src.addons.launcher.regular_files import read_regular

    try:
        document = read(read_regular(path), notebook=path.suffix == ".ipynb")
        programs = [document, *document.parts]
        reports = [scan(program.text) for program in programs]
        changes: list[Finding] = []
        for report in reports:
            changes += filter(attrgetter("edits"), report.findings)
        changed = document.rewritten(*[report.rewritten() for report in reports]) if write and changes else None
    except (OSError, ValueError, SyntaxError) as error:
        sys.stderr.write(f"{path}: cannot be read: {error}\n")
        return FAILED
    for program, report in zip(programs, reports, strict=True):
        for finding in report.findings:
            place = f"{path}:{program.place(finding.line)}"
            sys.stdout.write(_line(place, finding, written=write and bool(finding.edits)))
    if changed is not None:
        path.write_bytes(changed)
    left = [] if write else list(changes)
    for report in reports:
        left += report.left()
    sys.stdout.write(f"{path}: {_summary(reports)}; {len(left)} left\n")
    return LEFT if left else 0


def _line(place: str, finding: Finding, *, written: bool) -> str:
    head = f"{place}:{finding.column}: {finding.kind.value}: {finding.name}"
    done = " (written)" if written else ""
    if not finding.advice:
        return f"{head}{done}\n"
    # What follows the first line belongs to it.
    advice = finding.advice.replace("\n", "\n    ")
    return f"{head}{done}: {advice}\n"


def _summary(reports: Sequence[Report]) -> str:
    from jaxtribute._src.addons.compat.catalog.lookup import Kind

    counts: Counter[Kind] = Counter()
    for report in reports:
        counts.update(map(attrgetter("kind"), report.findings))
    return ", ".join(f"{counts[kind]} {kind.value}" for kind in Kind)
