"""`ReplicaContext`: what one replica knows of itself, and how it reaches the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax
import jax.numpy as jnp

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core import settings
from jaxtribute._src.core.devices import device_name
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import ArrayLike, Function, Leaf, Nest, Numeric
from jaxtribute._src.core.values.enums import ReduceOp, ReduceOpLike, reduction_of
from jaxtribute._src.core.values.scatter import IndexedSlices
from jaxtribute._src.core.values.sparse import dense_operand, is_sparse
from jaxtribute.errors import ArgumentError, ContextError

if TYPE_CHECKING:
    from jaxtribute._src.core.collectives.options import CommunicationOptions
    from jaxtribute._src.core.execution.executor import Executor
    from jaxtribute._src.core.strategies.base import Strategy
    from jaxtribute._src.core.values.distributed import Mirrored
    from jaxtribute._src.core.values.variable import Variable

N = TypeVar("N")


class ReplicaContext:
    """The view of one replica, in the functions that `Strategy.run` calls; see `get_replica_context`.

    Args:
      strategy: the strategy that runs the replica.
      replica_id_in_sync_group: the replica's number, from 0: an int32 scalar (a Python int outside any
        strategy).

    Examples:
      >>> def replica():
      ...     context = jd.get_replica_context()
      ...     return context.all_gather(context.replica_id_in_sync_group[None], axis=0)
      >>> np.asarray(jd.MirroredStrategy(2).run(replica))
      array([0, 1], dtype=int32)

    Source: `tf.distribute.ReplicaContext`.
    """

    whole: frozenset[int] = frozenset()
    """The lengths of the arguments that all replicas got whole."""
    without_rows: bool = False
    """True if this replica got no data."""

    def __init__(self, strategy: Strategy, replica_id_in_sync_group: Any) -> None:
        self._strategy = strategy
        self._id = replica_id_in_sync_group

    def __enter__(self) -> ReplicaContext:
        """Makes this the replica whose code runs; it sees variables as code outside `strategy.run` does.

        Raises:
          ContextError: in a replica function, or in the scope of another strategy.
        """
        now = contexts.current()
        if not now.strategy.is_default and (now.replica is not None or now.strategy is not self._strategy):
            raise ContextError(
                f"{self!r} was entered in {'a replica function' if now.replica is not None else 'the scope'} of "
                f"{now.strategy!r}. HINT: enter it outside, or in its own strategy's scope."
            )
        contexts.push(contexts.Context(self._strategy, self, now.executor))
        return self

    def __exit__(self, *_: object) -> None:
        contexts.pop()

    @property
    def strategy(self) -> Strategy:
        """The strategy that runs this replica."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that take part in a step, over all workers."""
        return self._strategy.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> jax.Array:
        """This replica's number, from 0 to `num_replicas_in_sync - 1`: an int32 scalar."""
        return self._id

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices of this replica, mostly one; in a compiled program those of all."""
        mesh = self._strategy.extended.mesh
        devices = mesh.devices
        # In a compiled program the id is traced: one program runs on all devices.
        if len(devices) > 1 and isinstance(self._id, jax.Array) and not isinstance(self._id, Tracer):
            devices = mesh.devices_of(int(self._id))
        return tuple(map(device_name, devices))

    @overload
    def all_reduce(
        self,
        reduce_op: ReduceOpLike,
        value: Variable | Mirrored | ArrayLike,
        options: CommunicationOptions | None = None,
    ) -> jax.Array: ...
    @overload
    def all_reduce(self, reduce_op: ReduceOpLike, value: N, options: CommunicationOptions | None = None) -> N: ...
    def all_reduce(self, reduce_op: ReduceOpLike, value: Numeric, options: CommunicationOptions | None = None) -> Any:
        """Reduces `value` over the replicas and gives each the result.

        All replicas must call it, in the same order. Small arrays of a nest travel together. It can be
        differentiated: its gradient is the all-reduce of the cotangents with the same operation.

        Args:
          reduce_op: `ReduceOp.SUM`, `ReduceOp.MEAN` or their names.
          value: a nest of arrays, of equal shapes on all replicas; sparse ones become dense. Of `jd.IndexedSlices`,
            whose numbers of rows may differ, the sum is the rows of all, a row once for each that has it.
          options: hints: `bytes_per_pack` says how many bytes of arrays may travel together.

        Returns:
          A nest as `value`: sums keep the dtype (booleans count as int32), means of integers are floats.

        Raises:
          ArgumentError: an unknown operation.
          ContextError: called in lockstep from inside `jax.jit` or the like.

        Source: `tf.distribute.ReplicaContext.all_reduce`.
        """
        op = ReduceOp.parse(reduce_op)
        executor = self._executor("all_reduce")
        leaves, tree = jax.tree.flatten(value, is_leaf=is_sparse)
        if not leaves:
            return value
        arrays = [dense_operand(leaf) for leaf in leaves if not isinstance(leaf, IndexedSlices)]
        summation = self._strategy.extended.summation(options)
        totals = iter(executor.all_reduce(arrays, op, summation) if arrays else ())
        active = self.num_replicas_in_sync - len(executor.idle)
        finish = reduction_of(op).finish

        def reduced(leaf: Leaf) -> Any:
            if not isinstance(leaf, IndexedSlices):
                return next(totals)
            rows = _all_rows(executor, leaf)
            return IndexedSlices(finish(rows.values, active, rows.values.dtype), rows.indices, rows.dense_shape)

        return tree.unflatten(map(reduced, leaves))

    @overload
    def all_gather(self, value: Variable | Mirrored | ArrayLike, axis: int, options: Any = None) -> jax.Array: ...
    @overload
    def all_gather(self, value: N, axis: int, options: Any = None) -> N: ...
    def all_gather(self, value: Numeric, axis: int, options: Any = None) -> Any:
        """Concatenates `value` over the replicas along `axis` and gives each the result.

        Args:
          value: a nest of arrays of rank 1 or more, equal in shape but for `axis`; sparse ones become dense. Of
            `jd.IndexedSlices` the rows are joined, along axis 0.
          axis: the axis, not negative.
          options: accepted for compatibility.

        Returns:
          A nest as `value`, `axis` longer by the number of replicas.

        Raises:
          ArgumentError: a scalar, or an axis that is negative or out of range.

        Source: `tf.distribute.ReplicaContext.all_gather`.
        """
        executor = self._executor("all_gather")
        leaves, tree = jax.tree.flatten(value, is_leaf=is_sparse)
        arrays = [jnp.asarray(dense_operand(leaf)) for leaf in leaves if not isinstance(leaf, IndexedSlices)]
        for array in arrays:
            axis = settings.gather_axis(axis, array.ndim)
        if axis != 0 and len(arrays) < len(leaves):
            raise ArgumentError(f"cannot gather IndexedSlices along axis {axis}. HINT: they have rows, along axis 0.")
        gathered = iter(executor.all_gather(arrays, axis) if arrays else ())

        def joined(leaf: Leaf) -> Any:
            return _all_rows(executor, leaf) if isinstance(leaf, IndexedSlices) else next(gathered)

        return tree.unflatten(map(joined, leaves))

    def merge_call(self, merge_fn: Callable[..., N], args: Nest = (), kwargs: Nest = None) -> N:
        """Waits for all replicas, then calls `merge_fn(strategy, *args, **kwargs)` once, in cross-replica context.

        Args:
          merge_fn: receives the strategy and, for each argument, the `PerReplica` value of what the replicas gave.
          args: positional arguments, a tuple or list.
          kwargs: keyword arguments.

        Returns:
          What `merge_fn` returns; of distributed values each replica gets its component.

        Source: `tf.distribute.ReplicaContext.merge_call`.
        """
        executor = self._executor("merge_call")
        settings.function("merge_fn", merge_fn)
        return executor.merge(merge_fn, tuple(args), dict(kwargs or {}))

    def fold_in(self, key: jax.Array) -> jax.Array:
        """Returns a key of this replica's own, so that replicas draw different numbers from one key.

        Args:
          key: a key of `jax.random`, the same on all replicas.

        Returns:
          `jax.random.fold_in(key, replica_id_in_sync_group)`. With one replica that is not `key` itself. For numbers
          that do not depend on how many replicas there are see `example_keys`.
        """
        return jax.random.fold_in(self._near(key), self._id)

    def example_keys(self, key: jax.Array, examples: int) -> jax.Array:
        """Returns one key for each of this replica's examples: example by example the same for any number of replicas.

        An example's key depends on `key` and its place in the global batch, which is that of the replicas in order.
        All replicas must call it, as it asks them how many examples they have.

        Args:
          key: a key of `jax.random`, the same on all replicas; fold the number of the step into it.
          examples: how many examples this replica has, such as `x.shape[0]`; it may differ from replica to replica.

        Returns:
          Keys of shape `(examples,)` (old-style keys: `(examples, words)`), to be used under `jax.vmap`.
        """
        executor = self._executor("example_keys")
        counts = executor.all_gather([jnp.full(1, examples, jnp.int32)], 0)[0]
        # Summed under a mask and not sliced: in a compiled program the id is no number yet.
        before = jnp.where(jnp.arange(counts.size) < self._id, counts, jnp.zeros_like(counts)).sum(dtype=jnp.int32)
        places = before + jnp.arange(examples, dtype=jnp.int32)
        return jax.vmap(jax.random.fold_in, (None, 0))(self._near(key), places)

    def _near(self, key: jax.Array) -> jax.Array:
        """The key on this replica's device or devices, if it was given from outside."""
        if not isinstance(self._id, jax.Array) or isinstance(key, Tracer) or isinstance(self._id, Tracer):
            return key
        return jax.device_put(key, self._id.sharding)

    def update(self, var: Any, fn: Function, args: Nest = (), kwargs: Nest = None) -> Any:
        """Calls `fn(var, *args, **kwargs)` where the variable is, once for all replicas.

        See `StrategyExtended.update`.
        """

        def merged(strategy: Strategy, *args: Nest, **kwargs: Nest) -> Any:
            return strategy.extended.update(var, fn, args, kwargs)

        return self.merge_call(merged, args, kwargs)

    @property
    def idle(self) -> tuple[int, ...]:
        """The ids of the replicas that got no data in this step: the last partial batch did not reach them."""
        return self._executor("idle").idle

    def __repr__(self) -> str:
        return f"ReplicaContext(strategy={type(self._strategy).__name__}, replica_id_in_sync_group={self._id})"

    def _executor(self, method: str) -> Executor:
        """The way in which this replica's code runs."""
        context = contexts.current()
        if context.replica is not self:
            raise ContextError(
                f"ReplicaContext.{method} was called outside the replica function that the context belongs to. "
                "HINT: call jd.get_replica_context() inside the function passed to strategy.run."
            )
        return context.executor


def _all_rows(executor: Executor, slices: IndexedSlices) -> IndexedSlices:
    """The rows of all replicas."""
    values, indices = executor.all_gather([jnp.asarray(slices.values), jnp.asarray(slices.indices)], 0)
    return IndexedSlices(values, indices, slices.dense_shape)
