"""Steps as `jaxtribute plan --calibrate` predicts them, beside what is measured.

python -m benchmarks.predicted

The bar is 25 % for each. A calibration is made several times, and the median of its errors counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import TRAINING_SCRIPT
from jaxtribute._src.addons.planning.calibration import Comparison, calibrate, calibrate_processes

BAR = 0.25
PROBLEMS = (
    ("64-256-256-10", "256"),
    ("784-2048-2048-10", "128"),
    ("conv", "256"),
    ("transformer", "16"),
    ("small-100", "256"),
)
"""Small and large products, convolutions, attention, and many small variables, which little but exchange."""
LOCAL = (1, 2, 4, 8)


def row(problem: str, found: list[Comparison]) -> dict[str, Any]:
    """Several calibrations of one step as one row: the medians of all that they found."""
    columns = [one.as_dict() for one in found]
    middle = {name: statistics.median(one[name] for one in columns) for name in columns[0]}
    return {"problem": problem, **middle, "errors": [one.error for one in found], "met": abs(middle["error"]) <= BAR}


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", action="append", help="one of the benchmarks' problems with its batch: conv:256")
    parser.add_argument("--times", type=int, default=3, help="calibrations of each")
    parser.add_argument("--quick", action="store_true", help="one problem, on one device: to see that it runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    problems = [tuple(one.split(":")) for one in arguments.problem or ()] or PROBLEMS
    local, times = LOCAL, arguments.times
    if arguments.quick:
        problems, local, times = problems[:1], (1,), 1
    found: list[dict[str, Any]] = []
    for problem in problems:
        repeated = [calibrate(TRAINING_SCRIPT, problem, local)[1] for _ in range(times)]
        found += [row(", batch ".join(problem), list(same)) for same in zip(*repeated, strict=True)]
        if not arguments.quick:
            again = [calibrate_processes(TRAINING_SCRIPT, problem, 2) for _ in range(times)]
            found.append(row(", batch ".join(problem), again))
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    table = Table("problem", "devices", "processes", "predicted", "measured", "error", "of each calibration", "met")
    for one in found:
        seconds = [f"{one[name] * 1e3:.3f} ms" for name in ("predicted", "measured")]
        errors = ", ".join(f"{error:+.0%}" for error in one["errors"])
        cells = (f"{one['devices']}", f"{one['processes']}", *seconds, f"{one['error']:+.0%}", errors)
        table.add_row(one["problem"], *cells, "yes" if one["met"] else "no")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
