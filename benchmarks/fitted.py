"""The first choice of `jaxtribute plan --fit` for twelve kinds of models, beside the best of all ways that there are.

    python -m benchmarks.fitted [--kind mlp] [--topology v5e:4x4] [--every] [--json FILE]

Compiles, and runs nothing. Needs the compilers of the topologies (`make compilers`). With `--every` each strategy with
each group of devices, in one, two and four calls an update, is compiled as well, which takes minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxtribute._src.addons.compiling.topologies import ENVIRONMENT
from jaxtribute._src.addons.fitting.asking import SEARCHING, SECONDS
from jaxtribute._src.addons.fitting.candidates import MIRRORED, SHARDED, Candidate, Outcome, ranked
from jaxtribute._src.addons.fitting.places import place
from jaxtribute._src.addons.fitting.search import FitSearch
from jaxtribute._src.addons.fitting.trials import Trials
from jaxtribute._src.addons.memory.amounts import checked
from jaxtribute._src.addons.tools.user_scripts import run_module

SCRIPT = Path(__file__).parents[1] / "tests" / "support" / "fitted_models.py"
KINDS = "mlp conv vit gpt scanned experts unet recurrent embeddings keras nnx equinox".split()
TOPOLOGIES = "v5e:4x4", "v6e:4x4", "h100:1x8"
DEADLINE_S = 3600.0


def everything(batch: int, devices: int) -> list[Candidate]:
    """All ways without a bound for activations."""
    groups = [2**power for power in range(devices.bit_length()) if not devices % 2**power]
    kinds = product((MIRRORED, SHARDED), groups, (1, 2, 4))
    ways = [Candidate(kind, batch, group, None, calls) for kind, group, calls in kinds]
    return [one for one in ways if one.rows(devices)]


def searched(kind: str, topology: str, budget: str, every: str) -> dict[str, Any]:
    """The outcomes of the search, and of all other ways, in a process of its own."""
    begun = time.monotonic()
    target = place(topology, int(budget) or None, asked=True)
    trials = Trials(SCRIPT, [kind], target)
    batch = trials.batch()
    memory, until = target.chip.memory, begun + SECONDS
    search = FitSearch(trials, len(target.devices), memory, batch, until=until, optimizer=trials.optimizes)
    search.best()
    seconds, rest = time.monotonic() - begun, list[Outcome]()
    for one in everything(batch, len(target.devices)) if every else ():
        if one not in search.found:
            rest.append(trials(one, 9))
    found = {"search": search.found.values(), "rest": rest}
    return {"seconds": seconds, **{name: [one.as_dict() for one in ways] for name, ways in found.items()}}


def row(kind: str, topology: str, budget: int | None, every: bool) -> dict[str, Any]:
    """The choice for a kind of model on a topology, and how it compares."""
    settings = {"JAX_PLATFORMS": "cpu", SEARCHING: "1", **ENVIRONMENT}
    asked = ["--search", kind, topology, str(budget or 0), "all" if every else ""]
    answer = run_module("benchmarks.fitted", asked, 1, script=SCRIPT, settings=settings, deadline_s=DEADLINE_S)
    found, rest = ([Outcome.read(one) for one in answer[name]] for name in ("search", "rest"))
    result: dict[str, Any] = {"model": kind, "topology": topology, "budget": budget}
    result |= {"seconds": round(answer["seconds"]), "programs": sum(one.compiled for one in found)}
    result["ways"] = {str(one.candidate): one.refusal or one.seconds for one in (*found, *rest)}
    if ranked(found):
        best, fastest = ranked(found)[0], ranked([*found, *rest])[0]
        result |= {"choice": str(best.candidate), "step": best.seconds, "memory": best.memory}
        result |= {"best": str(fastest.candidate), "ratio": best.each / fastest.each if every else None}
    return result


def arguments_of(description: str | None) -> argparse.ArgumentParser:
    """What a benchmark of these models takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--topology", action="append")
    parser.add_argument("--quick", action="store_true", help="one model, to see that it runs")
    parser.add_argument("--json", type=Path)
    return parser


def told(options: argparse.Namespace, make: Callable[[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """What is found for each kind of model and topology that is asked for; each is printed, and written, at once."""
    cases = list(product(options.topology or TOPOLOGIES, options.kind or KINDS))
    rows: list[dict[str, Any]] = []
    for topology, kind in cases[: 1 if options.quick else None]:
        rows.append(make(kind, topology))
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def main() -> None:
    """Prints a line for each, and a table."""
    parser = arguments_of(__doc__)
    parser.add_argument("--budget", help="what a step may take of each device, such as 64MiB")
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--search", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.search:
        sys.stdout.write("\n" + json.dumps(searched(*options.search)) + "\n")
        return
    budget = int(checked(options.budget)) if options.budget else None
    rows = told(options, lambda kind, topology: row(kind, topology, budget, options.every))
    table = Table("model", "topology", "first choice", "step", "of the best of all", "programs", "searched in")
    for one in rows:
        step = f"{one['step'] * 1e6:,.0f} us" if "step" in one else "does not fit"
        ratio = f"{one['ratio']:.3f} of {one['best']}" if one.get("ratio") else ""
        cells = [one["model"], one["topology"], one.get("choice", ""), step, ratio]
        table.add_row(*cells, str(one["programs"]), f"{one['seconds']} s")
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
