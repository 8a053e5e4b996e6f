"""`jaxtribute migrate`: what has to change in a TensorFlow program."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtribute._src.addons.compat.migrate.documents import Document
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
    parser.add_argument("--all", action="store_true", help="list what means the same and what was written, too")
    parser.epilog = (
        "Exit status: 0 if nothing is left to change or to look at, 1 if something is, 2 if a file cannot be read. "
        "A line with the comment `# jaxtribute: ok` has been looked at."
    )


def run(arguments: argparse.Namespace) -> int:
    """Lists the uses of TensorFlow in each file; with `--write` changes the files."""
    # All files, also behind one that cannot be read; the worst decides.
    statuses = [_migrate(path, write=arguments.write, everything=arguments.all) for path in arguments.files]
    return max(statuses)


def _migrate(path: Path, *, write: bool, everything: bool) -> int:
    from jaxtribute._src.addons.compat.migrate.documents import read
    from jaxtribute._src.regular_files import read_regular

    notebook = path.suffix == ".ipynb"
    try:
        document = read(read_regular(path), notebook=notebook)
        reports = _scanned(document)
        changed = sum(bool(finding.edits) for report in reports for finding in report.findings)
        shown = _lines(path, document, reports, write) if everything else []
        if write and changed:
            data = document.rewritten(*[report.rewritten() for report in reports])
            path.write_bytes(data)
            # Read again: what is left is told by the lines on which it stands now.
            document = read(data, notebook=notebook)
            reports = _scanned(document)
    except (OSError, ValueError, SyntaxError) as error:
        sys.stderr.write(f"{path}: cannot be read: {error}\n")
        return FAILED
    left = _left(reports)
    sys.stdout.writelines(shown or _lines(path, document, reports, left_alone=True))
    done = f"{changed} changed, " if write else ""
    sys.stdout.write(f"{path}: {_summary(reports)}; {done}{left} left\n")
    sys.stdout.write(f"next: {_next(path, document, reports, left=left)}\n")
    return LEFT if left else 0


def _scanned(document: Document) -> list[Report]:
    from jaxtribute._src.addons.compat.migrate.scan import scan

    return [scan(program.text) for program in (document, *document.parts)]


def _lines(
    path: Path, document: Document, reports: Sequence[Report], written: bool = False, *, left_alone: bool = False
) -> list[str]:
    """A line for each finding, or for each that is left to change or to look at."""
    lines: list[str] = []
    for program, report in zip((document, *document.parts), reports, strict=True):
        for finding in report.findings:
            if finding.edits or finding in report.left() or not left_alone:
                place = f"{path}:{program.place(finding.line)}"
                lines.append(_line(place, finding, written=written and bool(finding.edits)))
    return lines


def _left(reports: Sequence[Report]) -> int:
    return sum(len(report.left()) + sum(bool(one.edits) for one in report.findings) for report in reports)


def _next(path: Path, document: Document, reports: Sequence[Report], *, left: int) -> str:
    """The next thing to do, with its command."""
    name = shlex.quote(str(path))
    if any(finding.edits for report in reports for finding in report.findings):
        return f"jaxtribute migrate --write {name}"
    if path.suffix == ".ipynb":
        command = "run the notebook"
    elif "MultiWorkerMirroredStrategy" in document.text:
        command = f"jaxtribute launch --workers 2 {name}"
    elif "ParameterServerStrategy" in document.text and "TFConfigClusterResolver" in document.text:
        # Of any other resolver the program makes the cluster itself.
        command = f"jaxtribute launch --ps 1 --workers 2 {name}"
    else:
        command = f"python {name}"
    if not left:
        return command
    places = "place" if left == 1 else f"{left} places"
    return f"look at the {places} above (`# jaxtribute: ok` on a line says that it is right); then {command}"


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
