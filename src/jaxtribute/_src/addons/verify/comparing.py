"""Compares what a step has done on one device with what it has done on replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.verify.averages import means
from jaxtribute._src.addons.verify.feeding import is_seed
from jaxtribute._src.addons.verify.holding import combined, is_rows
from jaxtribute._src.addons.verify.operations import as_wide, is_key
from jaxtribute._src.addons.verify.stage import Outcome

_RELATIVE = 1e-6
"""Of the largest change of a value: what float64 and other orders of sums come to stands far below."""
_GLOBAL = 1e-9
"""Of the largest change of what is trained: the gradient of a bias before a normalization is rounding alone."""
_CONSTANTS = 2e-7
"""Of a value: constants of a program, such as the weight 5/11 of a replica, have 32 bits."""
_BEGUN = 1e3
"""Times the new value: a larger change says only what the old one was."""
_ROUNDING = 1e-9
"""Of a change: less of it than that is rounding of the old value."""
_ROUNDED = 1e-4, 2e-6
"""The same for code around the replicas, which computes in 32 bits: of the change, and of the value."""


@dataclass(slots=True, eq=False)
class Difference:
    """A value that replicas compute and one device does not.

    Attributes:
      name: the variable's name, or where in the result it stands.
      alone: the value on one device.
      others: the value on the replicas, or each replica's.
      error: the largest difference, as a part of the largest change (or value) on one device.
      variable: the variable; None for results.
      own: True for state of which each replica has another value.
      state: True for what the next call begins with: a variable, or a result that is its argument.
    """

    name: str
    alone: Any
    others: Any
    error: float
    variable: Variable | None
    own: bool = False
    state: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """Tells it from others: two variables may have one name, as those of a model and their averages."""
        return self.name, id(self.variable)


@dataclass(slots=True)
class Before:
    """The arguments and variables of a step, before it runs.

    Attributes:
      variables: what they hold.
      results: by the path of a result that looks like an argument that argument.
      fed: the paths of those that were seen to be the argument of the next call.
    """

    variables: Mapping[Variable, Any]
    results: Mapping[str, Any]
    fed: Collection[str] = ()


def differences(
    alone: Outcome, found: Outcome, before: Before, open_: list[str], pending: list[str]
) -> Iterator[Difference]:
    """Gives what differs.

    Args:
      alone: the step on one device.
      found: the step on replicas.
      before: what it was given.
      open_: gets what cannot be compared, in words.
      pending: gets the names of results that differ on each replica and would be a mistake if they were state.
    """
    state = before.variables
    changes: dict[Variable, tuple[Any, Any, Any]] = {}
    for variable, one in alone.written.items():
        if variable not in found.written:
            continue  # which `missing` tells
        other, old = found.written[variable], state[variable]
        if is_rows(variable):
            one, other, old = combined(variable, one), combined(variable, other), combined(variable, old)
        if one is None or is_key(one):
            continue
        changes[variable] = (np.asarray(one), np.asarray(other), np.asarray(old))
    trained = {one.shape for variable, (one, _, _) in changes.items() if variable.trainable}
    # Not of counters and metrics, whose numbers may be of any size; slots are like their variables.
    largest = _largest_change((one, old) for one, _, old in changes.values() if not trained or one.shape in trained)
    rounded = alone.rounded or found.rounded
    means = _counted_alike(changes, found.arrangement.replicas)
    for variable, (one, other, old) in changes.items():
        if variable in means:
            continue
        scale, error = _change(one, old), _error(one, other)
        if not error <= _allowed(one, scale, largest, rounded=rounded):
            yield Difference(variable.name.removesuffix(":0"), one, other, _part(error, scale), variable, state=True)
    yield from _results(alone, found, before, open_, pending, rounded=rounded)


def missing(alone: Outcome, found: Outcome) -> list[str]:
    """Tells variables that are written on one device alone, or on replicas alone, in words."""
    both = (
        (alone.written, found.written, "one device", found.arrangement),
        (found.written, alone.written, found.arrangement, "one device"),
    )
    return [
        f"{variable.name} is written on {where} and not on {other}"
        for written, others, where, other in both
        for variable in written
        if variable not in others
    ]


def _counted_alike(changes: Mapping[Variable, tuple[Any, Any, Any]], replicas: int) -> set[Variable]:
    """The sums and counts of Keras's means to which each replica adds a number: both grow alike, the mean is right."""
    with np.errstate(invalid="ignore"):
        grown = {
            variable
            for variable, (one, other, old) in changes.items()
            if not variable.trainable
            and one.dtype.kind == "f"
            and _error(other - old, (one - old) * replicas) <= _RELATIVE * _largest(one - old)
        }
    if len(grown) < 2:
        return set()
    return {variable for pair in means() if grown.issuperset(pair) for variable in pair}


def _allowed(one: Any, scale: float, largest: float, *, rounded: bool) -> float:
    """The difference that two values of a state may have, if one changes by `scale`, and all by `largest`."""
    if rounded:
        return _ROUNDED[0] * scale + _ROUNDED[1] * max(_largest(one), largest) + _CONSTANTS * _largest(one)
    return _RELATIVE * scale + _GLOBAL * largest + _CONSTANTS * _largest(one)


