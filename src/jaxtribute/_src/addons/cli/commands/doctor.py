"""`jaxtribute doctor`: what is installed, what is found, what is wrong with it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtribute._src.addons.doctor.report import Finding, Situation

HELP = "say what is installed, which devices and which cluster are found, and what is wrong with them"
SICK = 1
"""Exit status: something must be put right."""
_MARKS = ("      ", "ok    ", "WARN  ", "ERROR ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    parser.add_argument("--test", action="store_true", help="also try an all-reduce and an input over the cluster")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long to try (10)")
    parser.add_argument(
        "--preempt",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ...",
        help="rehearse a preemption of this program with its arguments, on two workers, and do nothing else",
    )
    parser.epilog = (
        "Run it as the program would be run: under srun, or as `jaxtribute launch --workers 2 -m jaxtribute doctor "
        "--test`. Exit status: 1 if there is an error."
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings as they come."""
    if arguments.preempt is not None:
        return _preempt(arguments.preempt)
    from jaxtribute._src.addons.doctor.report import Level, look

    # A copy: resolvers may set variables, which the doctor's own process must not see.
    situation = look(dict(os.environ))
    worst = Level.FACT
    for finding in _findings(situation, arguments):
        worst = max(worst, finding.level)
        fix = f"\n{'':8}fix: {finding.fix}" if finding.fix else ""
        sys.stdout.write(f"{_MARKS[finding.level]}{finding.title}: {finding.text}{fix}\n")
        # A check may take long or hang: what came before it is seen by then.
        sys.stdout.flush()
    return SICK if worst is Level.ERROR else 0


def _preempt(command: list[str]) -> int:
    """Rehearses a preemption and says what came of it."""
    from jaxtribute._src.addons.testing.rehearsal import rehearse

    if not command:
        sys.stderr.write("jaxtribute doctor: --preempt needs a program. HINT: jaxtribute doctor --preempt train.py\n")
        return 2
    found = rehearse(command[0], command[1:])
    if found.well:
        sys.stdout.write(
            f"{_MARKS[1]}preemption: SIGTERM left the complete checkpoint {found.checkpoint} after {found.runs} runs, "
            "and the program went on from it\n"
        )
        return 0
    sys.stdout.write(f"{found.output.rstrip()}\n{_MARKS[3]}preemption: {found.problem}\n")
    return SICK


def _findings(situation: Situation, arguments: argparse.Namespace) -> Iterator[Finding]:
    from jaxtribute._src.addons.doctor import trial
    from jaxtribute._src.addons.doctor.checks import CHECKS

    for check in CHECKS[:-1]:
        yield from check(situation)
    # Before anything starts JAX: a cluster is joined first.
    if arguments.test and not situation.problem:
        yield from trial.check(situation, arguments.seconds)
    yield from CHECKS[-1](situation)
