"""Methods of `Strategy` that newer ones have replaced, and that older programs call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from jaxtribute import DistributedValues, Variable
from jaxtribute.errors import ArgumentError, OutOfRangeError
from jaxtribute.extending import Callers, Context, points
from jaxtribute.typing import Function, Leaf, Nest, Numeric

if TYPE_CHECKING:
    from jaxtribute import (
        DistributedDataset,
        DistributedIterator,
        InputContext,
        InputReplicationMode,
        Strategy,
        StrategyExtended,
    )

C = TypeVar("C")


def warn_deprecated(name: str, instead: str) -> None:
    """Warns the user that `name` is deprecated in TensorFlow, and says what to write instead."""
    Callers.warn(f"{name} is deprecated. HINT: {instead}.", DeprecationWarning)


class LegacyMethods:
    """A part of `Strategy`."""

    _extended: StrategyExtended

    def colocate_vars_with(self, colocate_with_variable: Variable) -> AbstractContextManager[None]:
        """Older name of `extended.colocate_vars_with`. Source: `tf.distribute.Strategy.colocate_vars_with`."""
        return self._extended.colocate_vars_with(colocate_with_variable)

    def unwrap(self, value: Numeric) -> tuple[Any, ...]:
        """Older name of `experimental_local_results`. Source: `tf.distribute.Strategy.unwrap`."""
        return self._extended.strategy.experimental_local_results(value)

    def group(self, value: Numeric, name: str | None = None) -> None:
        """Waits until all components of `value` are computed.

        Args:
          value: a nest of distributed values or arrays.
          name: accepted for compatibility.

        Source: `tf.distribute.Strategy.group`.
        """
        leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, DistributedValues))
        local = self._extended.strategy.experimental_local_results
        jax.block_until_ready([part for leaf in leaves for part in local(leaf)])

    def experimental_run(self, fn: Function, input_iterator: InputIterator | None = None) -> Any:
        """Calls `fn` on every replica with the next element of an iterator; deprecated, see `run`.

        Args:
          fn: the replica function, of one argument if there is an iterator, else of none.
          input_iterator: what `make_dataset_iterator` or `make_input_fn_iterator` returned.

        Returns:
          What `run` returns.

        Raises:
          OutOfRangeError: the iterator is at the end of its data.

        Source: `tf.distribute.Strategy.experimental_run`.
        """
        warn_deprecated("Strategy.experimental_run", "call strategy.run(fn, args=(next(iterator),))")
        args = () if input_iterator is None else (input_iterator.get_next(),)
        return self._extended.strategy.run(fn, args)

    def make_dataset_iterator(self, dataset: Any) -> InputIterator:
        """Distributes a dataset batched by the global batch size; deprecated.

        Args:
          dataset: as for `experimental_distribute_dataset`.

        Returns:
          An iterator with `initialize()` and `get_next()`.

        Source: `tf.distribute.Strategy.make_dataset_iterator`.
        """
        warn_deprecated(
            "Strategy.make_dataset_iterator", "iterate over strategy.experimental_distribute_dataset(dataset)"
        )
        with self._extended.strategy.scope() as strategy:
            return InputIterator(strategy.experimental_distribute_dataset(dataset))

    def make_input_fn_iterator(
        self, input_fn: Function, replication_mode: InputReplicationMode | None = None
    ) -> InputIterator:
        """Distributes the datasets that a function makes, batched by the replicas' batch size; deprecated.

        Args:
          input_fn: takes an `InputContext`, returns a dataset that is sharded and batched; or a function without
            arguments that gives an element, and is called for each replica of each step.
          replication_mode: how often it is called; by default once a worker. TensorFlow takes nothing else.

        Returns:
          An iterator with `initialize()` and `get_next()`.

        Source: `tf.distribute.Strategy.make_input_fn_iterator`.
        """
        from jaxtribute import InputOptions, InputReplicationMode

        warn_deprecated(
            "Strategy.make_input_fn_iterator", "iterate over strategy.distribute_datasets_from_function(input_fn)"
        )
        options = InputOptions(experimental_replication_mode=replication_mode or InputReplicationMode.PER_WORKER)

        def made(context: InputContext) -> Any:
            dataset = input_fn(context)
            return _Calls(dataset) if isinstance(dataset, (FunctionType, MethodType, partial)) else dataset

        with self._extended.strategy.scope() as strategy:
            return InputIterator(strategy.distribute_datasets_from_function(made, options))

    def update_config_proto(self, config_proto: C) -> C:
        """Returns an unchanged copy of a session's configuration; deprecated.

        TensorFlow writes device filters and the leader of collectives into it. There are no sessions here, and
        nothing in it reaches JAX: devices are chosen by the strategy, and by `jd.config`.

        Args:
          config_proto: any object, such as a `compat.tf.compat.v1.ConfigProto`.

        Source: `tf.distribute.Strategy.update_config_proto`.
        """
        warn_deprecated("Strategy.update_config_proto", "leave it out: JAX has no sessions to configure")
        return copy.deepcopy(config_proto)

    def configure(
        self,
        session_config: Any = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Accepts a session's configuration, which means nothing here; deprecated.

        Raises:
          ArgumentError: a cluster is given, which a strategy that is made already cannot join.

        Source: `tf.distribute.Strategy.configure`.
        """
        warn_deprecated("Strategy.configure", "leave it out: JAX has no sessions to configure")
        if cluster_spec is not None:
            raise ArgumentError(
                f"configure(cluster_spec={cluster_spec!r}, task_type={task_type!r}, task_id={task_id!r}): "
                f"{type(self).__name__} joins a cluster when it is made, or none. HINT: pass a cluster resolver to "
                "jd.MultiWorkerMirroredStrategy."
            )


