"""Methods of `Strategy` that newer ones have replaced, and that older programs call."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import jax

from jaxtribute.values.distributed import DistributedValues
from jaxtribute.values.variable import Variable

if TYPE_CHECKING:
    from jaxtribute.strategies.extended import StrategyExtended


class LegacyMethods:
    """A part of `Strategy`."""

    _extended: StrategyExtended

    def colocate_vars_with(self, colocate_with_variable: Variable) -> AbstractContextManager[None]:
        """As `StrategyExtended.colocate_vars_with`. Source: `tf.distribute.Strategy.colocate_vars_with`."""
        return self._extended.colocate_vars_with(colocate_with_variable)

    def unwrap(self, value: Any) -> tuple[Any, ...]:
        """As `experimental_local_results`, its newer name. Source: `tf.distribute.Strategy.unwrap`."""
        return self._extended.strategy.experimental_local_results(value)

    def group(self, value: Any, name: str | None = None) -> None:
        """Waits until all components of `value` are computed.

        Args:
          value: a nest of distributed values or arrays.
          name: accepted for compatibility.

        Source: `tf.distribute.Strategy.group`.
        """
        del name
        leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, (DistributedValues, Variable)))
        jax.block_until_ready([part for leaf in leaves for part in self.unwrap(leaf)])
