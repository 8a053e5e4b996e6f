"""The same step under several strategies must compute the same."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from jaxtribute import (
    CentralStorageStrategy,
    FullyShardedStrategy,
    Mirrored,
    MirroredStrategy,
    OneDeviceStrategy,
    PerReplica,
    Strategy,
    Variable,
)
from jaxtribute._src.addons.testing.runner import run_multi_process
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.typing import Leaf, Nest

Program = Callable[[Strategy], Any]
_SHOWN = 12
"""Arrays up to this many elements are shown whole."""


def assert_strategy_invariant(
    step_fn: Program,
    *,
    devices: Sequence[int] = (1, 2, 4),
    strategies: Mapping[str, Callable[[], Strategy]] | None = None,
    workers: Sequence[tuple[int, int]] = (),
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Runs a program under several strategies, and shows the first value that differs.

        def training(strategy):
            with strategy.scope():
                model = Model()
            for batch in strategy.experimental_distribute_dataset(dataset):
                yield {"loss": step(strategy, model, batch)}

        jd.testing.assert_strategy_invariant(training)

    Args:
        step_fn: Gets a strategy; makes its variables, trains, and returns a tree of values, or yields one a step.
        devices: With each of these numbers of devices a `MirroredStrategy`, and with the largest a
            `CentralStorageStrategy` and a `FullyShardedStrategy`; numbers that this process has not are left out.
            `OneDeviceStrategy` says what is right.
        strategies: What makes the strategies, by name, instead of these; the first says what is right.
        workers: Pairs of workers and devices each: with each a `MultiWorkerMirroredStrategy`, in processes of its own.
        rtol: Relative difference that is allowed.
        atol: Absolute difference that is allowed.

    Raises:
        AssertionError: A value differs, with strategy, step, place, and both values.
        ArgumentTypeError: `step_fn` gives values that belong to replicas, of which there are different numbers.
        ArgumentError: There is nothing to compare.
    """
    cases = dict(strategies) if strategies is not None else _usual(devices)
    if len(cases) + len(workers) < 2:
        raise ArgumentError(
            f"{list(cases)} leaves nothing to compare. HINT: call jd.config.set_logical_cpu_devices(4) first, or give "
            "more strategies."
        )
    right: _Run | None = None
    for name, found in _runs(step_fn, cases, workers):
        if right is None:
            right = _Run(name, found)
        else:
            _compare(right, _Run(name, found), rtol, atol)


@dataclass
class _Run:
    name: str
    steps: list[dict[str, np.ndarray]]
    """The values of each step by their place."""


def _runs(
    step_fn: Program, cases: Mapping[str, Callable[[], Strategy]], workers: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, list[dict[str, np.ndarray]]]]:
    for name, make in cases.items():
        yield name, _values(step_fn, make())
    for count, each in workers:
        name = f"MultiWorkerMirroredStrategy, {count} workers with {each} devices"
        for rank, found in enumerate(run_multi_process(_in_worker, workers=count, devices=each, args=(step_fn,))):
            yield f"{name}, on worker {rank}", found


# At the top of the module, so that the processes find it by its name.
def _in_worker(step_fn: Program) -> list[dict[str, np.ndarray]]:
    from jaxtribute import MultiWorkerMirroredStrategy

    return _values(step_fn, MultiWorkerMirroredStrategy())


def _usual(counts: Sequence[int]) -> dict[str, Callable[[], Strategy]]:
    present = jax.local_devices()
    possible = sorted({count for count in counts if 0 < count <= len(present)})
    cases: dict[str, Callable[[], Strategy]] = {"OneDeviceStrategy": lambda: OneDeviceStrategy(present[0])}
    for count in possible:
        # As a default of the lambda, which is called when the loop has gone on.
        chosen = present[:count]
        cases[f"MirroredStrategy, {count} device(s)"] = lambda chosen=chosen: MirroredStrategy(chosen)
    if possible and possible[-1] > 1:
        most = [f"{device.platform.upper()}:{index}" for index, device in enumerate(present[: possible[-1]])]
        cases[f"CentralStorageStrategy, {len(most)} devices"] = lambda: CentralStorageStrategy(most)
        # Slices of all variables, however small.
        cases[f"FullyShardedStrategy, {len(most)} devices"] = lambda: FullyShardedStrategy(most, min_bytes=0)
    return cases


def _values(step_fn: Program, strategy: Strategy) -> list[dict[str, np.ndarray]]:
    result = step_fn(strategy)
    # The steps of a generator run as they are asked for, so each is compared by itself.
    steps = result if isinstance(result, Generator) else [result]
    return list(map(_leaves, steps))


def _leaves(tree: Nest) -> dict[str, np.ndarray]:
    found = tree_leaves_with_path(tree, is_leaf=lambda node: isinstance(node, (Variable, Mirrored, PerReplica)))
    return {keystr(path) or "the value": _array(keystr(path), leaf) for path, leaf in found}


def _array(place: str, leaf: Leaf) -> np.ndarray:
    if isinstance(leaf, PerReplica):
        raise ArgumentTypeError(
            f"the value at {place or 'the top'} has a part on each replica, and strategies have different numbers of "
            "replicas. HINT: give strategy.reduce(...) or strategy.gather(...) of it."
        )
    value = leaf.read_value() if isinstance(leaf, Variable) else leaf
    return np.asarray(value.values[0] if isinstance(value, Mirrored) else value)


def _compare(right: _Run, other: _Run, rtol: float, atol: float) -> None:
    if len(right.steps) != len(other.steps):
        raise AssertionError(f"{other.name} takes {len(other.steps)} steps, {right.name} {len(right.steps)}.")
    for number, (expected, found) in enumerate(zip(right.steps, other.steps, strict=True), start=1):
        at = f"at step {number} of {len(right.steps)}" if len(right.steps) > 1 else "in the result"
        if expected.keys() != found.keys():
            raise AssertionError(f"{at}, {other.name} gives {list(found)}, and {right.name} {list(expected)}.")
        for place in expected:
            difference = _difference(expected[place], found[place], rtol, atol)
            if difference is not None:
                ours, theirs, where = difference
                raise AssertionError(
                    f"{place} {at} depends on the strategy: {theirs} with {other.name}, {ours} with {right.name}{where}"
                )


def _difference(expected: np.ndarray, found: np.ndarray, rtol: float, atol: float) -> tuple[Any, Any, str] | None:
    """Describes the first value that differs: its place, expected and found."""
    # Another shape or dtype would be broadcast or promoted, and then be close.
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{expected.dtype}{list(expected.shape)}", f"{found.dtype}{list(found.shape)}", ""
    same = np.isclose(_plain(found), _plain(expected), rtol=rtol, atol=atol, equal_nan=True)
    if same.all():
        return None
    index = tuple(np.argwhere(~same)[0].tolist())
    where = f" at {list(index)}, the first of {(~same).sum()} of {same.size} elements that differ" if index else ""
    if index and same.size <= _SHOWN:
        where += f":\n{found.tolist()}\n{expected.tolist()}"
    return expected[index], found[index], where


def _plain(array: np.ndarray) -> np.ndarray:
    """Converts to numbers that NumPy can compare; NumPy has none for the small floating-point types."""
    return array if array.dtype.kind in "biufc" else array.astype(np.float64)
