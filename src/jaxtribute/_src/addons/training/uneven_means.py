"""Warns of means over the replicas that uneven batches make wrong.

`lax.pmean`, `all_reduce("MEAN")` and `reduce("MEAN", ..., axis=None)` count each replica once, however many rows it
has; `lax.psum` of a plain number, such as `x.shape[0]`, is that number times the replicas, not the sum of the replicas'
numbers; `compute_average_loss` without a `global_batch_size` divides by a replica's rows times the replicas; and
optimizers add gradients up, those of means too. Programs of replicas with different numbers of rows show it: the same
value is scaled by other numbers in each, or a sum is divided by another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute import Optimizer
from jaxtribute._src.addons.training.loss_objects import is_of_loss_object
from jaxtribute._src.addons.training.scales import MOST, ReplicaProgram, Scales, number_of
from jaxtribute.extending import Callers, Jaxpr, JaxprEqn, Literal, Programs, points
from jaxtribute.nn import compute_average_loss

_LIBRARY = str(Path(__file__).resolve().parents[3]) + os.sep
_AVERAGES = compute_average_loss.__code__.co_filename
_OPTIMIZER = Optimizer.apply_gradients.__code__.co_filename
_CORE = str(Path(__file__).resolve().parents[2] / "core") + os.sep
_HINT = (
    "HINT: add up sums and counts, context = jd.get_replica_context(): context.all_reduce('SUM', x.sum(0)) / "
    "context.all_reduce('SUM', x.shape[0]); or drop the last batch, drop_remainder=True."
)
_COUNT = "count = get_replica_context().all_reduce('SUM', x.shape[0])"
_BY_DEFAULT = (
    "divides a loss by its replica's rows times the replicas, as compute_average_loss does without a "
    "global_batch_size. {had} HINT: write "
    f"{_COUNT}, and compute_average_loss(losses, global_batch_size=count); or give it the size of the whole batch "
    "that the program knows."
)
_BY_LOSS_OBJECT = (
    "takes the mean of a loss object of Keras, which divides by its replica's rows times the replicas. {had} HINT: "
    "make the object with reduction=None, and write "
    f"{_COUNT}, and tf.nn.compute_average_loss(loss_object(y, y_pred), global_batch_size=count); of "
    "a row that has several losses their mean."
)
_PASSING = frozenset(
    {"jd_idle_guard", "reshape", "squeeze", "broadcast_in_dim", "convert_element_type", "slice", "copy"}
)
"""Operations between a sum over the replicas and its division."""
_SUMMED = (
    "gradients of a mean over each replica's rows are given to an optimizer, which adds them up: each replica counts "
    "alike, however many rows it has; and unless the mean is divided by their number, the sum is {count} times that of "
    "one device, on batches that divide, too. {had} HINT: divide sums by the rows of the whole batch, as "
    "jd.nn.compute_average_loss(losses, global_batch_size=...) does."
)
_MEAN = "takes a mean over the replicas, which counts each once, however many rows it has"


def check(classes: Sequence[ReplicaProgram], rows: Sequence[int]) -> list[str]:
    """Warns of each sum of the user's that is no mean over the rows, though it is divided as one.

    Args:
      classes: the programs of replicas with different shapes, which make the same collectives.
      rows: every replica's number of rows.

    Returns:
      For each of the programs' results what to warn of if its mean is taken; empty if that would be right.
    """
    scales = [Scales(one) for one in classes]
    counts = f"The replicas have {', '.join(map(str, rows))} rows."
    had = f"{counts} {_HINT}"
    default = _default_counts([one.jaxpr for one in classes]) if len(set(rows)) > 1 else {}
    for line, told in default.items():
        Callers.warn(f"{line} {told.format(had=counts)}", RuntimeWarning)
    for sums in zip(*(one.collectives for one in classes), strict=True):
        for total in _inner_means(sums[0], len(rows)):
            _warn(total, _MEAN, had)
        divisors = [_divisors(one.jaxpr, eqn) for one, eqn in zip(classes, sums, strict=True)]
        summed = not default and _is_of_optimizer(sums[0]) and not _is_mean(divisors[0], rows)
        if summed and _are_means(scales, classes, [eqn.invars for eqn in sums]):
            Callers.warn(_SUMMED.format(count=np.count_nonzero(rows), had=counts), RuntimeWarning)
        if not _is_own_sum(sums[0]):
            continue
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


def _default_counts(programs: Sequence[Jaxpr]) -> dict[str, str]:
    """The lines that have `compute_average_loss` divide by other numbers in each program, and what to tell of them."""
    found: dict[tuple[str, str], list[set[float]]] = {}
    for number, jaxpr in enumerate(programs):
        for eqn in _of_averages(jaxpr):
            line = Programs.user_line(eqn, "site-packages", _LIBRARY)
            told = _BY_LOSS_OBJECT if is_of_loss_object(eqn) else _BY_DEFAULT
            if line is not None:
                found.setdefault((line, told), [set() for _ in programs])[number].update(_plain(eqn.invars[:1]))
    return {line: told for (line, told), numbers in found.items() if any(one != numbers[0] for one in numbers)}


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


def _is_of_optimizer(eqn: JaxprEqn) -> bool:
    """True for a sum over the replicas of the gradients that an optimizer was given."""
    adds = eqn.primitive.name == "psum" and Programs.names_axis(eqn, AXIS)
    return adds and any(frame.file_name == _OPTIMIZER for frame in Programs.user_frames(eqn))


def _are_means(scales: Sequence[Scales], classes: Sequence[ReplicaProgram], values: Sequence[Iterable[Any]]) -> bool:
    """True if what replicas add up is scaled by one over each one's own rows, where it is not scaled alike on all."""
    sets: dict[int, frozenset[float]] = {}
    for one, scale, atoms in zip(classes, scales, values, strict=True):
        count = {shape[0] for shape in one.shapes.values() if shape}
        if scale.has_rows and len(count) == 1:
            sets[count.pop()] = scale.of(atoms)
    if len(sets) < 2 or any(len(found) >= MOST or inf in found for found in sets.values()):
        return False
    alike = frozenset.intersection(*sets.values())
    whole = {count: {float(f"{number * count:.5g}") for number in found} for count, found in sets.items()}
    common = set.intersection(*whole.values())
    other = [float(f"{number * count:.5g}") for count, found in sets.items() for number in found - alike]
    return bool(other) and common.issuperset(other)


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


def _differ(scales: Sequence[Scales], values: Sequence[Iterable[Any]], every: bool = False) -> bool:
    """True if values are scaled by numbers that depend on the shapes or on the rows, as a mean over the rows is.

    Args:
      scales: those of each program.
      values: for each program what is combined over the replicas.
      every: whether replicas without rows count too: to them a mean is NaN.
    """
    sets = [one.of(atoms) for one, atoms in zip(scales, values, strict=True)]
    counting = {one for one, scale in zip(sets, scales, strict=True) if scale.has_rows}
    without = any(inf in one for one, scale in zip(sets, scales, strict=True) if not scale.has_rows)
    own = any(inf in one for one in counting)
    return (len(counting) > 1 or own or (every and without)) and all(len(one) < MOST for one in sets)


def _plain(atoms: Sequence[Any]) -> list[float]:
    """Those of some operands that are plain numbers."""
    numbers = (number_of(atom) for atom in atoms if isinstance(atom, Literal))
    return [number for number in numbers if number is not None]


points.UNEVEN.register(check)
