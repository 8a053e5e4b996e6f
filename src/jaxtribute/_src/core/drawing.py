"""Pictures of strategies and values: an add-on draws them."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from jaxtribute._src.core.points import PICTURES
from jaxtribute._src.core.types import Leaf

if TYPE_CHECKING:
    from jaxtribute._src.core.strategies.base import Strategy
    from jaxtribute._src.core.values.distributed import DistributedValues


class Drawing(Protocol):
    """Draws strategies, values and datasets. An add-on registers one at `points.PICTURES`."""

    def picture(self, strategy: Strategy, what: Leaf, limit: int) -> Any:
        """Draws which device holds which part of `what`, or reads which of its examples; at most `limit` arrays."""
        ...

    def strategy_html(self, strategy: Strategy, /) -> str:
        """A strategy as a table for notebooks."""
        ...

    def values_html(self, values: DistributedValues, /) -> str:
        """A distributed value as a table for notebooks."""
        ...


def html_of(value: Strategy | DistributedValues) -> str:
    """A strategy or a distributed value as a table for notebooks; as text if nothing draws it."""
    from jaxtribute._src.core.values.distributed import DistributedValues

    for drawing in PICTURES.entries():
        return drawing.values_html(value) if isinstance(value, DistributedValues) else drawing.strategy_html(value)
    return f"<pre>{escape(repr(value))}</pre>"
