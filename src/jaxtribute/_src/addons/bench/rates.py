"""Speeds of a step, of its input and of checkpoints, each in turns with the bare work that it comes to.

The step computes next to nothing, so that its cost is the library's own; input is measured against `jax.device_put` of
slices; checkpoints go to disk and back.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Strategy, Variable, VariableAggregation, function
from jaxtribute.extending import own

_WAIT_EVERY = 8
"""Calls in flight at most: more can starve the threads of logical CPU devices."""
_CALLS = 64
_FEATURES = 784
_PARTS = 8


def alternate(calls: Mapping[str, Callable[[], Any]], *, count: int, rounds: int) -> dict[str, float]:
    """Median seconds of each call, `count` at a time, over `rounds` turns of all; one turn goes before.

    The numbers are fixed beforehand, and not by a clock, because all processes of a cluster must make the same calls.
    """
    # The first calls compile.
    for call in calls.values():
        seconds_a_call(call, 2)
    seconds = in_turns(calls, dict.fromkeys(calls, count), rounds)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def in_turns(calls: Mapping[str, Callable[[], Any]], counts: Mapping[str, int], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each of `rounds` turns of all; in its turn each is made as often as `counts` says."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(seconds_a_call(call, counts[name]))
    return seconds


def seconds_a_call(call: Callable[[], Any], count: int) -> float:
    """Seconds of one of `count` calls that return arrays, of which some are in flight at a time."""
    start = time.perf_counter()
    result = None
    # Some are in flight, as in a training; waiting for each would measure the way to the device and back.
    for index in range(count):
        result = call()
        if index % _WAIT_EVERY == _WAIT_EVERY - 1:
            jax.block_until_ready(result)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / count


@dataclass(frozen=True, slots=True)
class StepRate:
    """A step that adds one to small variables.

    Attributes:
      variables: how many.
      seconds: a call of the `jd.function`.
      bare: a call of a `jax.jit` that takes and gives the same arrays, donated.
    """

    variables: int
    seconds: float
    bare: float

    @property
    def overhead(self) -> float:
        """Seconds that the library adds."""
        return self.seconds - self.bare


def measure_step(strategy: Strategy, counts: Sequence[int], rounds: int) -> list[StepRate]:
    """Measures a step for each number of variables."""
    return [_measure_step(strategy, count, rounds) for count in counts]


def _measure_step(strategy: Strategy, count: int, rounds: int) -> StepRate:
    placement = strategy.extended.mesh.replicated
    with strategy.scope():
        variables = [Variable(jnp.zeros(4), aggregation=VariableAggregation.ONLY_FIRST_REPLICA) for _ in range(count)]

    @function
    def step() -> None:
        for variable in variables:
            variable.assign_add(jnp.ones(4))

    def bare(state: list[Any]) -> list[Any]:
        return [value + jnp.ones(4) for value in state]

    jitted: Callable[..., Any] = jax.jit(bare, donate_argnums=0, out_shardings=placement)
    # A list of the only state, as each call donates the one before.
    states = [[own(jnp.zeros(4), placement) for _ in range(count)]]

    def by_hand() -> Any:
        states[0] = jitted(states[0])
        return states[0]

    def by_library() -> Any:
        step()
        return variables[0].stored

    found = alternate({"library": by_library, "bare": by_hand}, count=_CALLS, rounds=rounds)
    return StepRate(count, found["library"], found["bare"])


@dataclass(frozen=True, slots=True)
class InputRate:
    """A pass over examples of 784 float32 numbers in host memory.

    Attributes:
      batch: examples in a global batch.
      examples: how many a pass has.
      seconds: of a pass through a distributed dataset.
      bare: of putting the same slices onto this process's devices; None if there are several processes.
    """

    batch: int
    examples: int
    seconds: float
    bare: float | None

    @property
    def rate(self) -> float:
        """Examples a second."""
        return self.examples / self.seconds

    @property
    def bytes_rate(self) -> float:
        """Bytes a second."""
        return self.rate * _FEATURES * 4


def measure_input(strategy: Strategy, batch: int, batches: int, rounds: int) -> InputRate:
    """Measures passes over `batches` batches of `batch` examples, a multiple of the replicas."""
    mesh = strategy.extended.mesh
    # Rounded up: `jax.device_put` divides an array into equal parts only.
    batch = -(-batch // mesh.size) * mesh.size
    data = np.ones((batch * batches, _FEATURES), np.float32)
    dataset = strategy.experimental_distribute_dataset(strategy.experimental_make_numpy_dataset(data).batch(batch))

    def library() -> Any:
        last: Any = None
        return dataset.reduce(last, lambda _, element: element)

    def bare() -> Any:
        element = None
        for start in range(0, len(data), batch):
            element = jax.device_put(data[start : start + batch], mesh.split)
        return element

    # `jax.device_put` cannot write to other processes' devices.
    alone = len(mesh.local_ids) == mesh.size
    passes: list[Callable[[], Any]] = [library, bare] if alone else [library]
    taken: list[list[float]] = [[] for _ in passes]
    for turn in range(rounds + 1):
        for place, one in enumerate(passes):
            start = time.perf_counter()
            jax.block_until_ready(one())
            # The first turn starts threads and fills caches.
            if turn:
                taken[place].append(time.perf_counter() - start)
    seconds = list(map(statistics.median, taken))
    return InputRate(batch, len(data), seconds[0], seconds[1] if alone else None)


@dataclass(frozen=True, slots=True)
class CheckpointRate:
    """Saving and restoring variables of one size.

    Attributes:
      nbytes: bytes of all variables, one copy each.
      held: seconds for which `save` holds the training up.
      saved: seconds until the checkpoint is complete.
      restored: seconds of a restore.
    """

    nbytes: int
    held: float
    saved: float
    restored: float


def measure_checkpoint(strategy: Strategy, nbytes: int, directory: Path, rounds: int) -> CheckpointRate:
    """Saves and restores variables of `nbytes` bytes in all.

    Args:
      strategy: where the variables are.
      nbytes: how large.
      directory: an existing folder, on a disk that all workers share.
      rounds: how often; one more goes before.
    """
    from jaxtribute import Checkpoint

    size = max(nbytes // 4 // _PARTS, 1)
    random = np.random.default_rng(0)  # zeros would be compressed to nothing
    with strategy.scope():
        variables = [Variable(random.random(size, np.float32), name=f"part_{i}") for i in range(_PARTS)]
    checkpoint = Checkpoint(variables=variables)
    path = str(directory / "checkpoint")
    held: list[float] = []
    saved: list[float] = []
    restored: list[float] = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        # It returns once the values are safe from the training; the files are written meanwhile.
        checkpoint.write(path)
        held.append(time.perf_counter() - start)
        checkpoint.wait()
        saved.append(time.perf_counter() - start)
        restored.append(_seconds(lambda: checkpoint.restore(path)))
    # Without the turn that goes before, which starts threads and makes the folder.
    return CheckpointRate(size * 4 * _PARTS, *map(statistics.median, (held[1:], saved[1:], restored[1:])))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
