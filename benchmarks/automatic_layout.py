"""The automatic layout of ten small models beside the best of all their layouts, each compiled.

    python -m benchmarks.automatic_layout [--models MLP LSTM] [--quick] [--json FILE]

Two replicas of two devices. A layout splits one axis of each variable, or none. Of those that fit a limit of memory,
the one that moves the fewest bytes is the best; limits are the memory of the most frugal layout, 1.25 times that, and
that of the whole model.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import jax

import jaxtribute as jd
import layout_models
from jaxtribute._src.addons.layouts.automatic import TRIES, Candidate, split_at
from jaxtribute._src.addons.layouts.search import Search
from jaxtribute._src.addons.layouts.settling import Choice
from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.execution.capture import Capture

QUICK = "tied autoencoder"


def compared(name: str) -> list[dict[str, Any]]:
    """The chosen layout of a model and the best of all, for each limit."""
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(4)], devices_per_replica=2)
    mesh = strategy.extended.mesh
    step, batch, named = layout_models.build(name, strategy)
    variables = list(named.values())
    call = step.python_function
    traced = Capture.of(lambda leaves: call(type(batch)(leaves[0], mesh)), contexts.current(), [batch.data])
    choice = Choice(traced, [batch.data], mesh, set(variables))
    table: dict[Any, Candidate] = {}

    def judged(label: str, layouts: Any) -> Candidate:
        key = tuple([layouts.get(variable, ()) for variable in variables])
        if key not in table:
            table[key] = choice.judge(label, dict(zip(variables, key, strict=True)))
        return table[key]

    options = [[None, *(axis for axis, size in enumerate(v.shape) if size % 2 == 0)] for v in variables]
    for plan in itertools.product(*options):
        judged("every", {v: split_at(axis, mesh) for v, axis in zip(variables, plan, strict=True)})
    least = min(one.memory for one in table.values())
    limits = {"least": least, "1.25 x least": 1.25 * least, "whole": table[((),) * len(variables)].memory}
    rows: list[dict[str, Any]] = []
    for label, limit in limits.items():
        search = Search(choice.clusters, lambda one, plan: judged(one, choice.layouts(plan)), int(limit), None, TRIES)
        chosen = search.tried[search.best(choice.plan)]
        best = min(one.sent for one in table.values() if one.memory <= limit)
        ratio = chosen.sent / best if best else math.inf if chosen.sent else 1.0
        figures = {"bytes": chosen.sent, "best": best, "ratio": ratio, "fits": chosen.memory <= limit}
        rows.append({"model": name, "limit": label, **figures, "compiled": len(search.tried), "all": len(table)})
        print("  ".join(f"{value}" for value in rows[-1].values()), flush=True)
    return rows


def main() -> None:
    """Compares the models of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=layout_models.MODELS, default=list(layout_models.MODELS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_disable_most_optimizations", True)
    rows = [row for name in ([QUICK] if options.quick else options.models) for row in compared(name)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
