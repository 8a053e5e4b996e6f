"""`Strategy`: the public face of every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Never, cast, overload

import jax
import numpy as np

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core import settings
from jaxtribute._src.core.collectives.cross_replica import once_a_worker
from jaxtribute._src.core.context import Context
from jaxtribute._src.core.drawing import html_of
from jaxtribute._src.core.execution.capture import unbound_axis
from jaxtribute._src.core.execution.nests import flatten, flatten_dense, is_distributed, map_leaves
from jaxtribute._src.core.jaxprs.core import is_traced
from jaxtribute._src.core.observers import REDUCE, RUN, observed
from jaxtribute._src.core.points import PICTURES
from jaxtribute._src.core.strategies.older_methods import OlderMethods
from jaxtribute._src.core.strategies.scope import Scope
from jaxtribute._src.core.types import ArrayLike, Foreign, Function, K, L, Leaf, Nest, Numeric, T
from jaxtribute._src.core.values.distributed import Distributed, DistributedValues, Mirrored, PerReplica, ReplicaValues
from jaxtribute._src.core.values.enums import ReduceOp, ReduceOpLike
from jaxtribute._src.core.values.numbers import check_cut
from jaxtribute._src.core.values.operators import operand
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentTypeError

if TYPE_CHECKING:
    from jaxtribute._src.core.execution.step_loops import StepLoops
    from jaxtribute._src.core.input.array_source import RowDataset
    from jaxtribute._src.core.input.dataset import DistributedDataset
    from jaxtribute._src.core.input.options import InputContext, InputOptions
    from jaxtribute._src.core.strategies.extended import StrategyExtended


class ValueContext:
    """Facts about a replica, for the function of `experimental_distribute_values_from_function`.

    Args:
      replica_id_in_sync_group: the replica's number, from 0.
      num_replicas_in_sync: how many replicas there are.

    Source: `tf.distribute.experimental.ValueContext`.
    """

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        settings.whole("replica_id_in_sync_group", replica_id_in_sync_group)
        settings.whole("num_replicas_in_sync", num_replicas_in_sync, 1)
        self._replica_id, self._replicas = replica_id_in_sync_group, num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> int:
        """The replica's number, from 0."""
        return self._replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas, over all workers."""
        return self._replicas

    def __repr__(self) -> str:
        return f"ValueContext(replica_id_in_sync_group={self._replica_id}, num_replicas_in_sync={self._replicas})"


class RunOptions(NamedTuple):
    """Options of `Strategy.run`. All are accepted for compatibility; JAX needs none of them.

    Examples:
      >>> options = jd.RunOptions(experimental_enable_dynamic_batch_size=False)
      >>> jd.MirroredStrategy(1).run(lambda: jnp.float32(1), options=options)
      Array(1., dtype=float32)

    Source: `tf.distribute.RunOptions`.
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None


