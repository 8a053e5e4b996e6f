"""Axes along the rows of a batch: those that are longer in the program of more rows."""

from __future__ import annotations

from typing import Any

from jaxtribute.extending import JaxprEqn, Programs


class Different(Exception):  # noqa: N818
    """The two programs differ in more than the number of rows."""


def scaled_axes(one: Any, other: Any) -> tuple[int, ...]:
    """The axes of a value that lie along the rows."""
    shapes = getattr(one.aval, "shape", ()), getattr(other.aval, "shape", ())
    if len(shapes[0]) != len(shapes[1]):
        raise Different(f"a value has the shapes {shapes[0]} and {shapes[1]}")
    return tuple(axis for axis, pair in enumerate(zip(*shapes, strict=True)) if pair[0] != pair[1])


def lengths_of(one: Any, other: Any, axis: int) -> tuple[int, int]:
    """The lengths of an axis in both programs."""
    return Programs.aval(one).shape[axis], Programs.aval(other).shape[axis]


def is_along_all(lengths: tuple[int, int], gathered: set[tuple[int, int]]) -> bool:
    """True for an axis along the rows of all replicas, or several views of them one after another."""
    return any(lengths[0] % n == 0 and lengths[0] // n * m == lengths[1] for n, m in gathered)


def lost_axes(one: JaxprEqn, other: JaxprEqn, gathered: set[tuple[int, int]]) -> int:
    """The number of axes along the replica's own rows that an operation sums over."""
    name = one.primitive.name

    def own(place: int) -> set[int]:
        atoms = one.invars[place], other.invars[place]
        lost: set[int] = set()
        for axis in scaled_axes(*atoms):
            lost.update(() if is_along_all(lengths_of(*atoms, axis), gathered) else (axis,))
        return lost

    if name == "reduce_sum":
        return len(own(0) & set(one.params["axes"]))
    if name == "dot_general":
        contracted = one.params["dimension_numbers"][0][0]
        return len(own(0) & set(contracted))
    if name in ("scatter-add", "scatter_add"):
        return 1 if own(2) and not scaled_axes(one.outvars[0], other.outvars[0]) else 0
    if name == "conv_general_dilated":
        return 1 if own(0) and not scaled_axes(one.outvars[0], other.outvars[0]) else 0
    return 0
