"""The matrix products and convolutions of a traced program, for each to be made by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import jax

from jaxtribute.extending import Jaxpr, JaxprEqn, Programs
from jaxtribute.typing import Array

_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
_MOST = 64
"""Times that one product is repeated in a program that makes them all; more of them are made in proportion."""


@dataclass(frozen=True)
class Product:
    """A matrix product or convolution, on one device.

    Attributes:
      shapes: shape and type of each operand.
      make: computes it.
      times: how often a step does so.
    """

    shapes: tuple[jax.ShapeDtypeStruct, ...]
    make: Callable[..., Any]
    times: int


def products(jaxpr: Jaxpr) -> list[Product]:
    """The products of a traced program and of those inside it; what a scan repeats counts as often, a while once."""
    counted: Counter[Any] = Counter()
    first: dict[Any, Any] = {}
    for equation, times in _equations(jaxpr, 1):
        if equation.primitive.name in _PRODUCTS:
            # Equal products take equal time: one of each is made, as often as it occurs.
            key = (equation.primitive.name, _operands(equation), str(equation.params))
            first.setdefault(key, equation)
            counted[key] += times
    return [_product(first[key], times) for key, times in counted.items()]


def _operands(equation: JaxprEqn) -> tuple[jax.ShapeDtypeStruct, ...]:
    avals: list[Any] = [atom.aval for atom in equation.invars]
    return tuple([jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals])


def _product(equation: JaxprEqn, times: int) -> Product:
    parameters = dict(equation.params)
    if "out_sharding" in parameters:
        parameters["out_sharding"] = None  # each device makes it by itself
    return Product(_operands(equation), lambda *operands: equation.primitive.bind(*operands, **parameters), times)


def _equations(jaxpr: Jaxpr, times: int) -> Generator[tuple[JaxprEqn, int]]:
    for equation in jaxpr.eqns:
        yield equation, times
        # A scan says how often it runs; how often a while does is known only when it runs.
        inner = times * Programs.scan_counts(equation)[2] if equation.primitive.name == "scan" else times
        for part in Programs.programs_in(equation):
            yield from _equations(Programs.opened(part), inner)


def all_made(found: Sequence[Product]) -> tuple[Callable[..., Any], float, list[int]]:
    """A function that makes all products of a step one after the other; its arguments are a carry and the operands.

    Returns:
      The function, which returns a new carry and its results; which part of the products it makes; and the bytes of
      the passes that it makes besides: each product is made to depend on the one before by a change of its smaller
      operand, or they would be made at once.
    """
    times = list(map(attrgetter("times"), found))
    share = min(_MOST / max(times), 1.0)
    # A deep model has thousands; a part of them in the right proportion tells the same.
    counts = [max(round(one * share), 1) for one in times]
    smaller = [min(range(len(one.shapes)), key=lambda place: one.shapes[place].size) for one in found]

    def make(carry: Array, *given: Array) -> Any:
        rest, nothing = list(given), carry * 0
        results: list[Any] = []
        for one, count, place in zip(found, counts, smaller, strict=True):
            operands, rest = rest[: len(one.shapes)], rest[len(one.shapes) :]
            for _ in range(count):
                changed = operands[place] + nothing.astype(operands[place].dtype).reshape([1] * operands[place].ndim)
                results.append(one.make(*operands[:place], changed, *operands[place + 1 :]))
                # Zero, but not to XLA: zero times infinity is not. So the next product waits for this one.
                nothing = results[-1].reshape(-1)[:1] * 0
        return nothing.astype(carry.dtype), results

    besides: list[int] = []
    for one, count, place in zip(found, counts, smaller, strict=True):
        changed = one.shapes[place]
        besides += [2 * changed.size * changed.dtype.itemsize] * count
    return make, sum(counts) / sum(times), besides
