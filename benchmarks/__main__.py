"""The command line of all benchmarks.

    python -m benchmarks list
    python -m benchmarks run --suite digits,workers [--quick] [--save] [--json FILE] [--plots DIR] [--environments DIR]
    python -m benchmarks environments
    python -m benchmarks tables [--suite NAME] [--page FILE]

`--save` writes each suite's figures to `benchmarks/results/SUITE.json`. `tables` prints them as Markdown, and with
`--page` brings those of a page of the documentation up to date.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import environments
from benchmarks.comparison import Comparison
from benchmarks.pages import RESULTS, filled, print_tables


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": load,
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "optax", "jaxtribute")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def show(comparisons: list[Comparison]) -> None:
    """Prints a table: each contender's median, its range, and the library's ratio to it."""
    table = Table("problem", "contender", "median", "range", "jaxtribute / it", "bar", "met")
    console = Console(width=150)
    for one in comparisons:
        for place, row in enumerate(one.rows):
            table.add_row(
                one.problem if place == 0 else "",
                row.name,
                row.shown(row.median),
                f"{row.shown(row.low)} .. {row.shown(row.high)}",
                f"{row.ratio:.3f}" if row.ratio is not None else "",
                f"<= {row.bar:.2f}" if row.bar is not None else "",
                row.met,
                end_section=place == len(one.rows) - 1,
            )
    console.print(table)
    for one in comparisons:
        for note in one.notes:
            console.print(f"{one.problem}: {note}")


def plot(name: str, comparisons: list[Comparison], folder: Path) -> None:
    """Draws the medians with their ranges, a panel a problem, where matplotlib is there."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plots: matplotlib is not installed", file=sys.stderr)
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(comparisons), 1, figsize=(9, 1.8 * len(comparisons) + 1), squeeze=False)
    for one, axis in zip(comparisons, axes[:, 0], strict=True):
        scale, unit = 1.0, one.rows[0].unit if one.rows else ""
        if unit == "s":
            scale, unit = (1e6, "us") if max(row.median for row in one.rows) < 1e-4 else (1e3, "ms")
        if all(row.name.isdecimal() for row in one.rows):  # a quantity that grows
            sizes = [int(row.name) for row in one.rows]
            lows = [row.low * scale for row in one.rows]
            axis.plot(sizes, [row.median * scale for row in one.rows], "o-", markersize=3)
            axis.fill_between(sizes, lows, [row.high * scale for row in one.rows], alpha=0.2)
            axis.set(xscale="log", yscale="log" if min(lows) > 0 else "linear")
            axis.set_xticks(sizes, [row.name for row in one.rows])
            axis.set_xticks([], minor=True)
            axis.set_title(one.problem, fontsize=9)
            axis.set_ylabel(unit, fontsize=8)
            axis.tick_params(labelsize=8, which="both")
            continue
        rows = [row for row in reversed(one.rows) if row.median > 0]
        medians = [row.median * scale for row in rows]
        ranges = [
            [(row.median - row.low) * scale for row in rows],
            [(row.high - row.median) * scale for row in rows],
        ]
        colors = ["tab:orange" if row.name.startswith("jaxtribute") else "tab:blue" for row in rows]
        axis.barh([row.name for row in rows], medians, xerr=ranges, color=colors, ecolor="0.4")
        axis.set_title(one.problem, fontsize=9)
        axis.set_xlabel(unit, fontsize=8)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=110)
    plt.close(figure)


def measure(name: str, quick: bool, plots: Path | None) -> Any:
    """Runs one suite, shows it, and returns its figures."""
    from benchmarks import registry

    if name in registry.MODULES:
        return registry.MODULES[name].run(quick)
    comparisons = registry.COMPARED[name](quick)
    show(comparisons)
    if plots is not None:
        plot(name, comparisons, plots)
    return [one.as_json() for one in comparisons]


def run(names: list[str], arguments: argparse.Namespace) -> int:
    """Runs suites one after the other; one that fails does not keep the others from running."""
    command = f"python -m benchmarks {' '.join(sys.argv[1:])}"
    everything: dict[str, Any] = {"command": command, "machine": machine()}
    failed: list[str] = []
    for name in names:
        print(f"--- {name}", flush=True)
        start = time.monotonic()
        try:
            found = measure(name, arguments.quick, arguments.plots)
        except Exception:  # noqa: BLE001  (the next suite is to run, whatever happened in this one)
            traceback.print_exc()
            failed.append(name)
            continue
        print(f"--- {name}: {time.monotonic() - start:.0f} s", flush=True)
        everything[name] = found
        alone = f"python -m benchmarks run --suite {name}{' --quick' if arguments.quick else ''}"
        if arguments.save:
            _write(RESULTS / f"{name}.json", {"command": alone, "machine": machine(), name: found})
        if arguments.json:
            _write(arguments.json, everything)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    """Runs suites and reports."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=["run", "list", "environments", "tables"], default="run")
    parser.add_argument("--suite", action="append", help="one or more, separated by commas; all by default")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs, not to quote")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/SUITE.json")
    parser.add_argument("--plots", type=Path, help="a folder for a picture a suite")
    parser.add_argument("--page", type=Path, help="a page whose tables `tables` fills instead of printing any")
    parser.add_argument(
        "--environments", type=Path, help=f"where TensorFlow and PyTorch are; also {environments.PLACE}"
    )
    arguments = parser.parse_args()
    if arguments.environments:
        os.environ[environments.PLACE] = str(arguments.environments)
    from benchmarks import registry

    known = registry.names()
    if arguments.command == "list":
        for name in known:
            print(f"{name:16} {registry.described(name)}")
        return 0
    if arguments.command == "environments":
        for name in environments.names():
            print(f"{name:16} {environments.python_of(name)}")
        return 0
    names = [name for group in arguments.suite or [",".join(known)] for name in group.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(known)}")
    if arguments.command == "tables":
        if arguments.page:
            arguments.page.write_text(filled(arguments.page.read_text()))
        else:
            print_tables(names)
        return 0
    return run(names, arguments)


if __name__ == "__main__":
    sys.exit(main())
