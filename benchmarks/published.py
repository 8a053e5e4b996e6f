"""Steps on TPUs as `jaxtribute plan --topology` predicts them, beside what was published of such steps.

    python -m benchmarks.published [--row NAME] [--json FILE]

Published: seconds of steps in the recipes of github.com/AI-Hypercomputer/tpu-recipes (training/trillium), and tokens a
second in MaxText's table of optimized models (docs/reference/models/tiering.md); both trained by MaxText. The model is
our own (`benchmarks.llama`), of the same shapes, layout, batch, kept and moved values, and memory for fusions. The
compiler is of another version than theirs. Needs `jaxtribute[tpu-compiler]`, and no TPU.

The compiler schedules such a step within half a minute, and generates code for many. A row is predicted from its
schedule, which the compiler dumps, and the compilation is ended there. Cycles stand only in what comes after. In their
place stands the share of the chip's rate that the compiler's cycles come to for one large product, compiled alone.

One constant for each kind of chip stands for what no compiler tells: the share of its own estimates that chips reach.
It is the middle between the least and the largest of what was published by what is predicted. `without` is a row's
error with the constant of the other rows of its chip.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
from rich.console import Console
from rich.table import Table

import jaxtribute as jd
from benchmarks.llama import Shape, Way, operations, training
from jaxtribute._src.addons.compiling.step import rates_of
from jaxtribute._src.addons.compiling.topologies import topology_named
from jaxtribute._src.addons.launcher.family import Family, Process
from jaxtribute._src.addons.tools.hlo.schedule import timing

SMALL = Shape(layers=32, width=4096, heads=32, shared=8, units=14336, vocabulary=128256, length=8192)
LARGE = Shape(layers=80, width=8192, heads=64, shared=8, units=28672, vocabulary=128256, length=8192)
MISTRAL = Shape(32, 4096, 32, 8, 14336, vocabulary=32000, length=8192, base=1e6)
LLAMA_2 = Shape(80, 8192, 64, 8, 28672, vocabulary=32000, length=4096, base=1e4)
TINY = Shape(layers=2, width=512, heads=4, shared=2, units=1024, vocabulary=2048, length=1024)
HEADS = ("query", "key", "value")
"""Values of a layer that the recipes move to the host's memory, besides its input."""


@dataclass(frozen=True)
class Row:
    """A step of which figures were published.

    Attributes:
      shape: the model.
      way: how it was trained.
      topology: the chips.
      seconds: the published time of a step.
      flags: those of the compiler that only some recipes have.
    """

    shape: Shape
    way: Way
    topology: str
    seconds: float
    flags: str = ""

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(map(int, self.topology.partition(":")[2].split("x")))


def _small(examples: int) -> Way:
    return Way(examples, ("input", "mixed", *HEADS))


def _large(examples: int, *, half: bool = False) -> Way:
    return Way(examples, ("input", *HEADS), half=half)


