"""What the core asks of whatever draws its strategies and values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from jaxtribute._src.points import PICTURES
from jaxtribute._src.types import Leaf

if TYPE_CHECKING:
    from jaxtribute._src.strategies.base import Strategy
    from jaxtribute._src.values.distributed import DistributedValues


class Picture(Protocol):
    """A drawing that a terminal, a notebook and a file can all show; `jaxtribute.visualize.Picture` is the class."""

    def svg(self) -> str:
        """The picture as one SVG element."""
        ...

    def save(self, path: str | Path) -> Path:
        """Writes the picture to a file, as SVG, HTML or text by its name, and returns the path."""
        ...


class Drawing(Protocol):
    """Draws strategies, values and datasets. An add-on registers one at `points.PICTURES`."""

    def picture(self, strategy: Strategy, what: Leaf, limit: int) -> Picture:
        """Draws which device holds which part of `what`, or reads which of its examples; at most `limit` arrays."""
        ...

    def strategy_html(self, strategy: Strategy, /) -> str:
        """A strategy as a table for notebooks."""
        ...

    def values_html(self, values: DistributedValues, /) -> str:
        """A distributed value as a table for notebooks."""
        ...


def html_of(value: Strategy | DistributedValues) -> str | None:
    """A strategy or a distributed value as a table for notebooks; None if nothing draws it, so that they show text."""
    from jaxtribute._src.values.distributed import DistributedValues

    for drawing in PICTURES.entries():
        return drawing.values_html(value) if isinstance(value, DistributedValues) else drawing.strategy_html(value)
    return None
