"""Pictures of strategies and values: an add-on draws them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from jaxtribute._src.core.points import PICTURES
from jaxtribute._src.core.types import Leaf

if TYPE_CHECKING:
    from rich.table import Table

    from jaxtribute._src.core.input.explanation import Explanation
    from jaxtribute._src.core.input.options import AutoShardPolicy
    from jaxtribute._src.core.input.sources import Source
    from jaxtribute._src.core.input.splitting import Shard
    from jaxtribute._src.core.strategies.base import Strategy
    from jaxtribute._src.core.values.distributed import DistributedValues


class Drawing(Protocol):
    """Draws strategies, values and datasets. An add-on registers one at `points.PICTURES`."""

    def picture(self, strategy: Strategy, what: Leaf, limit: int) -> Any:
        """Draws which device holds which part of `what`, or reads which of its examples; at most `limit` arrays."""
        ...

    def shares(self, source: Source, shard: Shard, policies: Sequence[AutoShardPolicy], why: str) -> Explanation:
        """The share of each worker in a dataset; policies: the one that was asked for, and the one that holds."""
        ...

    def shares_table(self, report: Explanation, /) -> Table:
        """The same as a table of Rich."""
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