class StepContext:
    """Context that `experimental_run_steps_on_iterator` passes to its function, and returns.

    Source: `MultiStepContext` of TensorFlow 1.
    """

    def __init__(self) -> None:
        self.last_step_outputs: dict[str, Any] = {}
        self.non_tensor_outputs: dict[str, Any] = {}

    def set_last_step_output(self, name: str, output: Leaf, reduce_op: Any = None) -> None:
        """Keeps an output of the step; that of the last step stays.

        Args:
          name: its key in `last_step_outputs`.
          output: any value. In cross-replica context a distributed one is reduced if `reduce_op` says how.
          reduce_op: `ReduceOp.SUM`, `ReduceOp.MEAN`, their names, or None.
        """
        strategy = Context.current().strategy
        self.last_step_outputs[name] = output if reduce_op is None else strategy.reduce(reduce_op, output, axis=None)

    def set_non_tensor_output(self, name: str, output: Leaf) -> None:
        """Keeps an output that is no array."""
        self.non_tensor_outputs[name] = output


class LegacyExtended:
    """A part of `StrategyExtended`."""

    @property
    def strategy(self) -> Strategy:
        """The strategy that this object serves."""
        raise NotImplementedError

    @property
    def experimental_between_graph(self) -> bool:
        """False: there are no graphs to be built by several clients."""
        return False

    @property
    def experimental_should_init(self) -> bool:
        """True: variables are initialized where they are made."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """True if this worker takes part in saving checkpoints: all do."""
        return True

    @property
    def should_save_summary(self) -> bool:
        """True if this worker should write summaries: the first one."""
        return self.strategy.extended.input_context().input_pipeline_id == 0

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Any:
        """Makes a dataset like `Strategy.experimental_make_numpy_dataset`.

        Source: `tf.compat.v1.distribute.StrategyExtended.experimental_make_numpy_dataset`.
        """
        return self.strategy.experimental_make_numpy_dataset(numpy_input)

    def experimental_run_steps_on_iterator(
        self,
        fn: Function,
        iterator: InputIterator,
        iterations: int = 1,
        initial_loop_values: dict[str, Any] | None = None,
    ) -> StepContext:
        """Calls `fn(context, element)` for the next elements of an iterator, in cross-replica context; deprecated.

        Args:
          fn: the step, which keeps its outputs in the `StepContext` that it gets.
          iterator: what `make_dataset_iterator` or `make_input_fn_iterator` returned.
          iterations: the number of steps.
          initial_loop_values: outputs to begin with, by name.

        Source: `tf.compat.v1.distribute.StrategyExtended.experimental_run_steps_on_iterator`.
        """
        warn_deprecated(
            "StrategyExtended.experimental_run_steps_on_iterator", "loop over the dataset and call strategy.run"
        )
        context = StepContext()
        # Into a dictionary of its own: the caller's stays as it was.
        context.last_step_outputs.update(initial_loop_values or {})
        with self.strategy.scope():
            for _ in range(iterations):
                fn(context, iterator.get_next())
        return context

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Calls `fn(*args, **kwargs)` once, for state of an optimizer that belongs to no single variable.

        Args:
          colocate_with: what `non_slot_devices` returned, or a variable; state lies where all variables lie.
          fn: the update.
          args: its arguments.
          kwargs: its keyword arguments.
          group: False to get the result's components as a tuple.

        Source: `tf.compat.v1.distribute.StrategyExtended.update_non_slot`.
        """
        if isinstance(colocate_with, Variable):
            return self.strategy.extended.update(
                colocate_with, lambda _, *a, **k: fn(*a, **k), args, kwargs, group=group
            )
        with self.strategy.scope():
            result = fn(*args, **(kwargs or {}))
        return result if group else self.strategy.experimental_local_results(result)


class _Calls:
    """The elements that a function gives, until it raises `StopIteration` or `OutOfRangeError`.

    Args:
      function: takes no arguments.
    """

    def __init__(self, function: Callable[[], Nest]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[Nest]:
        while True:
            try:
                element = self._function()
            except (StopIteration, OutOfRangeError):
                return
            yield element


class InputIterator:
    """Gives the elements of a distributed dataset one by one, and starts again when it is told to.

    Made by `Strategy.make_dataset_iterator` and `Strategy.make_input_fn_iterator`.

    Args:
      dataset: the distributed dataset.

    Source: `tf.distribute.InputIterator` of TensorFlow 1.
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._dataset = dataset
        self._iterator: DistributedIterator | None = None

    def initialize(self) -> list[Any]:
        """Goes to the first element. An iterator that has given none yet is there already.

        Returns:
          An empty list: there are no operations left to run, as there are in TensorFlow's graphs.

        Source: `InputIterator.initialize` of TensorFlow 1.
        """
        self.close()
        return []

    def get_next(self) -> Any:
        """Returns the next element: a tree of `PerReplica` values, or of plain arrays for one replica.

        Raises:
          OutOfRangeError: at the end of the data.

        Source: `InputIterator.get_next` of TensorFlow 1.
        """
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        return self._iterator.get_next()

    def close(self) -> None:
        """Ends the pass and its thread; the next `get_next` begins another."""
        # Forgotten first, so that whatever closing raises the next element begins a new pass.
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()

    def __iter__(self) -> InputIterator:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        return next(self._iterator)


points.OLDER_METHODS.register((LegacyMethods, LegacyExtended))
