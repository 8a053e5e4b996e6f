"""Over which replicas a batch is laid, and how its rows are cut for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.altering import LARGEST, Alteration
from jaxtribute._src.addons.verify.machine import Branch
from jaxtribute.extending import slice_sizes

_EVEN = (12, 24, 48)
"""Rows that two, three and four replicas can share."""
_FACTORS = 1e4, 1e-4
"""Factors of gradients: more than clipping takes away, and less than it leaves."""
_STRETCH = 4.0
"""Factor of what is trained: behind it other sides of a hinge, a threshold or a clip are seen."""

_SHOWN = 3
"""Changes of rows that a report lists."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Replicas, and how a step runs on them.

    Attributes:
      sizes: how many rows of a batch each of them has.
      factor: of all gradients.
      ahead: steps that one device has done before.
      branch: a branch that is taken because the numbers that its condition asks for are others.
      stretch: a factor of all that is trained, before the step.
      altered: other rows than those of the program.
    """

    sizes: tuple[int, ...]
    factor: float = 1.0
    ahead: int = 0
    branch: Branch | None = None
    stretch: float = 1.0
    altered: Alteration | None = None

    @property
    def alone(self) -> Arrangement:
        """One device with the whole batch."""
        return replace(self, sizes=(self.rows,))

    @property
    def plain(self) -> bool:
        """True for the state, the gradients and the rows that the program has."""
        return self.factor == 1 and self.stretch == 1 and self.altered is None

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.sizes)

    @property
    def rows(self) -> int:
        """Number of rows of the whole batch."""
        return sum(self.sizes)

    @property
    def idle(self) -> tuple[int, ...]:
        """The replicas without a row."""
        return tuple(number for number, size in enumerate(self.sizes) if not size)

    @property
    def alike(self) -> bool:
        """True if all replicas that have rows have as many."""
        return len(set(self.sizes) - {0}) == 1

    @property
    def kind(self) -> str:
        """The fall of the batch, in words."""
        if self.idle:
            return "leaves replicas empty"
        return "divides" if len(set(self.sizes)) == 1 else "does not divide"

    def __str__(self) -> str:
        return f"{self.replicas} replicas with {', '.join(map(str, self.sizes))} rows{self._more}"

    @property
    def short(self) -> str:
        """The replicas' rows."""
        return "+".join(map(str, self.sizes)) + self._more

    @property
    def _more(self) -> str:
        scaled = "" if self.factor == 1 else f" with gradients x {self.factor:g}"
        later = f" {self.ahead} step(s) later" if self.ahead else ""
        scaled += "" if self.stretch == 1 else f" with variables x {self.stretch:g}"
        scaled += "" if self.altered is None else str(self.altered)
        return scaled + later + (f" in the other branch of {self.branch.place}" if self.branch else "")

    def parts(self, value: Any, each: int = 1) -> list[Any]:
        """The rows of an array that each replica gets, where an example has `each` of them."""
        bounds = np.cumsum([0, *self.sizes]) * each
        return [value[start:stop] for start, stop in pairwise(bounds)]


def shorts(several: Sequence[Arrangement]) -> str:
    """The replicas' rows in several arrangements; of more than three with other rows how many there are."""
    altered = [one for one in several if one.altered is not None]
    shown = [one.short for one in several if one.altered is None or len(altered) <= _SHOWN]
    if len(altered) > _SHOWN:
        sizes = "+".join(map(str, altered[0].sizes))
        shown.append(f"{sizes} with {len(altered)} changes of the rows, up to x {LARGEST:g}")
    return ", ".join(shown)


def pairs(batch: int, ahead: int = 0, branch: Branch | None = None) -> list[Arrangement]:
    """Two replicas that share a batch evenly; the first arrangement that the step takes is enough.

    Args:
      batch: number of rows of the program's own batch.
      ahead: see `Arrangement`.
      branch: likewise.
    """
    return _even(batch, 2, ahead, branch)


def uneven(ahead: int = 0) -> list[Arrangement]:
    """Two replicas that do not; likewise."""
    return [Arrangement(slice_sizes(rows, 2), ahead=ahead) for rows in (11, 9)]


def magnified(batch: int, ahead: int) -> Iterator[Sequence[Arrangement]]:
    """Gives groups with large gradients, for steps that change nearly nothing, besides what `arrangements` gives."""
    for group in (pairs(batch, ahead) if ahead else [], uneven(ahead)):
        yield [replace(one, factor=_FACTORS[0]) for one in group]


def _even(batch: int, replicas: int, ahead: int = 0, branch: Branch | None = None) -> list[Arrangement]:
    shares = [rows for rows in (*_EVEN, batch) if rows and rows % replicas == 0]
    return [Arrangement(slice_sizes(rows, replicas), ahead=ahead, branch=branch) for rows in shares]


def arrangements(batch: int) -> Iterator[Sequence[Arrangement]]:
    """Gives groups of arrangements; of each group the first one that the step takes is enough.

    Args:
      batch: number of rows of the program's own batch.
    """
    yield pairs(batch)
    # Behind one replica's share the others have less: 11 over 2 is 6 and 5, over 3 it is 4, 4 and 3.
    yield uneven()
    yield _even(batch, 3)
    yield _even(batch, 4)
    yield [Arrangement(slice_sizes(rows, 3)) for rows in (11, 8)]
    # 3, 3, 3 and none, so that what only an empty replica shows is told from what unequal ones do.
    yield [Arrangement(slice_sizes(rows, 4)) for rows in (9, 5)]
    # What is clipped, or not yet, hides how large gradients are.
    for factor in _FACTORS:
        yield [Arrangement(one.sizes, factor) for one in pairs(batch)]
    yield [Arrangement(one.sizes, stretch=_STRETCH) for one in pairs(batch)]
