"""Steps with large embeddings on 2 processes: tables over the replicas beside TorchRec and dense gradients; Adam.

python -m benchmarks.embeddings

26 features of a batch of 1,024 are looked up by Zipf ids, as a model of clicks does; the dense layer behind is small.
Contenders take turns. Bytes are those that a process writes to its sockets, beside what its distinct ids come to.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.environments import python_of
from benchmarks.harness import Group, Result, alternate, ratio
from benchmarks.peers import clicks

RANKS = 2
BYTES_BAR, MEMORY_BAR_GB = 1.1, 3.0
LIBRARY, TORCHREC = "benchmarks.peers.table_steps", "benchmarks.peers.torchrec_steps"


@dataclass(frozen=True)
class Entry:
    """A contender.

    Attributes:
      kind: what its peer calls it.
      rows: the number of rows of its table.
      width: of how many columns.
      bar: what the ratio of the first entry's step to its step may be.
      module: its peer.
    """

    kind: str
    rows: int
    width: int
    bar: float | None = None
    module: str = LIBRARY


def contests(*, quick: bool) -> list[list[Entry]]:
    """Those who take turns, whose first is compared with the others."""
    rows, more = (10_000, 20_000) if quick else (1_000_000, 10_000_000)
    return [
        [
            Entry("table", rows, 32),
            Entry("torchrec pooled", rows, 32, 0.8, TORCHREC),
            Entry("torchrec rows", rows, 32, 0.8, TORCHREC),
            Entry("dense gradients", rows, 32, 1 / 5),
        ],
        [Entry("lazy Adam", more, 16), Entry("lazy Adam", rows, 16, 1.1), Entry("exact Adam", rows, 16)],
    ]


def measured(entries: list[Entry], steps: int, rounds: int) -> list[dict[str, Any]]:
    """The figures of entries that take turns."""
    groups: list[Group] = []
    try:
        for one in entries:
            python = sys.executable if one.module == LIBRARY else python_of("torch")
            arguments = ["--rows", str(one.rows), "--width", str(one.width), "--contender", one.kind]
            groups.append(Group(RANKS, one.module, arguments, python=python, wait=False))
        for group in groups:
            group.wait()
        contenders = [(group, one.kind, f"{one.kind} {one.rows}") for group, one in zip(groups, entries, strict=True)]
        # Adagrad's first updates are of one size, however small a gradient is: its rounding is seen in the loss.
        unchecked = [label for _, name, label in contenders if name.endswith("Adam")]
        found = alternate(contenders, steps=steps, rounds=rounds, check_steps=4, tolerance=0.02, unchecked=unchecked)
        return [
            {**asdict(one), **_figures(one, group, result, found[0], steps)}
            for one, group, result in zip(entries, groups, found, strict=True)
        ]
    finally:
        for group in groups:
            group.hang_up()
        for group in groups:
            group.close()


def _figures(entry: Entry, group: Group, result: Result, first: Result, steps: int) -> dict[str, Any]:
    figures = {"seconds": result.seconds, "median": result.median, "loss": result.loss, "ratio": ratio(first, result)}
    if entry.module == LIBRARY:
        before, _ = group.steps("sent", 0)
        group.steps(entry.kind, steps)
        figures["sent"] = (group.steps("sent", 0)[0] - before) / steps
        figures["peak"], _ = group.steps("peak", 0)
        figures["needed"] = needed(entry)
    return figures


def needed(entry: Entry) -> float:
    """Bytes that a process has to send in a step: its distinct ids, rows to the other, and gradients with their ids."""
    all_batches = [clicks.batches(entry.rows, rank, RANKS) for rank in range(RANKS)]
    own = [[len(np.unique(ids)) / RANKS for ids, _ in batches] for batches in all_batches]
    rows, number = statistics.mean(map(statistics.mean, own)), 4
    return rows * (number + 4 * entry.width + number + 4 * entry.width)


def main() -> None:
    """Prints a table; ends with status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small tables and few steps: to see that it runs")
    parser.add_argument("--only", type=int, help="the contest of this number, from 0")
    parser.add_argument("--without", action="append", default=[], help="leave a contender out")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    steps, rounds = (4, 2) if arguments.quick else (8, 9)
    chosen = contests(quick=arguments.quick)
    figures: list[dict[str, Any]] = []
    shown = Table("contender", "rows x width", "step", "first / it", "bar", "sent / needed", "peak memory")
    for entries in chosen if arguments.only is None else [chosen[arguments.only]]:
        kept = [one for one in entries if one.kind not in arguments.without]
        for one in measured(kept, steps, rounds):
            figures.append(one)
            bar = "" if one["bar"] is None else f"{one['bar']:.2f}"
            sent = f"{one['sent'] / 1e6:.2f} / {one['needed'] / 1e6:.2f} MB" if "sent" in one else ""
            size, step = f"{one['rows']:,} x {one['width']}", f"{one['median'] * 1e3:.1f} ms"
            peak = f"{one['peak'] / 1e9:.2f} GB" if "peak" in one else ""
            shown.add_row(one["kind"], size, step, f"{one['ratio']:.2f}", bar, sent, peak)
    Console(width=120).print(shown)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    if not arguments.quick:
        _check(figures)


def _check(figures: list[dict[str, Any]]) -> None:
    missed = [
        f"{one['kind']}: {one['ratio']:.2f}, bar {one['bar']}" for one in figures if one["ratio"] > (one["bar"] or 9)
    ]
    for one in figures:
        if one["kind"] != "dense gradients" and "sent" in one and one["sent"] > BYTES_BAR * one["needed"]:
            missed.append(f"{one['kind']} sends {one['sent']:.0f} bytes, {one['needed']:.0f} are needed")
        if one["rows"] > 1_000_000 and one["peak"] >= MEMORY_BAR_GB * 1e9:
            missed.append(f"{one['kind']} takes {one['peak'] / 1e9:.1f} GB")
    assert not missed, missed


if __name__ == "__main__":
    main()
