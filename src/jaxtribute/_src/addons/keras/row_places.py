"""Finds operations that take rows of a batch in another order, by numbers that no row has: drawn, or counted.

A number that comes of a row, such as a label, may say where to look for that row's own values. Of all others each
replica has those of its own few rows: a permutation of them is none of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxtribute.extending import JaxprEqn, Programs, Tracer

DRAWN = "rows in an order that is drawn"
_COUNTED = "rows in an order of their numbers"
_LARGE = 4096
"""Values of more elements are not computed."""
_COMPUTED = (
    Programs.ELEMENTWISE
    | frozenset(
        "argmax argmin broadcast_in_dim concatenate cumsum dynamic_slice expand_dims gather iota pad reduce_max "
        "reduce_min reduce_prod reduce_sum reshape rev slice sort split squeeze stack tile transpose unstack".split()
    )
) - {"optimization_barrier"}
"""Operations on numbers that are done to see what these come to."""


class Place:
    """A value that may be used as a place in a batch.

    Args:
      made: the operations of both programs that give it; None for constants.
      number: which result of theirs it is.
      given: what these are given; None for what the batch gives.
      constants: the values in both programs.
    """

    def __init__(
        self,
        made: tuple[JaxprEqn, JaxprEqn] | None = None,
        number: int = 0,
        given: Sequence[Place | None] = (),
        constants: tuple[Any, Any] | None = None,
    ) -> None:
        known = [one for one in given if one is not None]
        self.free: bool = len(known) == len(given) and all(one.free for one in known)
        """True if it depends on no row."""
        self.drawn: bool = any(one.drawn for one in known)
        """True if it depends on numbers that are drawn at random."""
        if made is not None and made[0].primitive.name.startswith("random_"):
            self.drawn = True
        self._made, self._number, self._given = made, number, given
        self._values: list[tuple[Any, ...] | None] = [None, None]
        if constants is not None and not any(isinstance(value, Tracer) for value in constants):
            self._values = [(value,) for value in constants]

    def value(self, which: int) -> Any:
        """The value in one of both programs; None if it is not known."""
        if self._values[which] is None:
            self._values[which] = (self._computed(which),)
        return (self._values[which] or (None,))[0]

    def columns(self, count: int) -> Sequence[Place | None]:
        """The parts that lie side by side in its last axis of such a length."""
        if count == 1:
            return [self]
        if self._made is None:
            return []
        eqn, rank = self._made[0], len(Programs.aval(self._made[0].outvars[0]).shape)
        if eqn.primitive.name == "convert_element_type" and self._given[0] is not None:
            return self._given[0].columns(count)
        beside = eqn.primitive.name == "concatenate" and eqn.params["dimension"] == rank - 1
        return self._given if beside and len(self._given) == count else []

    def _computed(self, which: int) -> Any:
        if self._made is None or not self.free or self.drawn:
            return None
        eqn = self._made[which]
        if eqn.primitive.name not in _COMPUTED:
            return None
        if any(np.prod(Programs.aval(var).shape, dtype=int) > _LARGE for var in eqn.outvars):
            return None
        values = [None if one is None else one.value(which) for one in self._given]
        if any(value is None for value in values):
            return None
        with jax.ensure_compile_time_eval():
            return np.asarray(Programs.bind(eqn, values)[self._number])


def reordered(
    one: JaxprEqn,
    other: JaxprEqn,
    axis: int,
    places: Sequence[Place | None],
    rows: tuple[int, int],
) -> str | None:
    """The order that an operation takes or writes rows in, in words; None if that of the batch, or if rows tell it.

    Args:
      one: an operation of the first program.
      other: the same of the second one.
      axis: an axis of its first operand that lies along the rows.
      places: its operands.
      rows: the numbers of rows of a batch in both programs.
    """
    name, params = one.primitive.name, one.params
    lengths = [Programs.aval(eqn.invars[0]).shape[axis] for eqn in (one, other)]
    if any(length % count for length, count in zip(lengths, rows, strict=True)):
        return None  # something else lies along this axis, too
    if name == "dynamic_slice":
        start = places[1 + axis]
        moves = params["slice_sizes"][axis] != lengths[0] and start is not None and start.free and start.drawn
        return DRAWN if moves else None
    if name == "gather":
        dims = params["dimension_numbers"].start_index_map
        whole = params["slice_sizes"][axis] != 1
    elif name.startswith("scatter"):
        dims, whole = params["dimension_numbers"].scatter_dims_to_operand_dims, False
    else:
        return None
    columns = [] if whole or axis not in dims or places[1] is None else places[1].columns(len(dims))
    place = columns[dims.index(axis)] if columns else None
    if place is None or not place.free:
        return None
    if place.drawn:
        # Where a row's values lie one behind the other, a place may be drawn in each row.
        return DRAWN if lengths[0] == rows[0] else None
    values = [place.value(which) for which in (0, 1)]
    if any(value is None for value in values):
        return None
    kept = all(_keeps(value, length, count) for value, length, count in zip(values, lengths, rows, strict=True))
    return None if kept else _COUNTED


def looks_up(eqn: JaxprEqn, places: Sequence[Place | None]) -> bool:
    """True if an operation gives rows what is drawn, or writes where it is drawn, whatever their numbers are."""
    name = eqn.primitive.name
    place = places[0] if name == "gather" else places[1] if name.startswith("scatter") else None
    return place is not None and place.drawn


def _keeps(places: np.ndarray, length: int, rows: int) -> bool:
    """True if places in an axis of such a length are those of all rows, in their order, once or several times."""
    for axis, count in enumerate(places.shape):
        if count == 0 or count % rows:
            continue
        numbers = np.arange(count).reshape([-1 if one == axis else 1 for one in range(places.ndim)])
        # Whole batches one behind the other, or several values of each row.
        of_rows = places % rows, places // (length // rows)
        if any(np.all(found == wanted) for found in of_rows for wanted in (numbers % rows, numbers // (count // rows))):
            return True
    return False
