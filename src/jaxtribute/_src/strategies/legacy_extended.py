"""Methods of `StrategyExtended` that only version 1 of `tf.distribute` has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxtribute._src import context as contexts
from jaxtribute._src.strategies.legacy import warn_deprecated
from jaxtribute._src.values.variable import Variable

if TYPE_CHECKING:
    from jaxtribute._src.strategies.base import Strategy
    from jaxtribute._src.strategies.input_iterator import InputIterator


class StepContext:
    """Context that `experimental_run_steps_on_iterator` passes to its function, and returns.

    Source: `MultiStepContext` of TensorFlow 1.
    """

    def __init__(self) -> None:
        self.last_step_outputs: dict[str, Any] = {}
        self.non_tensor_outputs: dict[str, Any] = {}

    def set_last_step_output(self, name: str, output: Any, reduce_op: Any = None) -> None:
        """Keeps an output of the step; that of the last step stays.

        Args:
          name: its key in `last_step_outputs`.
          output: any value. In cross-replica context a distributed one is reduced if `reduce_op` says how.
          reduce_op: `ReduceOp.SUM`, `ReduceOp.MEAN`, their names, or None.
        """
        strategy = contexts.current().strategy
        self.last_step_outputs[name] = output if reduce_op is None else strategy.reduce(reduce_op, output, axis=None)

    def set_non_tensor_output(self, name: str, output: Any) -> None:
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
        del session
        return self.strategy.experimental_make_numpy_dataset(numpy_input)

    def experimental_run_steps_on_iterator(
        self,
        fn: Callable[..., Any],
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
        context.last_step_outputs.update(initial_loop_values or {})
        with self.strategy.scope():
            for _ in range(iterations):
                fn(context, iterator.get_next())
        return context

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
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
        result = fn(*args, **(kwargs or {}))
        return result if group else self.strategy.experimental_local_results(result)
