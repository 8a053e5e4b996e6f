"""Counts how many planted mistakes are found, with their line and advice: `python planted_mistakes.py [NAME...]`.

A name is a program's; without names all run, right ones too.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax

import jaxtribute as jd
import public_programs
import rarer_programs
from jaxtribute import testing
from jaxtribute.config import set_logical_cpu_devices
from verified_programs import RIGHT, WRONG, Case, line_of

LISTING = public_programs, rarer_programs
"""Modules that list programs besides."""
COUNTED = "programs, mistakes, found, with the line, with the advice, alarms"


def verdict_of(case: Case) -> testing.Verdict:
    """The verdict on a program, on two replicas."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    step, batch = case.program(strategy, case.wrong)
    # The programs are written as users write them.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        return testing.verify(step, *batch, strategy=strategy, raises=False)


def main(names: list[str]) -> None:
    """Runs programs, and prints what is wrong and the counts."""
    cases = [case for case in (*RIGHT, *WRONG) if not names or case.program.__name__ in names]
    found = lines = advice = alarms = 0
    for case in cases:
        verdict = verdict_of(case)
        if case in RIGHT:
            alarms += not verdict.right
            good = verdict.right
        else:
            culprit = verdict.findings[0].culprit if verdict.findings else None
            places = [culprit.place, culprit.elsewhere] if culprit is not None else []
            line = line_of(case) in [place.line for place in places if place is not None]
            named = culprit is not None and culprit.pattern.name in case.patterns
            found, lines, advice = found + bool(culprit), lines + line, advice + named
            good = line and named
        if not good:
            sys.stdout.write(f"{case}\n{verdict}\n\n")
    planted = sum(case in WRONG for case in cases)
    programs = len({case.program for case in cases})
    sys.stdout.write(f"{COUNTED}: {programs}, {planted}, {found}, {lines}, {advice}, {alarms}\n")


if __name__ == "__main__":
    set_logical_cpu_devices(2)
    main(sys.argv[1:])
