"""Keras builds losses and metrics on shapes alone, before any replica runs: code for replicas must go there, too."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import ReduceOp, ReplicaContext
from jaxtribute._src.addons.keras.share import Share, entered
from jaxtribute.extending import Context, Eager
from jaxtribute.typing import Function, Nest, Numeric

if TYPE_CHECKING:
    from jaxtribute import Strategy
    from jaxtribute.extending import Summation


class ShapesOnly(Eager):
    """A replica whose meetings give results of the right shapes, for code of which only the shapes count."""

    def all_reduce(self, values: list[Any], op: ReduceOp, summation: Summation | None = None) -> list[Any]:
        """Returns the replica's own arrays."""
        return values

    def all_gather(self, values: list[Any], axis: int) -> list[Any]:
        """Returns each array as often as there are replicas."""
        replicas = Context.current().strategy.num_replicas_in_sync
        return [jnp.concatenate([value] * replicas, axis) for value in values]

    def select(self, value: Numeric, replica: int) -> Any:
        """Returns the replica's own array."""
        return value

    def merge(self, fn: Function, args: Nest, kwargs: Nest) -> Any:
        """Returns what the function makes of the replica's own arrays."""
        strategy = Context.current().strategy
        with Context.entered(Context(strategy, None, self)):
            return fn(strategy, *args, **kwargs)


@contextmanager
def shapes_of_a_replica(strategy: Strategy) -> Generator[None]:
    """Lets code ask for its replica and meet the others, for the shapes of what it computes."""
    with jax.ensure_compile_time_eval():
        first = jnp.asarray(0, jnp.int32)
    context = ReplicaContext(strategy, first)
    # A share of no rows: nothing is weighted, and what layers write is their own.
    with Context.entered(Context(strategy, context, ShapesOnly())), entered(Share(context, 0, 0)):
        yield


def as_shapes(batch: Nest) -> Any:
    """The shapes of a batch, and its dtypes as JAX has them, which warns of labels in 64 bits where it has only 32."""

    def shape_of(leaf: Any) -> Any:
        dtype = np.dtype(leaf.dtype)
        known = dtype if dtype.hasobject or dtype.kind in "SU" else jax.dtypes.canonicalize_dtype(dtype)
        return SimpleNamespace(shape=leaf.shape, dtype=known)

    return jax.tree.map(shape_of, batch)