def _results(
    alone: Outcome, found: Outcome, before: Before, open_: list[str], pending: list[str], *, rounded: bool
) -> Iterator[Difference]:
    olds = {path: as_wide(old) for path, old in before.results.items() if not is_key(old)}
    real = {path: one for path, one in alone.outputs.items() if path in olds and _is_real(one)}
    arrays = [path for path, one in real.items() if np.ndim(one)]
    largest = _largest_change((real[path], olds[path]) for path in arrays or real)
    for path, one in alone.outputs.items():
        other = found.outputs.get(path)
        name = f"the result{path}"
        if is_key(one) or other is None:
            continue
        if isinstance(other, tuple):
            parts = [np.asarray(part) for part in other]
            other = _joined(np.asarray(one), parts, found)
            if other is None:
                # By its type it may differ from replica to replica; its numbers may not.
                other = max(parts, key=lambda part: _error(np.asarray(one), part))
                same = not any(True for _ in compared(name, np.asarray(one), other, rounded=rounded))
                if path not in olds:
                    if not same:
                        open_.append(f"{name} is a value of each replica, which nothing reduces within the step")
                    continue
                scale = _change(one, olds[path])
                error = _error(np.asarray(one), other)
                if is_seed(one) or error <= _allowed(one, scale, largest, rounded=rounded):
                    continue
                if path not in before.fed:
                    pending.append(name)
                    continue
                yield Difference(name, one, other, _part(error, scale), None, own=True, state=True)
                continue
        if np.shape(other) != np.shape(one):
            open_.append(f"{name} has shape {np.shape(one)} on one device and {np.shape(other)} on {found.arrangement}")
            continue
        if path not in real:
            yield from compared(name, one, other, rounded=rounded)
            continue
        # A small step changes a large value by little.
        scale, error = _change(one, olds[path]), _error(np.asarray(one), np.asarray(other))
        if not error <= _allowed(one, scale, largest, rounded=rounded):
            yield Difference(name, one, other, _part(error, scale), None, state=True)


def compared(name: str, one: Any, other: Any, *, rounded: bool) -> Iterator[Difference]:
    """Gives the difference of two results, if there is one."""
    scale, error = _largest(one), _error(np.asarray(one), np.asarray(other))
    if not error <= (1e-4 if rounded else _RELATIVE) * scale + 1e-12:
        yield Difference(name, one, other, _part(error, scale), None)


def shows(one: Outcome, before: Before, margin: float = 1.0, *, slots: bool = False) -> bool:
    """True if a step changes what is trained by more than may differ: else no mistake in the change is seen.

    Args:
      one: the step on one device.
      before: what it was given.
      margin: how many times as much.
      slots: whether slots count as well: what is shaped as what is trained.
    """
    shapes = {np.shape(value) for variable, value in one.written.items() if variable.trainable}
    pairs = [
        (combined(variable, value), combined(variable, old)) if is_rows(variable) else (value, old)
        for variable, value in one.written.items()
        if variable.trainable or (slots and np.shape(value) in shapes)
        for old in [before.variables[variable]]
    ]
    if any(value is None for value, _ in pairs):
        return True  # which is each replica's own, and not compared
    pairs += [(one.outputs[path], as_wide(old)) for path, old in before.results.items() if not is_key(old)]
    real = [(value, old) for value, old in pairs if not is_key(value) and value.dtype.kind in "fc"]
    largest = _largest_change(iter(real))
    return any(
        not np.isfinite(value).all()
        or (scale := _change(value, old)) > margin * _allowed(value, scale, largest, rounded=one.rounded)
        for value, old in real
    )


def value_of(one: Outcome, difference: Difference) -> Any:
    """The value on one device of what differs."""
    if difference.variable is not None:
        return one.written[difference.variable]
    return one.outputs[difference.name.removeprefix("the result")]


def inner_of(one: Outcome, difference: Difference) -> Any:
    """The value that the replicas have left in a variable."""
    return None if difference.variable is None else one.inner.get(difference.variable)


def _joined(one: Any, parts: list[Any], found: Outcome) -> Any:
    """The replicas' rows behind each other; None for what has none."""
    rows = found.arrangement.rows
    if one.ndim and one.shape[0] and one.shape[0] % rows == 0 and sum(part.shape[0] for part in parts) == one.shape[0]:
        return np.concatenate(parts)
    return None


def _is_real(value: Any) -> bool:
    return value.dtype.kind in "fiuc"


def _change(one: Any, old: Any) -> float:
    """The largest change of a value; what it has begun with may be -1e9, which is no size of anything."""
    if not _is_real(one):
        return 1.0
    with np.errstate(invalid="ignore"):  # infinite, such as the loss before the first step
        change, now = _largest(one - old), _largest(one)
    # No finer than rounding of what it has begun with.
    return min(change, max(_BEGUN * now, _ROUNDING * change)) if now else change


def _largest_change(pairs: Iterator[tuple[Any, Any]]) -> float:
    """The largest change of several values, each with what it was before."""
    return max((_change(one, old) for one, old in pairs if _is_real(one)), default=0.0)


def _largest(value: Any) -> float:
    array = np.abs(np.asarray(value, np.float64) if np.asarray(value).dtype.kind != "c" else np.asarray(value))
    return float(np.max(array[np.isfinite(array)], initial=0.0))


def _error(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return np.inf
    if one.dtype.kind not in "fc":
        return float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)), initial=0.0))
    both = np.isnan(one) & np.isnan(other)
    with np.errstate(invalid="ignore"):
        apart = np.where(both | (one == other), 0.0, np.abs(one - other))
    return float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))


def _part(error: float, scale: float) -> float:
    return error / scale if scale else np.inf
