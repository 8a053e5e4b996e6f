"""`Strategy.run_steps`: several steps over a distributed iterator in one compiled program."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core import settings
from jaxtribute._src.core.execution.feeds import Feed, Proxy
from jaxtribute._src.core.execution.function import Function
from jaxtribute._src.core.execution.nests import flatten, is_array, is_number
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica
from jaxtribute.errors import ArgumentTypeError, OutOfRangeError, ShapeError

Step = Callable[[Any], Any]


@dataclass(frozen=True)
class _Done:
    """Number of steps that there was data for; no array, so that nobody waits for it."""

    steps: int


class StepLoops:
    """The compiled loops of a strategy, one for each step function and number of steps."""

    def __init__(self) -> None:
        self._loops: weakref.WeakKeyDictionary[Any, dict[Any, Function[..., Any]]] = weakref.WeakKeyDictionary()

    def run(self, step: Step, iterator: Any, n: int, steps_per_call: int) -> Any:
        """Runs `n` steps, or as many as there is data for; see `Strategy.run_steps`."""
        settings.function("step", step)
        _check(iterator, n, steps_per_call)
        if contexts.current().executor.traced:
            results, done = _steps(step, iterator, n)
        else:
            calls: list[Any] = []
            # One loop for all calls of full length, and one for what is left.
            done, loops = 0, {asked: self._loop(step, asked) for asked in _calls(n, steps_per_call)}
            for asked in _calls(n, steps_per_call):
                result, count = loops[asked](iterator)
                steps = jax.tree.leaves(result)[0].shape[0] if count is None else count.steps
                done += steps
                calls.extend([result] if steps else [])
                if steps < asked:
                    break
            results = _joined(calls)
        if not done:
            raise OutOfRangeError(f"run_steps({n}): the data has ended. HINT: make a new iterator for each epoch.")
        return results

    def _loop(self, step: Step, steps: int) -> Function[..., Any]:
        """The compiled loop of so many steps; it does not keep `step` alive."""
        method = isinstance(step, MethodType)
        owner, key = (step.__self__, (step.__func__, steps)) if method else (step, steps)
        loops = self._loops.setdefault(owner, {})
        if key not in loops:
            # Weak, as the key of the table is: a loop that held its step would keep both for ever.
            reference = weakref.WeakMethod(step) if method else weakref.ref(step)

            def loop(iterator: Any) -> Any:
                alive = reference()
                assert alive is not None
                results, done = _steps(alive, iterator, steps)
                leaves = flatten(results)[0]
                # Usually the results tell; a result that is not an array costs each call a little.
                told = bool(leaves) and isinstance(leaves[0], (jax.Array, Mirrored))
                return results, None if told else _Done(done)

            loop.__name__ = f"{getattr(step, '__name__', 'step')}, {steps} times"
            loops[key] = Function(loop)
        return loops[key]


def _calls(n: int, steps_per_call: int) -> Generator[int]:
    """Number of steps per call."""
    for left in range(n, 0, -steps_per_call):
        yield min(left, steps_per_call)


def _steps(step: Step, iterator: Any, steps: int) -> tuple[Any, int]:
    """Up to `steps` steps: their results, stacked, and how many there were."""
    results: list[Any] = []
    while len(results) < steps:
        try:
            batch = next(iterator)
        except StopIteration:
            break
        results.append(step(batch))
    return _stacked(results), len(results)


def _stacked(results: Sequence[Any]) -> Any:
    """One nest with the results of all steps along a new axis 0 of each array."""
    if not results:
        return None
    return _by_leaf(_stack, results)


def _by_leaf(join: Callable[[Sequence[Any]], Any], results: Sequence[Any]) -> Any:
    """One nest, of whose leaves each is joined of those of several nests of its structure."""
    rows, trees = zip(*map(flatten, results), strict=True)
    return trees[0].unflatten(map(join, zip(*rows, strict=True)))


def _stack(column: Sequence[Any]) -> Any:
    first = column[0]
    if isinstance(first, Mirrored):
        return Mirrored(_rows(_data(column)), first.mesh)
    if isinstance(first, PerReplica):
        if any(value.is_ragged or value.data.shape != first.data.shape for value in column):
            raise ShapeError(
                f"the steps return values whose shapes differ from replica to replica or step to step, the first "
                f"{first.data.shape}: they cannot be stacked. HINT: reduce or gather them in the step."
            )
        replicas = first.mesh.size
        shape = () if first.scalar else (first.data.shape[0] // replicas, *first.data.shape[1:])
        # The replicas stay in front, so that what each gave in all steps stays on its device.
        rows = jnp.stack([data.reshape(replicas, *shape) for data in _data(column)], axis=1)
        return PerReplica(rows.reshape(replicas * len(column), *shape), first.mesh)
    return _rows(column) if is_array(first) or is_number(first) else column[-1]


def _data(column: Sequence[Any]) -> list[Any]:
    """The arrays of distributed values."""
    return list(map(attrgetter("data"), column))


def _rows(values: Sequence[Any]) -> Any:
    """The arrays one after another; written one by one, as XLA's CPU compiler would fuse a `stack` into the steps."""
    arrays = list(map(jnp.asarray, values))
    shapes = set(map(jnp.shape, arrays))
    if len(shapes) > 1:
        raise ShapeError(
            f"the steps return arrays of the shapes {sorted(shapes)}, which cannot be stacked. "
            "HINT: reduce them in the step."
        )
    buffer = jnp.zeros((len(arrays), *arrays[0].shape), arrays[0].dtype)
    for place, array in enumerate(arrays):
        buffer = lax.dynamic_update_index_in_dim(buffer, array, np.int32(place), 0)
    return buffer


def _joined(parts: Sequence[Any]) -> Any:
    """Stacked results of several programs as those of one."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return _by_leaf(_join, parts)


def _join(column: Sequence[Any]) -> Any:
    first = column[0]
    if isinstance(first, Mirrored):
        return Mirrored(jnp.concatenate(_data(column)), first.mesh)
    if isinstance(first, PerReplica):
        columns = zip(*map(attrgetter("values"), column), strict=True)
        return PerReplica.from_parts(list(map(jnp.concatenate, columns)), first.mesh)
    return jnp.concatenate(column) if is_array(first) else column[-1]


def _check(iterator: Any, n: Any, steps_per_call: Any) -> None:
    for name, value in (("n", n), ("steps_per_call", steps_per_call)):
        settings.whole(name, value, 1)
    if not isinstance(iterator, (Feed, Proxy)):
        raise ArgumentTypeError(
            f"iterator is a {type(iterator).__name__}. HINT: pass the iterator of a distributed dataset: "
            "iter(strategy.experimental_distribute_dataset(...))."
        )
