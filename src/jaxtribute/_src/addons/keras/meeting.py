"""A replica in a step of a Keras model, as the user's code in it sees it: losses may meet the other replicas."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxtribute import ReplicaContext
from jaxtribute._src.addons.keras import share as shares
from jaxtribute._src.addons.keras.share import Share, nothing, with_tangent
from jaxtribute.extending import Context
from jaxtribute.typing import Array, Leaf, Numeric, ReduceOpLike

if TYPE_CHECKING:
    from jaxtribute.experimental import CommunicationOptions


class InStep(ReplicaContext):
    """The context of a replica in a step.

    A replica without examples computes with made-up ones, of which it brings nothing to the others.

    Args:
      context: the replica's own context.
      weighs_later: True if gradients are weighted by the replica's share of the batch once they are computed. A
        gradient that has come from another replica must then be weighted by that one's share.
    """

    def __init__(self, context: ReplicaContext, weighs_later: bool) -> None:
        super().__init__(context.strategy, context.replica_id_in_sync_group)
        self._weighs_later = weighs_later
        self.share: Share | None = None
        """The replica's part of the batch."""

    def all_reduce(self, reduce_op: ReduceOpLike, value: Numeric, options: CommunicationOptions | None = None) -> Any:
        """Reduces as in any replica function; a replica without examples adds nothing."""
        share = self.share
        if share is not None and not share.rows:
            value = jax.tree.map(nothing, value)
        return self._back(super().all_reduce(reduce_op, self._there(value), options))

    def all_gather(self, value: Numeric, axis: int, options: Any = None) -> Any:
        """Gathers as in any replica function; a replica without examples brings no rows."""
        share = self.share
        if share is not None and not share.rows:
            value = jax.tree.map(lambda leaf: jax.lax.slice_in_dim(jnp.asarray(leaf), 0, 0, axis=axis), value)
        return self._back(super().all_gather(self._there(value), axis, options))

    def _there(self, value: Numeric) -> Any:
        weight = self._weight()
        return value if weight is None else with_gradient(value, 1 / weight if weight else 0.0)

    def _back(self, value: Numeric) -> Any:
        weight = self._weight()
        return value if weight is None else with_gradient(value, weight)

    def _weight(self) -> float | None:
        """The replica's share, if gradients must be weighted on their way between replicas."""
        share = self.share
        # An optimizer's first update tells for all: gradients of sums are not weighted.
        if share is None or share.alone or not self._weighs_later or 0 in share.summed:
            return None
        return share.weight


def with_gradient(value: Numeric, factor: float) -> Any:
    """A nest whose gradients are multiplied by a factor."""

    def scaled(leaf: Leaf) -> Any:
        array = jnp.asarray(leaf)
        return _scaled(array, factor) if jnp.issubdtype(array.dtype, jnp.inexact) else array

    return jax.tree.map(scaled, value)


def _scaled(value: Array, factor: float) -> Any:
    return with_tangent(lambda value: value, lambda tangent: tangent * jnp.asarray(factor, tangent.dtype))(value)


@contextmanager
def entered(share: Share) -> Generator[None]:
    """Makes `share` the current one, and its context that of the replica."""
    executor = Context.current().executor
    with Context.entered(Context(share.context.strategy, share.context, executor)), shares.entered(share):
        yield


def share_of(
    context: ReplicaContext,
    rows: int,
    total: int,
    metrics: frozenset[int] = frozenset(),
    weighs_later: bool = False,
    count: Any = None,
) -> Share:
    """A replica's share of the batch of a step; see `Share` and `InStep`."""
    replica = InStep(context, weighs_later)
    replica.share = Share(replica, rows, total, count, metrics=metrics)
    return replica.share
