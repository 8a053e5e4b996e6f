"""Compiling a user's steps, from a function or a script as it is, for a topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxtribute._src.addons.compiling.step import CompiledStep, compile_step
from jaxtribute._src.addons.compiling.topologies import Topology, topology_named
from jaxtribute._src.addons.planning.inspection import Looker, Step, look_at_script
from jaxtribute._src.addons.tools.user_scripts import STEPS_AND_INPUT, Finished, with_devices
from jaxtribute.errors import ArgumentError
from jaxtribute.experimental import observe
from jaxtribute.extending import described_devices


def compile_for(topology: str, train: Callable[[], Any]) -> CompiledStep:
    """Compiles a training step for TPUs or GPUs that are not there, with the real compiler; nothing runs.

    Strategies that `train` makes are over those devices, whichever devices they name. Variables have a shape and
    a placement and no values: an initial value that a function computes is not computed. Batches of distributed
    datasets have their shape; each replica gets as many examples as the one with most. `train` ends at its first call
    of a `jd.function` that changes variables, which is compiled.

    Args:
      topology: a TPU chip and the slice's shape, such as `"v5e:2x4"` or `"v5p:16x16x16"`; or a GPU, hosts and GPUs of
        each, such as `"h100:2x8"`.
      train: makes a strategy, variables and a step, and calls the step.

    Returns:
      What the compiler says of the step: memory, collectives, operations, and what was donated.

    Raises:
      ArgumentError: no such topology, or `train` makes no step on it.
      MissingLibraryError: the compiler is not installed: `libtpu`, or JAX's plugin for CUDA.
      DoesNotFitError: the step needs more memory than a device has.
      DeviceError: `train` needs a value of what is compiled only.
    """
    target = topology_named(topology)
    # Ended at its first step: what is compiled only has no results that the rest of `train` could go on with.
    looker = Looker(lambda step: compile_step(step, target), stop=True)
    with described_devices(target.devices), observe(looker, *STEPS_AND_INPUT), suppress(Finished):
        train()
    if looker.found is None:
        raise ArgumentError(
            f"{getattr(train, '__name__', train)} ended without a step. "
            "HINT: a step is a call of a jd.function that changes variables."
        )
    return looker.found


def compile_script(
    script: Path, arguments: Sequence[str], target: Topology, batch: Callable[[Step], int | None]
) -> CompiledStep:
    """Compiles the first step of a script, as `compile_for` does that of a function.

    Args:
      script: a Python program that trains.
      arguments: its arguments; `{devices}` becomes the number of devices.
      target: the devices.
      batch: tells how many examples each replica gets in a step; None for those of the script's batch.
    """
    given = with_devices(arguments, len(target.devices))

    def look(step: Step) -> CompiledStep:
        return compile_step(step, target, batch(step))

    with described_devices(target.devices):
        return look_at_script(script, given, look)
