"""Warns of means over the replicas that uneven batches make wrong.

`lax.pmean`, `all_reduce("MEAN")` and `reduce("MEAN", ..., axis=None)` count each replica once, however many rows it
has; `lax.psum` of a plain number, such as `x.shape[0]`, is that number times the replicas, not the sum of the replicas'
numbers; `compute_average_loss` without a `global_batch_size` divides by a replica's rows times the replicas. Programs
of replicas with different numbers of rows show it: the same value is scaled by other numbers in each, or a sum is
divided by another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isnan
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute.extending import Callers, Jaxpr, JaxprEqn, Literal, Programs, Tracer, points
from jaxtribute.nn import compute_average_loss

_LIBRARY = str(Path(__file__).resolve().parents[3]) + os.sep
_AVERAGES = compute_average_loss.__code__.co_filename
_CORE = str(Path(__file__).resolve().parents[2] / "core") + os.sep
_HINT = (
    "HINT: add up sums and counts, context = jd.get_replica_context(): context.all_reduce('SUM', x.sum(0)) / "
    "context.all_reduce('SUM', x.shape[0]); or drop the last batch, drop_remainder=True."
)
_GIVE = (
    "HINT: give it the rows of all, global_batch_size=jd.get_replica_context().all_reduce('SUM', x.shape[0]), or the "
    "size of the whole batch that the program knows."
)
_MOST_SCALES = 64
"""Number of products that are followed; beyond, nothing is said."""
_PASSING = frozenset(
    {"jd_idle_guard", "reshape", "squeeze", "broadcast_in_dim", "convert_element_type", "slice", "copy"}
)
"""Operations between a sum over the replicas and its division."""
_ONE = frozenset([1.0])
_REAL = ("float", "bfloat", "int", "uint")
_MEAN = "takes a mean over the replicas, which counts each once, however many rows it has"


class _Class(Protocol):
    """The replicas that see the same shapes: their program, its ragged inputs' shapes, and the collectives in it."""

    @property
    def closed(self) -> Any: ...
    @property
    def jaxpr(self) -> Jaxpr: ...
    @property
    def shapes(self) -> Mapping[Any, tuple[int, ...]]: ...
    @property
    def collectives(self) -> Sequence[JaxprEqn]: ...


def check(classes: Sequence[_Class], rows: Sequence[int]) -> list[str]:
    """Warns of each sum of the user's that is no mean over the rows, though it is divided as one.

    Args:
      classes: the programs of replicas with different shapes, which make the same collectives.
      rows: every replica's number of rows.

    Returns:
      For each of the programs' results what to warn of if its mean is taken; empty if that would be right.
    """
    scales = [_Scales(one) for one in classes]
    counts = f"The replicas have {', '.join(map(str, rows))} rows."
    had = f"{counts} {_HINT}"
    for line in _default_counts([one.jaxpr for one in classes]) if len(set(rows)) > 1 else ():
        told = "divides a loss by its replica's rows times the replicas: compute_average_loss has no global_batch_size"
        Callers.warn(f"{line} {told}. {counts} {_GIVE}", RuntimeWarning)
    for sums in zip(*(one.collectives for one in classes), strict=True):
        for total in _inner_means(sums[0], len(rows)):
            _warn(total, _MEAN, had)
        if not _is_own_sum(sums[0]):
            continue
        divisors = [_divisors(one.jaxpr, eqn) for one, eqn in zip(classes, sums, strict=True)]
        if len(set(divisors)) > 1:
            told = (
                "divides a sum over the replicas by a number that is not the same on all: lax.psum of a plain number, "
                "as x.shape[0], multiplies it by the number of replicas"
            )
        elif _is_mean(divisors[0], rows) and _differ(scales, [eqn.invars for eqn in sums], len(rows) in divisors[0]):
            told = _MEAN
        else:
            continue
        _warn(sums[0], told, had)
    results = zip(*(one.jaxpr.outvars for one in classes), strict=True)
    return [had if _differ(scales, [[atom] for atom in atoms]) else "" for atoms in results]


def _warn(total: JaxprEqn, told: str, had: str) -> None:
    line = Programs.user_line(total, "site-packages", _LIBRARY) or Programs.user_line(total) or "a replica"
    Callers.warn(f"{line} {told}. {had}", RuntimeWarning)


def _default_counts(programs: Sequence[Jaxpr]) -> list[str]:
    """The lines that have `compute_average_loss` divide by other numbers in each program, and give it none."""
    found: dict[str, list[set[float]]] = {}
    for number, jaxpr in enumerate(programs):
        for eqn in _of_averages(jaxpr):
            frame = next((one for one in Programs.user_frames(eqn) if not one.file_name.startswith(_LIBRARY)), None)
            if frame is not None:
                found.setdefault(f"{frame.file_name}:{frame.start_line}", [set() for _ in programs])[number].update(
                    _plain(eqn.invars[:1])
                )
    return [line for line, numbers in found.items() if any(one != numbers[0] for one in numbers)]


