"""Batches whose rows are far apart on two replicas: numbers that agree by chance, or on one side of a bound, do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.operations import is_float, is_key

_FACTORS = (1e2, -1e2), (-1e2, 1e2), (1e4, -1e4), (-1e4, 1e4), (1.0, 1e4)
"""Factors of the first replica's rows, and of the others'.

Of unlike signs, so that most bounds have replicas on both sides. Beside the squares of rows that are much larger what
comes of others is not seen, so that most have large ones on all replicas.
"""
LARGEST = max(max(map(abs, pair)) for pair in _FACTORS)


@dataclass(frozen=True, slots=True)
class Alteration:
    """Other numbers in the rows of a batch, for all replicas and for one device.

    Attributes:
      rows: how many the first replica has.
      factors: of its floating-point numbers, and of those of the others; where they have two signs, all numbers of a
        replica get its own. 0 is one for whole numbers and truths as well.
      spoilt: True for a row of the others that is no number (NaN).
    """

    rows: int
    factors: tuple[float, float] = (1.0, 1.0)
    spoilt: bool = False

    @property
    def empties(self) -> bool:
        """True if all rows of a replica are zero: there may be nothing left to divide by."""
        return 0 in self.factors

    def __str__(self) -> str:
        if self.spoilt:
            return " with NaN in a row of the second replica"
        return " with rows x {:g} and x {:g}".format(*self.factors)

    def of(self, value: Any, each: int) -> Any:
        """Returns the rows of an array of the whole batch, where an example has `each` of them."""
        if is_key(value) or not (is_float(value.dtype) or self.empties):
            return value
        changed, count = np.array(value), self.rows * each
        if self.spoilt:
            changed[count : count + each] = np.nan
        else:
            changed = np.abs(changed) if min(self.factors) < 0 else changed
            for part, factor in zip((changed[:count], changed[count:]), self.factors, strict=True):
                part[...] = (part * factor).astype(part.dtype)
        return changed


def alterations(rows: int, given: Sequence[Any], *, asks: bool) -> Iterator[Alteration]:
    """Gives alterations.

    Args:
      rows: those of the first replica.
      given: the arrays of the batch.
      asks: whether the step asks which numbers are finite: else NaN is as bad on one device as on replicas.
    """
    real = any(not is_key(value) and is_float(value.dtype) for value in given)
    for factors in _FACTORS if real else ():
        yield Alteration(rows, factors)
    if given:
        yield Alteration(rows, (1.0, 0.0))
    if asks and real:
        yield Alteration(rows, spoilt=True)