APART = "--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000"
"""Weights are gathered before they are multiplied, not piece by piece within the product."""
ROWS = {
    "Llama 3.1 8B, v6e-8": Row(SMALL, _small(3), "v6e:2x4", 3.443, APART),
    "Llama 3.1 8B, v6e-16": Row(SMALL, _small(3), "v6e:4x4", 3.393, APART),
    "Llama 3.1 8B, v6e-32": Row(SMALL, _small(3), "v6e:4x8", 3.495, APART),
    "Llama 3.1 8B, v6e-64": Row(SMALL, _small(5), "v6e:8x8", 5.652),
    "Llama 3.1 8B, v6e-128": Row(SMALL, _small(4), "v6e:8x16", 4.602),
    "Llama 3.1 8B, v6e-256": Row(SMALL, _small(4), "v6e:16x16", 4.546),
    "Mistral 7B, v6e-8": Row(MISTRAL, _small(6), "v6e:2x4", 6.320, APART),
    "Llama 3.1 70B, v6e-32": Row(LARGE, _large(2, half=True), "v6e:4x8", 17.790, APART),
    "Llama 3.1 70B, v6e-64": Row(LARGE, _large(2), "v6e:8x8", 18.688),
    "Llama 3.1 70B, v6e-128": Row(LARGE, _large(4), "v6e:8x16", 34.786),
    "Llama 3.1 70B, v6e-256": Row(LARGE, _large(5), "v6e:16x16", 42.656),
    "Llama 2 70B, v6e-256": Row(LLAMA_2, Way(2, HEADS, block=1024), "v6e:16x16", 9.052),
    "Llama 2 70B, v5p-512": Row(LLAMA_2, Way(4, (), (*HEADS, "mixed", "down"), 512), "v5p:8x8x8", 4 * 4096 / 692),
}
STEPS = ROWS | {"quick": Row(TINY, Way(1, ("input",), block=512), "v6e:2x2", math.nan)}
FLAGS = "--xla_tpu_scoped_vmem_limit_kib=98304"
"""A flag of the compiler that all of these recipes have; those for collectives are refused by today's for v6e."""
SMALLEST = {"v6e": "v6e:2x2", "v5p": "v5p:2x2x1"}
PRODUCT = (16384, 8192, 28672)
"""Rows, what is summed over, and columns of a product: of a layer of 70 billion parameters."""
SCHEDULED = "step*.after_optimizations.txt"
_TOTAL = re.compile(r"Memory Space: default \(color=0\)\nTotal bytes: (\d+)")
"""Bytes of a chip's memory, for state, too."""
DEADLINE_S = 300


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, of figures without ties."""
    ranks = [[sorted(each).index(one) for one in each] for each in (first, second)]
    return statistics.correlation(*ranks)


def compiled(name: str) -> None:
    """Compiles a step, here."""
    row = STEPS[name]
    with jax.numpy_dtype_promotion("standard"):
        jd.experimental.compile_for(row.topology, training(row.shape, row.way, row.chips))


def reached(topology: str) -> float:
    """The share of a chip's rate that its compiler's cycles come to for a large product, compiled here."""
    found = topology_named(topology)
    place = SingleDeviceSharding(found.devices[0])
    left, right = (jax.ShapeDtypeStruct(size, jnp.bfloat16, sharding=place) for size in (PRODUCT[:2], PRODUCT[1:]))
    text = jax.jit(jnp.matmul).lower(left, right).compile().as_text()
    assert text is not None
    rates = rates_of(found, found.devices[:1])
    return 2.0 * math.prod(PRODUCT) / timing(text, 1, rates).step / found.chip.half


def predicted(row: Row, text: str, share: float) -> dict[str, Any]:
    """What a schedule of a step comes to, with products at that share of the chip's rate."""
    topology = topology_named(row.topology)
    chip = topology.chip
    rates = replace(rates_of(topology, topology.devices), clock=None, operations=share * chip.half)
    found = timing(text, row.chips, rates)
    step, work = found.step + chip.launch, operations(row.shape, row.way) / chip.half
    return {
        "predicted": step,
        "from": "the schedule before code generation",
        "compute": found.compute + chip.launch,
        "exchange": found.exchange,
        "exposed": found.exposed,
        "published_share": work / row.seconds,
        "predicted_share": work / step,
    }


def asked(name: str) -> dict[str, Any]:
    """Schedules a step in a process of its own; what follows from that, or why there is none."""
    row = STEPS[name]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with _compiling(name, row.flags, folder) as process:
            done = until_scheduled(process.poll, folder, name)
        texts = [path.read_text() for path in folder.glob(f"*{SCHEDULED}")]
        reports = [path.read_text() for path in folder.glob("*memory-usage-report.txt")]
        said = (folder / "said").read_text().strip().splitlines()
    if not done:
        return {"error": f"no schedule within {DEADLINE_S} s" if done is None else " ".join(said[-1:])[:400]}
    needed = max(int(one) for report in reports for one in _TOTAL.findall(report))
    kept = {"memory": needed, "compiling": time.monotonic() - start}
    return predicted(row, max(texts, key=len), _share(row.topology)) | kept


def until_scheduled(ended: Callable[[], int | None], folder: Path, name: str) -> bool | None:
    """Waits for a schedule: True; False if its process has ended without one, None if time is over."""
    start, told = time.monotonic(), 0.0
    while (passed := time.monotonic() - start) < DEADLINE_S:
        # The compiler has dumped its use of memory by then; a whole text ends with an empty line.
        found = [path for path in folder.glob(f"*{SCHEDULED}") if path.read_bytes().endswith(b"}\n\n")]
        if found or ended() is not None:
            return bool(found)
        if passed >= told + 30:
            told = passed
            print(f"{name}: compiling for {passed:.0f} s of at most {DEADLINE_S}", file=sys.stderr, flush=True)
        time.sleep(0.5)
    return None


