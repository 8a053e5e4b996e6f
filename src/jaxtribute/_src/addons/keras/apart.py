"""Islands that train a model alone for some steps, as Keras sees them; see `ElasticStrategy(sync_every=...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from jaxtribute import Variable, VariableAggregation
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy


class Apart(Protocol):
    """The mesh of such an island, as far as Keras needs it."""

    def tell(self, variable: Variable, role: Callable[[], tuple[bool, VariableAggregation]]) -> None:
        """Notes whether a variable learns, and how its values become one at a meeting if it does not."""
        ...

    def take(self, batch: Nest, place: Callable[[Nest], tuple[Any, int]]) -> tuple[Any, int]:
        """Places the island's rows of a batch, and returns them with their number."""
        ...

    def meet(self) -> None:
        """Meets the other islands: parameters, statistics and metrics are the same on all then."""
        ...

    def settle(self) -> None:
        """Meets them if parameters may differ."""
        ...


def apart_of(strategy: Strategy) -> Apart | None:
    """The island, of a strategy whose islands train alone; None for any other."""
    return getattr(strategy.extended.mesh, "apart", None)
