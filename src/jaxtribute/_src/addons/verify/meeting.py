"""Collectives of replicas, and draws of random numbers, which have to be compared with one device's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxtribute._src.addons.verify.machine import RANDOM, CannotVerify, Meeting, Record
from jaxtribute._src.addons.verify.operations import apply, key_numbers

if TYPE_CHECKING:
    from jaxtribute._src.addons.verify.stage import Outcome


@dataclass(slots=True)
class Draws:
    """The random numbers that one device with the whole batch has drawn, in order.

    Attributes:
      drawn: for each draw its key and its numbers.
      noting: True while it is that device that runs.
      next: the number of the next draw.
    """

    drawn: list[tuple[Any, Any]] = field(default_factory=list)
    noting: bool = False
    next: int = 0


def meet(meetings: list[Meeting], found: Outcome, draws: Draws) -> list[list[Any]]:
    """Returns each replica's results of an operation that all have come to.

    Raises:
      CannotVerify: an operation that is not known here.
    """
    eqn = meetings[0].eqn
    if eqn.primitive.name in RANDOM:
        return [[value] if not isinstance(value, list) else value for value in _draw(meetings, found, draws)]
    columns = list(zip(*(meeting.operands for meeting in meetings), strict=True))
    if eqn.params.get("axis_index_groups") is not None:
        raise CannotVerify(f"{meetings[0].place or 'an unknown line'} has a collective in groups of replicas")
    results = [_collective(meetings[0], list(column)) for column in columns]
    return [[column[number] for column in results] for number in range(len(meetings))]


def _collective(meeting: Meeting, parts: list[Any]) -> list[Any]:
    """One operand of a collective, for each replica."""
    name, params, count = meeting.eqn.primitive.name, meeting.eqn.params, len(parts)
    alike = len({np.shape(part) for part in parts}) == 1
    if not alike:
        raise CannotVerify(f"{meeting.place or 'an unknown line'} has {name} of different shapes")
    if name in ("psum", "psum_invariant", "jd_sum", "unreduced_psum"):
        return [np.sum(np.stack(parts), axis=0).astype(parts[0].dtype)] * count
    if name in ("pmax", "pmin"):
        return [(np.max if name == "pmax" else np.min)(np.stack(parts), axis=0)] * count
    if name in ("all_gather", "all_gather_invariant"):
        axis = params["all_gather_dimension"]
        return [np.concatenate(parts, axis) if params["tiled"] else np.stack(parts, axis)] * count
    if name in ("reduce_scatter", "psum_scatter"):
        axis, total = params["scatter_dimension"], np.sum(np.stack(parts), axis=0)
        pieces = np.split(total, count, axis)
        return pieces if params["tiled"] else [np.squeeze(piece, axis) for piece in pieces]
    if name == "ppermute":
        results = [np.zeros_like(part) for part in parts]
        for source, target in params["perm"]:
            results[target] = parts[source]
        return results
    if name == "all_to_all" and params.get("tiled"):
        pieces = [np.split(part, count, params["split_axis"]) for part in parts]
        return [np.concatenate([one[number] for one in pieces], params["concat_axis"]) for number in range(count)]
    if name == "pvary":
        return parts
    raise CannotVerify(f"{meeting.place or 'an unknown line'} makes {name!r}, a collective that is not known here")


def _draw(meetings: list[Meeting], found: Outcome, draws: Draws) -> list[Any]:
    """The random numbers of each replica.

    Different keys of the replicas stand for different numbers of as many rows: those that one device has drawn for
    these rows, so that both can be compared. The same key for different rows is a mistake, which is noted.
    """
    own = [apply(meeting.eqn, meeting.operands) for meeting in meetings]
    keys = [key_numbers(meeting.operands[0]) for meeting in meetings]
    if draws.noting:
        draws.drawn.append((keys[0], own[0]))
        return own
    number, draws.next = draws.next, draws.next + 1
    if number >= len(draws.drawn):
        found.lost.append(f"{meetings[0].place or 'an unknown line'} draws random numbers that one device does not")
        return own
    key, whole = draws.drawn[number]
    sizes = found.arrangement.sizes
    busy = [index for index, size in enumerate(sizes) if size]
    same = all(_alike(keys[index], keys[busy[0]]) for index in busy)
    whole_shape, shapes = whole[0].shape, [one[0].shape for one in own]
    # One without examples may draw for rows that it makes up.
    axis = _axis(whole_shape, [shapes[index] for index in busy])
    if axis is None:
        if all(shape == whole_shape for shape in shapes):
            # As many numbers as one device has, such as noise of the weights: the replicas' keys stand for its key.
            found.private = found.private or not same
            return [whole] * len(own)
        found.lost.append(f"{meetings[0].place or 'an unknown line'} draws random numbers of other shapes")
        return own
    if keys[0].ndim and _joined(keys, key):
        return own
    if same and len(busy) > 1:
        meeting = meetings[busy[0]]
        operands, results = tuple(meeting.operands), tuple(own[busy[0]])
        found.repeated.append(Record(meeting.eqn.primitive.name, operands, results, meeting.eqn, meeting.place))
    bounds = np.cumsum([shapes[index][axis] for index in busy])[:-1]
    pieces = [np.split(value, bounds, axis) if value.ndim > axis else None for value in whole]
    drawn = dict(enumerate(own))
    for order, index in enumerate(busy):
        drawn[index] = [mine if piece is None else piece[order] for piece, mine in zip(pieces, own[index], strict=True)]
    return list(drawn.values())


def _alike(one: Any, other: Any) -> bool:
    """True for equal keys; of several keys, one for each row, those that both have count."""
    if one.ndim > 1 and other.ndim > 1:
        count = min(len(one), len(other))
        one, other = one[:count], other[:count]
    return np.array_equal(one, other)


def _joined(keys: list[Any], key: Any) -> bool:
    """True if the replicas' keys behind each other are those of one device."""
    whole = np.concatenate(keys)
    return whole.shape == key.shape and np.array_equal(whole, key)


def _axis(whole: tuple[int, ...], shapes: list[tuple[int, ...]]) -> int | None:
    """The axis along which the replicas' numbers make up those of one device."""
    for axis, size in enumerate(whole):
        if all(len(shape) == len(whole) for shape in shapes) and sum(shape[axis] for shape in shapes) == size:
            rest = whole[:axis] + whole[axis + 1 :]
            if all(shape[:axis] + shape[axis + 1 :] == rest for shape in shapes):
                return axis
    return None
