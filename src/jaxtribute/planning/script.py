"""What is done with a script in a process of its own: `python -m jaxtribute.planning.script WHAT FILE SCRIPT ...`.

JAX fixes the number of devices when it starts, so that each number needs a process.

| what | it does |
|---|---|
| `cost` | looks at the first step and writes its `StepCost` to the file |
| `parts` | answers with the seconds of computing and of collectives that the file asks for |
| `exchange` | joins the cluster and answers with the seconds of the collectives that the file asks for |
| `time` | runs steps and answers with the seconds that one takes |
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxtribute.devices import alias_devices
from jaxtribute.execution.program import Program
from jaxtribute.planning.inspection import Step, look_at_script
from jaxtribute.planning.machine import time_alone, time_collectives
from jaxtribute.profiling.watch import Finished, run_script, watched
from jaxtribute.strategies.multi_worker import MultiWorkerMirroredStrategy

_SKIP, _ROUNDS, _LEAST_S, _TOGETHER = 2, 7, 0.1, 32


class Timer:
    """A watcher that repeats one step of a script on the same batch, takes the time, and ends the script."""

    def __init__(self) -> None:
        self._seen = 0
        self.seconds = 0.0
        self.batch = 0

    def step(self, program: Program, leaves: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Runs a step, or takes the time of many."""
        self._seen += 1
        result = call()
        if self._seen <= _SKIP:
            return result

        def run(count: int) -> float:
            start = time.perf_counter()
            result = None
            for _ in range(count):
                result = call()
            jax.block_until_ready((result, [variable.stored for variable in program.donated]))
            return (time.perf_counter() - start) / count

        run(2)
        count = max(int(_LEAST_S / max(run(2), 1e-7)), 2) if jax.process_count() == 1 else _TOGETHER
        self.seconds = min(run(count) for _ in range(_ROUNDS))
        self.batch = Step(program, leaves, []).batch
        raise Finished

    def draw(self, call: Callable[[], Any]) -> Any:
        """Takes the next batch."""
        return call()


def parts(script: Path, arguments: Sequence[str], request: dict[str, Any]) -> dict[str, float]:
    """Seconds of a script's computing, with one replica on each device by itself, and of its collectives."""
    wanted, devices = request["collectives"], request["devices"]
    platform = jax.default_backend().upper()
    # With this one alias the script's strategy finds one device, and the process has them all.
    with alias_devices({"GPU:0": f"{platform}:0"}):
        compute = look_at_script(script, arguments, lambda step: time_alone(step, request["rows"], devices))
    return {"compute": compute, "collectives": time_collectives(wanted, devices) if wanted else 0.0}


def main(what: str, file: str, script: str, *arguments: str) -> None:
    """Does one of these and answers on standard output."""
    answer: dict[str, Any] = {}
    if what == "cost":
        cost = look_at_script(Path(script), arguments, lambda step: step.cost(Path(script).name))
        if jax.process_index() == 0:
            cost.save(Path(file))
    elif what == "time":
        timer = Timer()
        with watched(timer):
            run_script(Path(script), arguments)
        answer = {"seconds": timer.seconds, "batch": timer.batch}
    elif what == "exchange":
        strategy = MultiWorkerMirroredStrategy()  # joins
        wanted = json.loads(Path(file).read_text())["collectives"]
        answer = {"collectives": time_collectives(wanted, strategy.num_replicas_in_sync)}
    else:
        answer = parts(Path(script), arguments, json.loads(Path(file).read_text()))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