class Strategy(OlderMethods):
    """A list of devices with a policy for state and computation; see its subclasses.

    Args:
      extended: what the strategy places where.

    Examples:
      >>> strategy = jd.MirroredStrategy(2)
      >>> with strategy.scope():
      ...     w = jd.Variable(3.0)
      >>> results = strategy.run(lambda x: x * w, args=(jnp.float32(2),))
      >>> strategy.reduce("SUM", results, axis=None)
      Array(12., dtype=float32)

    Source: `tf.distribute.Strategy`.
    """

    is_default = False
    """True if this is the strategy that holds outside every scope."""

    def __init__(self, extended: StrategyExtended) -> None:
        self._extended = extended
        self._step_loops: StepLoops | None = None
        extended.attach(self)

    @property
    def extended(self) -> StrategyExtended:
        """The strategy's placement decisions, for algorithms that need to know them."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas that take part in a step and in every reduction, over all workers."""
        return self._extended.mesh.size

    @property
    def cluster_resolver(self) -> Any:
        """Resolver that describes the cluster; None for strategies of one machine."""
        return None

    def scope(self) -> Scope:
        """Returns a context manager that makes this strategy current; variables made inside are placed by it.

        Raises:
          ContextError: (on entry) inside a replica function, or entered twice.
          StrategyMixError: (on entry) inside the scope of another strategy.

        Source: `tf.distribute.Strategy.scope`.
        """
        return Scope(self)

    # Of a nest, the results that checkers can follow: of arrays, and of tuples, lists and dictionaries of them.
    # The first is for functions of which a checker knows no result.
    @overload
    def run(
        self, fn: Callable[..., Never], args: Nest = (), kwargs: Nest = None, options: RunOptions | None = None
    ) -> Any: ...
    @overload
    def run(
        self, fn: Callable[..., L], args: Nest = (), kwargs: Nest = None, options: RunOptions | None = None
    ) -> Distributed[L]: ...
    @overload
    def run(
        self, fn: Callable[..., tuple[L, ...]], args: Nest = (), kwargs: Nest = None, options: RunOptions | None = None
    ) -> tuple[Distributed[L], ...]: ...
    @overload
    def run(
        self, fn: Callable[..., list[L]], args: Nest = (), kwargs: Nest = None, options: RunOptions | None = None
    ) -> list[Distributed[L]]: ...
    @overload
    def run(
        self, fn: Callable[..., dict[K, L]], args: Nest = (), kwargs: Nest = None, options: RunOptions | None = None
    ) -> dict[K, Distributed[L]]: ...
    @overload
    def run(
        self, fn: Callable[..., None], args: Nest = (), kwargs: Nest = None, options: RunOptions | None = None
    ) -> None: ...
    @overload
    def run(self, fn: Function, args: Nest = (), kwargs: Nest = None, options: RunOptions | None = None) -> Any: ...
    @observed(RUN)
    def run(self, fn: Function, args: Nest = (), kwargs: Nest = None, options: RunOptions | None = None) -> Any:
        """Calls `fn` on every replica, in replica context.

        Inside a `jd.function`, or if `fn` is one, it becomes part of a compiled program; otherwise each replica
        runs the Python function on its own device and all meet at collectives.

        Args:
          fn: the replica function.
          args: its positional arguments, a tuple or list. Each replica gets its component of every distributed
            value in them, at any depth; all else goes to all replicas.
          kwargs: its keyword arguments, likewise.
          options: accepted for compatibility.

        Returns:
          `fn`'s result in its own structure. With several replicas, arrays become `PerReplica`, or `Mirrored`
          where they are the same on every replica; with one they stay as they are.

        Raises:
          ArgumentTypeError: `args` is neither a tuple nor a list, or `kwargs` no dictionary.
          ArgumentError: an array is divided over the replicas' devices and is no distributed value.
          ContextError: called inside a replica function, or `fn` calls a collective of JAX over an unknown axis.
          StrategyMixError: called inside another strategy's scope, or with another strategy's values.

        Source: `tf.distribute.Strategy.run`.
        """
        if not isinstance(args, (tuple, list)) or not (kwargs is None or isinstance(kwargs, Mapping)):
            raise ArgumentTypeError(
                f"args must be a tuple or list, and kwargs a dictionary, not {type(args).__name__} and "
                f"{type(kwargs).__name__}. HINT: strategy.run(fn, args=(x,), kwargs={{'rate': 0.1}})."
            )
        settings.function("fn", fn)
        context = contexts.require_cross_replica(self, "run")
        # `contexts.entered` by hand: an eager step passes here once a call. The stack is cut back to its old depth, and
        # not popped: a signal may raise before the entry is on it.
        entries = contexts.entries()
        depth = len(entries)
        try:
            entries.append(Context(self, None, context.executor))
            contexts.show()
            return self._extended.call_for_each_replica(fn, args, kwargs)
        except NameError as error:
            unbound = unbound_axis(error)
            if unbound is None:
                raise
            raise unbound from error
        finally:
            del entries[depth:]
            contexts.show()

    def run_steps(self, step: Callable[[Any], Any], iterator: Any, n: int, *, steps_per_call: int = 16) -> Any:
        """Calls `step` with the next `n` batches, several steps in one compiled program.

        What it costs to start a program is paid once for up to `steps_per_call` steps; for small models that is most
        of a step. The steps are written out one after another in the program, so it takes longer to compile.

        Args:
          step: a function of one batch, such as a `jd.function` that calls `run`; the same object in every call, or
            it is compiled again.
          iterator: the iterator of a distributed dataset.
          n: how many steps.
          steps_per_call: how many of them make one program at most.

        Returns:
          `step`'s result, the steps along a new axis 0 of each array; fewer than `n` where the data ends.

        Raises:
          OutOfRangeError: the data has ended.
          ArgumentError: a number of steps below 1.
          ArgumentTypeError: an iterator of something else.
          ShapeError: results whose shapes differ from step to step.

        Source: `tf.compat.v1.distribute.StrategyExtended.experimental_run_steps_on_iterator`.
        """
        contexts.require_cross_replica(self, "run_steps")
        if self._step_loops is None:
            from jaxtribute._src.core.execution.step_loops import StepLoops  # here, as few programs need it

            self._step_loops = StepLoops()
        return self._step_loops.run(step, iterator, n, steps_per_call)

    @overload
    def reduce(
        self, reduce_op: ReduceOpLike, value: DistributedValues | ArrayLike, axis: int | tuple[int, ...] | None
    ) -> jax.Array: ...
    @overload
    def reduce(
        self,
        reduce_op: ReduceOpLike,
        value: tuple[DistributedValues | ArrayLike, ...],
        axis: int | tuple[int, ...] | None,
    ) -> tuple[jax.Array, ...]: ...
    @overload
    def reduce(
        self, reduce_op: ReduceOpLike, value: list[Distributed[L]], axis: int | tuple[int, ...] | None
    ) -> list[jax.Array]: ...
    @overload
    def reduce(
        self, reduce_op: ReduceOpLike, value: Mapping[K, Distributed[L]], axis: int | tuple[int, ...] | None
    ) -> dict[K, jax.Array]: ...
    @overload
    def reduce(self, reduce_op: ReduceOpLike, value: Numeric, axis: int | tuple[int, ...] | None) -> Any: ...
    @observed(REDUCE)
    def reduce(self, reduce_op: ReduceOpLike, value: Numeric, axis: int | tuple[int, ...] | None) -> Any:
        """Reduces distributed values over the replicas, and along `axis` within each.

        Args:
          reduce_op: `ReduceOp.SUM`, `ReduceOp.MEAN` or their names.
          value: a nest of values that `run` returned, of plain arrays or of numbers.
          axis: the dimension, or several as a tuple, to reduce in each replica's array as well; typically 0,
            the batch. MEAN then divides by the true number of elements, also in a last partial batch.

        Returns:
          A nest of arrays. Sums keep the dtype (booleans count as int32); means of integers are floats.

        Raises:
          ArgumentError: an unknown operation, an axis out of range, or SUM of a plain value over several replicas.
          ArgumentTypeError: a sparse array.
          ShapeError: `axis=None` with shapes that differ between replicas.
          ContextError: called inside a replica function.

        Source: `tf.distribute.Strategy.reduce`.
        """
        op, (executor, leaves, tree) = ReduceOp.parse(reduce_op), self._components(value, "reduce")
        # All go to the executor in one call: small values can share a message.
        return tree.unflatten(executor.reduce(self, leaves, op, axis))

    @overload
    def gather(self, value: DistributedValues | ArrayLike, axis: int) -> jax.Array: ...
    @overload
    def gather(self, value: tuple[DistributedValues | ArrayLike, ...], axis: int) -> tuple[jax.Array, ...]: ...
    @overload
    def gather(self, value: list[Distributed[L]], axis: int) -> list[jax.Array]: ...
    @overload
    def gather(self, value: Mapping[K, Distributed[L]], axis: int) -> dict[K, jax.Array]: ...
    @overload
    def gather(self, value: Numeric, axis: int) -> Any: ...
    def gather(self, value: Numeric, axis: int) -> Any:
        """Concatenates distributed values over the replicas along `axis`.

        Args:
          value: a nest of what `run` returned, equal in shape but for `axis`. Plain arrays count once a worker.
          axis: the axis, not negative.

        Returns:
          A nest of arrays that hold all replicas' elements, in replica order.

        Raises:
          ArgumentError: scalars, or an axis out of range.
          ArgumentTypeError: a sparse array.
          ContextError: called inside a replica function; use `ReplicaContext.all_gather` there.

        Source: `tf.distribute.Strategy.gather`.
        """
        (executor, leaves, tree), mesh = self._components(value, "gather"), self._extended.mesh
        return tree.unflatten([executor.gather(once_a_worker(leaf, axis, mesh), axis) for leaf in leaves])

    def _components(self, value: Nest, what: str) -> tuple[Any, list[Any], Any]:
        executor, mesh = contexts.require_cross_replica(self, what).executor, self._extended.mesh
        given, tree = flatten_dense(value, what)
        leaves = [self._extended.components_of(leaf, usable=True) for leaf in given]
        if mesh.peers is not None and not all(isinstance(leaf, ReplicaValues) for leaf in leaves):
            executor.running(self.run, mesh)  # a traced program of all workers, who compare the arguments of such
        return executor, leaves, tree

    @overload
    def place(self, nest: ArrayLike) -> Mirrored | jax.Array: ...
    @overload
    def place(self, nest: Nest) -> Any: ...
    def place(self, nest: Nest) -> Any:
        """Puts a nest of arrays where this strategy puts variables: a copy on every replica's device.

        For functional code: `run` takes such nests and returns them, so a training state can be passed from
        step to step.

        Args:
          nest: a nest of arrays or numbers. Several workers all call it, and get the values of the first.

        Returns:
          The nest with `Mirrored` values, or arrays on the device if there is one replica.
        """
        mesh, numbers = self._extended.mesh, count()

        def one(leaf: Leaf) -> Any:
            # Through NumPy, whose numbers have 64 bits: JAX would make 32 of them without a word, where `check_cut`
            # refuses.
            leaf = np.asarray(leaf) if isinstance(leaf, (bool, int, float, complex)) else operand(leaf)
            if isinstance(leaf, (np.ndarray, np.generic)):
                check_cut(leaf, "an array to place")
            array = mesh.replicate(mesh.agreed(leaf, f"array {next(numbers)} of a placed nest", ""))
            return array if mesh.size == 1 else Mirrored(array, mesh)

        return map_leaves(one, nest)

    @overload
    def experimental_local_results(self, value: PerReplica[T]) -> tuple[T, ...]: ...
    @overload
    def experimental_local_results(self, value: Mirrored | Variable | jax.Array) -> tuple[jax.Array, ...]: ...
    @overload
    def experimental_local_results(self, value: Distributed[L]) -> tuple[L, ...]: ...
    @overload
    def experimental_local_results(self, value: Numeric) -> tuple[Any, ...]: ...
    def experimental_local_results(self, value: Numeric) -> tuple[Any, ...]:
        """Returns the components of `value` on this worker, in replica order.

        Args:
          value: a distributed value, a variable, or anything else.

        Returns:
          A tuple with one component a local replica, nests too; `(value,)` for a value that is not distributed.

        Source: `tf.distribute.Strategy.experimental_local_results`.
        """
        if isinstance(value, (ReplicaValues, Variable)):
            return value.values
        leaves, tree = flatten(value)
        if value is None or (leaves and leaves[0] is value):
            return (value,)
        # One nest for each replica: what is not distributed belongs to all of them.
        local = self._extended.mesh.local_ids
        columns = [leaf.values if is_distributed(leaf) else (leaf,) * len(local) for leaf in leaves]
        return tuple(tree.unflatten([column[place] for column in columns]) for place in range(len(local)))

    @overload
    def experimental_distribute_values_from_function(self, value_fn: Callable[[ValueContext], L]) -> PerReplica[L]: ...
    @overload
    def experimental_distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any: ...
    def experimental_distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """Makes a distributed value out of what `value_fn` returns for each replica.

        Args:
          value_fn: called once for each local replica with a `ValueContext`; in a `jd.function` for every replica.

        Returns:
          A `PerReplica` value, or a nest of them if `value_fn` returns nests.

        Source: `tf.distribute.Strategy.experimental_distribute_values_from_function`.
        """
        contexts.require_cross_replica(self, "experimental_distribute_values_from_function")
        settings.function("value_fn", value_fn)
        mesh = self._extended.mesh
        # A program that is traced is that of all replicas, also of those of other workers.
        replicas = range(mesh.size) if is_traced() else mesh.local_ids
        results = [value_fn(ValueContext(i, mesh.size)) for i in replicas]
        return self._extended.regroup(results, always=True)

    @overload
    def experimental_distribute_dataset(
        self, dataset: Iterable[np.ndarray[Any, Any] | jax.Array], options: InputOptions | None = None
    ) -> DistributedDataset[PerReplica[jax.Array] | jax.Array]: ...
    @overload
    def experimental_distribute_dataset(
        self, dataset: Iterable[tuple[np.ndarray[Any, Any] | jax.Array, ...]], options: InputOptions | None = None
    ) -> DistributedDataset[tuple[PerReplica[jax.Array] | jax.Array, ...]]: ...
    @overload
    def experimental_distribute_dataset(
        self, dataset: Iterable[Mapping[K, np.ndarray[Any, Any] | jax.Array]], options: InputOptions | None = None
    ) -> DistributedDataset[dict[K, PerReplica[jax.Array] | jax.Array]]: ...
    @overload
    def experimental_distribute_dataset(
        self, dataset: Foreign, options: InputOptions | None = None
    ) -> DistributedDataset[Any]: ...
    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> DistributedDataset[Any]:
        """Splits a dataset batched by the *global* batch size over workers and replicas.

        Args:
          dataset: a Grain dataset, an iterable of batches, or another source that `jaxtribute.input` knows.
          options: how it is distributed and prefetched.

        Returns:
          An iterable of `PerReplica` values, already on the replicas' devices.

        Source: `tf.distribute.Strategy.experimental_distribute_dataset`.
        """
        from jaxtribute._src.core.input.dataset import distribute_dataset

        plug = self._extended
        return distribute_dataset(dataset, plug.mesh, options, plug.input_context(), plug.input_agreements())

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Iterable[Any]], options: InputOptions | None = None
    ) -> DistributedDataset[Any]:
        """Distributes datasets that `dataset_fn` makes, already sharded and batched by the per-replica batch size.

        Args:
          dataset_fn: called once a worker with an `InputContext`.
          options: how it is prefetched.

        Returns:
          An iterable of `PerReplica` values; each step takes one batch for each replica.

        Source: `tf.distribute.Strategy.distribute_datasets_from_function`.
        """
        from jaxtribute._src.core.input.dataset import distribute_from_function

        settings.function("dataset_fn", dataset_fn)
        plug = self._extended
        return distribute_from_function(dataset_fn, plug.mesh, options, plug.input_context(), plug.input_agreements())

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_make_numpy_dataset(self, numpy_input: T, session: Any = None) -> RowDataset[T]:
        """Makes a Grain dataset of the rows of a nest of NumPy arrays; batch it before distributing it.

        Source: `tf.distribute.Strategy.experimental_make_numpy_dataset`.
        """
        from jaxtribute._src.core.input.array_source import make_numpy_dataset

        del session  # of TensorFlow 1
        return cast("RowDataset[T]", make_numpy_dataset(numpy_input))

    def visualize(self, what: Leaf, *, limit: int = 40) -> Any:
        """Draws which device holds which part of which array, or which replica reads which examples.

        Args:
          what: variables, distributed values, arrays, an optimizer or nests of them; or a dataset, distributed or not.
          limit: how many arrays are drawn, at least 1; the sums count all.

        Returns:
          A `jaxtribute.visualize.Picture`: print it, show it in a notebook, or `save` it as SVG, HTML or text.

        Raises:
          ArgumentTypeError: something that holds no array and is no dataset.
          InputError: a dataset made by `distribute_datasets_from_function`, of which only its function knows.
        """
        return PICTURES.last().picture(self, what, limit)

    def __deepcopy__(self, memo: dict[int, Any]) -> Strategy:
        return self  # devices are no values

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {self.num_replicas_in_sync} replica(s)>"

    def _repr_html_(self) -> str:
        return html_of(self)
