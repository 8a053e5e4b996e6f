"""`python -m benchmarks run --suite step --suite packing --suite large --suite memory [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import suites

SUITES: dict[str, Callable[[bool], list[suites.Comparison]]] = {
    "step": suites.step,
    "packing": suites.packing,
    "large": suites.large,
    "memory": suites.memory,
}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "optax", "jaxtribute")},
    }


def show(comparisons: list[suites.Comparison]) -> None:
    """Prints a table: each contender's median, its range, and the library's ratio to it."""
    table = Table("problem", "contender", "median", "range", "jaxtribute / it", "bar", "met")
    for one in comparisons:
        for place, row in enumerate(one.rows):
            table.add_row(
                one.problem if place == 0 else "",
                row.name,
                row.shown(row.median),
                f"{row.shown(row.low)} .. {row.shown(row.high)}",
                f"{row.ratio:.3f}" if row.ratio is not None else "",
                f"<= {row.bar:.2f}" if row.bar is not None else "",
                "" if row.bar is None or row.ratio is None else "yes" if row.ratio <= row.bar else "no",
                end_section=place == len(one.rows) - 1,
            )
    Console(width=140).print(table)


def main() -> None:
    """Runs suites and reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("command", nargs="?", choices=["run"], default="run")
    parser.add_argument("--suite", action="append", choices=list(SUITES), help="one or more; all by default")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs, not to quote")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    names = arguments.suite or list(SUITES)
    found: dict[str, Any] = {"command": f"python -m benchmarks {' '.join(sys.argv[1:])}", "machine": machine()}
    for name in names:
        comparisons = SUITES[name](arguments.quick)
        show(comparisons)
        found[name] = [one.as_json() for one in comparisons]
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
