"""The same steps on another Python, another JAX or another state of the library, side by side with this one.

    python -m benchmarks.versions --beside oldest=build/lowest/bin/python [--beside before=PYTHON,SOURCE] [--json FILE]

Each state is a name, an interpreter that has the library and, where it is to run other sources than that one's, the
folder that holds the package `jaxtribute`. Ratios are of this state to the other. Beside the library runs JAX by hand,
so that what a new JAX made slower is told from what the library did.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.__main__ import machine, show
from benchmarks.comparison import LIBRARY, Comparison, Contender, Kind, compare
from benchmarks.suites import DIGITS, LARGE

PROBLEMS = (
    ("dispatch", "4-4", 32, {1: 3200, 2: 320, 4: 320}, 1),
    ("digits", DIGITS, 256, {1: 64, 2: 64, 4: 64}, 1),
    ("large", LARGE, 128, {1: 4, 2: 4, 4: 4}, 1),
    ("workers", DIGITS, 256, {1: 48}, 2),
    ("workers", LARGE, 128, {1: 8}, 2),
)
"""Suite, problem, batch, steps a turn for each count of devices, processes."""


def state(text: str) -> Kind:
    """The processes of a state, as the command line names it.

    Raises:
      argparse.ArgumentTypeError: it is not NAME=PYTHON or NAME=PYTHON,SOURCE.
    """
    name, _, rest = text.partition("=")
    python, _, source = rest.partition(",")
    if not name or not Path(python).is_file() or (source and not Path(source, "jaxtribute").is_dir()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=PYTHON or NAME=PYTHON,SOURCE of an interpreter that exists and of a folder with the "
            f"package jaxtribute. HINT: oldest=build/lowest/bin/python, made by `make lowest`."
        )
    env = (("PYTHONPATH", source),) if source else ()
    return replace(LIBRARY, python=python, env=env, suffix=f", {name}")


def measured(kinds: Sequence[Kind], only: Sequence[str], quick: bool) -> list[Comparison]:
    """This state and others at each problem."""
    found: list[Comparison] = []
    for suite, problem, batch, steps_of, processes in PROBLEMS:
        for devices, steps in steps_of.items() if suite in only else ():
            hand = "shard-map-packed" if processes > 1 else "named-sharding"
            contenders = [Contender(name, kind) for kind in (LIBRARY, *kinds) for name in ("jaxtribute", hand)]
            where = f"{processes} processes" if processes > 1 else f"{devices} device{'s' if devices > 1 else ''}"
            rounds = 2 if quick else 15 if processes == 1 else 9
            arguments = ["--problem", problem, "--batch", str(batch), "--devices", str(devices)]
            one = compare(
                f"{suite}: {problem}, {where}", arguments, contenders, steps=steps, rounds=rounds, workers=processes
            )
            for own, by_hand in zip(one.rows[::2], one.rows[1::2], strict=True):
                one.notes.append(f"{own.name} / {by_hand.name}: {own.median / by_hand.median:.3f}")
            show([one])
            found.append(one)
    return found


def main() -> None:
    """Prints a table a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", action="append", type=state, required=True, metavar="NAME=PYTHON[,SOURCE]")
    parser.add_argument("--suite", default="dispatch,digits,large,workers", help="some of them, separated by commas")
    parser.add_argument("--quick", action="store_true", help="see only that it runs")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    found = measured(arguments.beside, arguments.suite.split(","), arguments.quick)
    if arguments.json:
        figures = {"machine": machine(), "versions": [one.as_json() for one in found]}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