@contextmanager
def _compiling(name: str, flags: str, folder: Path) -> Generator[Process]:
    """A process that compiles a step or a product, with the flags, and dumps into a folder; it ends with the block."""
    # libtpu reads its flags once, and a compilation's memory is given back with its process.
    settings = {
        "JAX_PLATFORMS": "cpu",
        "LIBTPU_INIT_ARGS": f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {FLAGS} {flags}",
        "XLA_FLAGS": f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=jit_step",
    }
    command = [sys.executable, "-m", "benchmarks.published", "--here", name]
    # Nor does it go on where this one is ended.
    with Family() as family, (folder / "said").open("wb") as said:
        yield family.start(command, os.environ | settings, said)


@cache
def _share(topology: str) -> float:
    """`reached`, in a process of its own."""
    kind = topology.partition(":")[0]
    with tempfile.TemporaryDirectory() as place, _compiling(kind, "", Path(place)) as process:
        status = process.wait(DEADLINE_S)
        said = (Path(place) / "said").read_text().splitlines()
    if status:
        raise RuntimeError(f"{kind}: {said[-1]}")
    return float(said[-1])


def judged(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What all rows come to: rank correlation, a constant for each kind of chip, and each row's error with it."""
    whole = [row for row in rows.values() if "predicted" in row]
    for row in whole:
        others = [each for each in whole if each["chip"] == row["chip"] and each is not row]
        row["error"] = _constant([*others, row]) * row["predicted"] / row["published"] - 1
        row["without"] = _constant(others) * row["predicted"] / row["published"] - 1 if others else None
    chips = dict.fromkeys(row["chip"] for row in whole)
    constants = {chip: _constant([row for row in whole if row["chip"] == chip]) for chip in chips}
    pairs = [(row["predicted"], row["published"]) for row in whole]
    correlation = rank_correlation(*zip(*pairs, strict=True)) if len(pairs) > 1 else None
    return {"rank_correlation": correlation, "constants": constants}


def _constant(rows: Sequence[dict[str, Any]]) -> float:
    """The middle between the least and the largest of what was published by what is predicted."""
    ratios = [row["published"] / row["predicted"] for row in rows]
    return math.sqrt(min(ratios) * max(ratios))


def shown(rows: dict[str, dict[str, Any]]) -> Table:
    """All rows for people."""
    names = ("step", "published", "predicted", "error", "without", "of peak", "predicted", "waits", "memory")
    table = Table(*names, title="predicted from the schedule before code generation, not run")
    for name, row in rows.items():
        if "predicted" not in row:
            table.add_row(name, f"{row['published']:.2f} s", row.get("error", ""))
            continue
        shares = [f"{row[f'{key}_share']:.1%}" for key in ("published", "predicted")]
        without = "" if row["without"] is None else f"{row['without']:+.0%}"
        seconds = [f"{row['published']:.2f} s", f"{row['predicted']:.2f} s", f"{row['error']:+.0%}", without]
        table.add_row(name, *seconds, *shares, f"{row['exposed']:.2f} s", f"{row['memory'] / 1e9:.1f} GB")
    return table


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", choices=ROWS, help="a step of those published; by default all")
    parser.add_argument("--quick", action="store_true", help="a small step of which nothing is published")
    parser.add_argument("--here", help="compile a step, or a product for a kind of chip, in this process")
    parser.add_argument("--json", type=Path, help="a file for the figures; rows that it has already are kept")
    options = parser.parse_args()
    if options.here in SMALLEST:
        print(reached(SMALLEST[options.here]))
        return
    if options.here:
        compiled(options.here)
        return
    if options.quick:
        print(json.dumps(asked("quick")))
        return
    known = json.loads(options.json.read_text())["rows"] if options.json and options.json.is_file() else {}
    rows: dict[str, dict[str, Any]] = {name: known[name] for name in ROWS if name in known}
    for name in options.row or [name for name in ROWS if "predicted" not in rows.get(name, {})]:
        row = ROWS[name]
        rows[name] = {"chip": row.topology.partition(":")[0], "published": row.seconds} | asked(name)
        print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
        rows = {each: rows[each] for each in ROWS if each in rows}
        if options.json:
            found = {"command": f"python -m benchmarks.published --json {options.json}", **judged(rows), "rows": rows}
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    verdict = judged(rows)  # the errors that the table shows, too
    Console(width=130).print(shown(rows), verdict)


if __name__ == "__main__":
    main()
