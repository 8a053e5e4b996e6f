"""Losses that travel with the gradients: their sum over the replicas needs no collective of its own."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxtribute._src.collectives.manual import all_reduce
from jaxtribute._src.collectives.summation import Summation
from jaxtribute._src.types import Array, Leaf
from jaxtribute._src.values.enums import ReduceOp

_DTYPES = ("float32", "float64")
"""Shorter ones are summed in float32 where they go alone."""


class TravellingLosses:
    """The losses of one replica of a traced program: those that wait for gradients, and the totals of the others."""

    def __init__(self) -> None:
        self._waiting: list[Array] = []
        self._totals: list[tuple[Array, Array]] = []

    def add(self, loss: Leaf) -> None:
        """Adds a loss, which the next gradients that are summed take along."""
        if isinstance(loss, jax.Array) and loss.dtype in _DTYPES:
            self._waiting.append(loss)

    def sum_with(self, grads: Sequence[Array], replicas: int, summation: Summation) -> list[Array]:
        """Returns the sums of gradients over the replicas; small ones take the losses of their dtype along."""
        arrays = [jnp.asarray(grad) for grad in grads]
        # Large gradients travel alone, and a loss beside one would need a collective after all.
        shared = {array.dtype for array in arrays if 0 < array.size * array.dtype.itemsize < summation.shared_bytes}
        losses, self._waiting = [loss for loss in self._waiting if loss.dtype in shared], []
        # Made strong: the totals are no numbers that yield to the dtype of what they meet.
        strong = [jnp.asarray(loss, loss.dtype) for loss in losses]
        totals = all_reduce([*arrays, *strong], ReduceOp.SUM, replicas, summation)
        self._totals.extend(zip(losses, totals[len(arrays) :], strict=True))
        return totals[: len(arrays)]

    def total_of(self, value: Leaf) -> Array | None:
        """Returns the sum over the replicas of a loss that has travelled; None for any other value."""
        for loss, total in self._totals:
            if loss is value:
                return total
        return None
