"""Runs a script in a process of its own: `python -m jaxtribute._src.addons.planning.script WHAT FILE SCRIPT ...`.

JAX fixes the number of devices when it starts, so that each number needs a process.

| what | it does |
|---|---|
| `cost` | looks at the first step and writes its `StepCost` to the file |
| `shapes` | likewise, where variables are shapes without memory, and nothing runs |
| `measure` | answers with the seconds of a step and of its parts; writes its `StepCost` too, unless the file is `-` |
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax

from jaxtribute._src.addons.planning.inspection import Step, look_at_script
from jaxtribute._src.addons.planning.probes import measure
from jaxtribute._src.addons.tools.user_scripts import Finished, run_script, training_step
from jaxtribute._src.addons.tools.waiting import telling
from jaxtribute.errors import ArgumentError
from jaxtribute.experimental import Event, Observer, observe
from jaxtribute.extending import Kinds, described_devices

# The first step compiles, and so may the second, for the places of what the first has returned.
_SKIP = 2


class Measurer(Observer):
    """An observer that repeats one step of a script on one batch, in turns with its parts, and ends the script.

    Args:
      name: of the script.
      cost: a file for what the step costs; None for none.
    """

    def __init__(self, name: str, cost: Path | None) -> None:
        self._name, self._cost, self._seen = name, cost, 0
        self.answer: dict[str, Any] = {}

    def on_start(self, event: Event) -> None:
        """Measures the step after those that compile."""
        begun = training_step(event)
        self._seen += begun is not None
        if begun is None or self._seen <= _SKIP:
            return
        program, step = begun.program, Step(begun.program, begun.leaves, [])
        if step.state:
            raise ArgumentError(
                f"the step takes over {len(step.state)} array(s) of its arguments (donate_argnums), and cannot be "
                "measured again and again. HINT: measure it without donate_argnums, or plan it without --calibrate."
            )
        if self._cost is not None:
            step.cost(self._name).save(self._cost)
        devices = program.mesh.devices if program.mesh is not None else jax.devices()[:1]

        def call() -> Any:
            return begun.call(), list(map(attrgetter("stored"), program.donated))

        parts, whole = measure(step.wanted(), call, devices)
        self.answer = {"parts": asdict(parts), "step": whole, "batch": step.batch, "replicas": step.replicas}
        raise Finished


def main(what: str, file: str, most: str, script: str, *arguments: str) -> None:
    """Does one of these and answers on standard output."""
    answer: dict[str, Any] = {}
    if what in ("cost", "shapes"):
        described = described_devices(jax.devices()) if what == "shapes" else nullcontext()
        with described, telling(f"looking for the first step of {Path(script).name}"):
            cost = look_at_script(Path(script), arguments, lambda step: step.cost(Path(script).name, int(most)))
        # All processes have seen the same step, and one of them writes.
        if jax.process_index() == 0:
            cost.save(Path(file))
    else:
        measurer = Measurer(Path(script).name, None if file == "-" else Path(file))
        with observe(measurer, Kinds.DISPATCH.name):
            run_script(Path(script), arguments)
        answer = measurer.answer
    # The script may have left a line without an end.
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
