"""Keras calls layers, losses and metrics for their shapes alone: code for replicas must go there, too.

What such a call reads of variables JAX does not keep, as Keras traces another function each time. Elsewhere JAX has to
trace again what it keeps once a variable that was read in it has changed, and with it all eager code: see
`jaxtribute._src.core.traced_reads`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import ReduceOp, ReplicaContext
from jaxtribute._src.addons.keras.share import Share, entered
from jaxtribute.extending import Context, Eager, Overlay
from jaxtribute.typing import Function, Leaf, Nest, Numeric

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


def without_noting(original: Callable[..., Any], fn: Function, *args: Leaf, **kwargs: Leaf) -> Any:
    """The backend's `compute_output_spec`: finds the shapes of what `fn` returns, and keeps nothing that it reads."""

    @wraps(fn)
    def within(*args: Leaf, **kwargs: Leaf) -> Any:
        now = Context.current()
        if type(now.executor) not in (Eager, ShapesOnly):
            return fn(*args, **kwargs)
        unkept: Any = copy(now.executor)
        unkept.outer = Overlay(now.executor, {}).trace
        with Context.entered(Context(now.strategy, now.replica, unkept)):
            return fn(*args, **kwargs)

    return original(within, *args, **kwargs)


def as_shapes(batch: Nest) -> Any:
    """The shapes of a batch, and its dtypes as JAX has them, which warns of labels in 64 bits where it has only 32."""

    def shape_of(leaf: Any) -> Any:
        dtype = np.dtype(leaf.dtype)
        known = dtype if dtype.hasobject or dtype.kind in "SU" else jax.dtypes.canonicalize_dtype(dtype)
        return SimpleNamespace(shape=leaf.shape, dtype=known)

    return jax.tree.map(shape_of, batch)