def _of_averages(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The operations of `compute_average_loss` on its own number of examples, also in programs inside."""
    for eqn in jaxpr.eqns:
        frames = (one for one in Programs.user_frames(eqn) if one.file_name == _AVERAGES)
        if eqn.primitive.name == "max" and any(one.function_name == "_default_count" for one in frames):
            yield eqn
        for program in Programs.programs_in(eqn):
            yield from _of_averages(Programs.opened(program))


def _inner_means(eqn: JaxprEqn, replicas: int) -> Iterator[JaxprEqn]:
    """The means over the replicas inside of a loop or a condition, whatever they are of."""
    for program in Programs.programs_in(eqn):
        body = Programs.opened(program)
        for inner in body.eqns:
            if _is_own_sum(inner) and replicas in _divisors(body, inner):
                yield inner
            yield from _inner_means(inner, replicas)


def _is_own_sum(eqn: JaxprEqn) -> bool:
    """True for a sum over the replicas that the user's code asks for."""
    return eqn.primitive.name == "psum" and Programs.names_axis(eqn, AXIS) and _is_of_user(eqn)


def _is_of_user(eqn: JaxprEqn) -> bool:
    """True if the user's code asks for a sum, and not a layer or metric that makes it in the user's stead."""
    frames = (frame.file_name for frame in Programs.user_frames(eqn))
    outside = next((name for name in frames if not name.startswith(_CORE)), _LIBRARY)
    return not outside.startswith(_LIBRARY)


def _divisors(jaxpr: Jaxpr, total: JaxprEqn) -> tuple[float, ...]:
    """The plain numbers that a sum is divided by."""
    totals, numbers = set(total.outvars), list[float]()
    for eqn in jaxpr.eqns:
        if not eqn.invars or isinstance(eqn.invars[0], Literal) or eqn.invars[0] not in totals:
            continue
        if eqn.primitive.name == "div":
            numbers.extend(_plain(eqn.invars[1:]))
        elif eqn.primitive.name in _PASSING:
            totals.update(eqn.outvars)
    return tuple(numbers)


def _is_mean(divisors: Sequence[float], rows: Sequence[int]) -> bool:
    """True if a sum is divided by the number of replicas, or of those that have rows."""
    return len(rows) in divisors or np.count_nonzero(rows) in divisors


def _differ(scales: Sequence[_Scales], values: Sequence[Iterable[Any]], every: bool = False) -> bool:
    """True if values are scaled by numbers that depend on the shapes, as a mean over the rows is.

    Args:
      scales: those of each program.
      values: for each program what is combined over the replicas.
      every: whether replicas without rows count too: to them a mean is NaN.
    """
    sets = [one.of(atoms) for one, atoms in zip(scales, values, strict=True)]
    counting = {one for one, scale in zip(sets, scales, strict=True) if scale.has_rows}
    without = any(inf in one for one, scale in zip(sets, scales, strict=True) if not scale.has_rows)
    return (len(counting) > 1 or (every and without)) and all(len(one) < _MOST_SCALES for one in sets)


class _Scales:
    """The plain numbers that a replica's values are multiplied by on their way, since the sums over the replicas.

    A value that is made on several ways, such as a variance, has a product for each of them.
    """

    def __init__(self, one: _Class) -> None:
        self._of: dict[Any, frozenset[float]] = {}
        self._numbers: dict[Any, float] = {}
        """The constants that are plain numbers."""
        self._meetings = set(map(id, one.collectives))
        self.has_rows = any(0 not in shape for shape in one.shapes.values())
        for variable, value in zip(one.jaxpr.constvars, Programs.constants(one.closed), strict=False):
            if (
                not isinstance(value, Tracer)
                and not np.ndim(value)
                and str(getattr(value, "dtype", "")).startswith(_REAL)
            ):
                self._numbers[variable] = float(value)
        self._follow(one.jaxpr)

    def of(self, atoms: Iterable[Any]) -> frozenset[float]:
        """The products of all ways that lead to some values."""
        ways = [self._of.get(atom, _ONE) for atom in atoms if not isinstance(atom, Literal)]
        return _few(product for way in ways for product in way)

    def _follow(self, jaxpr: Jaxpr) -> None:
        for eqn in jaxpr.eqns:
            inner = list(map(Programs.opened, Programs.programs_in(eqn)))
            if id(eqn) in self._meetings:
                scales = _ONE
            elif inner:
                scales = _few(number for one in inner for number in self._within(one, eqn.invars))
            elif eqn.primitive.name in ("mul", "div"):
                scales = self._product(eqn)
            else:
                scales = self.of(eqn.invars)
            self._of.update(dict.fromkeys(eqn.outvars, scales))

    def _within(self, inner: Jaxpr, operands: Sequence[Any]) -> frozenset[float]:
        """The products of a called program's results."""
        # The last operands are those of the program, whatever stands before them.
        for variable, operand in zip(reversed(inner.invars), reversed(operands), strict=False):
            self._of[variable] = self.of([operand])
        self._follow(inner)
        return self.of(inner.outvars)

    def _product(self, eqn: JaxprEqn) -> frozenset[float]:
        first, second = map(self._factors, eqn.invars)
        if eqn.primitive.name == "div":
            second = frozenset(1 / number if number else inf for number in second)
        return _few(one * two for one in first for two in second)

    def _factors(self, atom: Any) -> frozenset[float]:
        if isinstance(atom, Literal):
            return frozenset(_plain([atom])) or _ONE
        return frozenset([self._numbers[atom]]) if atom in self._numbers else self.of([atom])


def _few(numbers: Iterable[float]) -> frozenset[float]:
    """Numbers to six digits, as products come in another order; no more than are followed, and at least 1."""
    rounded = {inf if isnan(number) else float(f"{number:.6g}") for number in numbers}
    return frozenset(sorted(rounded)[:_MOST_SCALES]) or _ONE


def _plain(atoms: Sequence[Any]) -> list[float]:
    """Those of some operands that are plain numbers."""
    values = [atom.val for atom in atoms if isinstance(atom, Literal)]
    return [float(value) for value in values if np.isrealobj(value) and np.ndim(value) == 0]


points.UNEVEN.register(check)
