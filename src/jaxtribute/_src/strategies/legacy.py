"""Methods of `Strategy` that newer ones have replaced, and that older programs call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from jaxtribute._src.strategies.input_iterator import InputIterator
from jaxtribute._src.values.distributed import ReplicaValues
from jaxtribute._src.values.variable import Variable
from jaxtribute.errors import ArgumentError

if TYPE_CHECKING:
    from jaxtribute._src.input.options import InputReplicationMode
    from jaxtribute._src.strategies.extended import StrategyExtended

C = TypeVar("C")


def warn_deprecated(name: str, instead: str) -> None:
    """Warns the caller's caller that `name` is deprecated in TensorFlow, and says what to write instead."""
    warnings.warn(f"{name} is deprecated. HINT: {instead}.", DeprecationWarning, stacklevel=3)


class LegacyMethods:
    """A part of `Strategy`."""

    _extended: StrategyExtended

    def colocate_vars_with(self, colocate_with_variable: Variable) -> AbstractContextManager[None]:
        """Older name of `extended.colocate_vars_with`. Source: `tf.distribute.Strategy.colocate_vars_with`."""
        return self._extended.colocate_vars_with(colocate_with_variable)

    def unwrap(self, value: Any) -> tuple[Any, ...]:
        """Older name of `experimental_local_results`. Source: `tf.distribute.Strategy.unwrap`."""
        return self._extended.strategy.experimental_local_results(value)

    def group(self, value: Any, name: str | None = None) -> None:
        """Waits until all components of `value` are computed.

        Args:
          value: a nest of distributed values or arrays.
          name: accepted for compatibility.

        Source: `tf.distribute.Strategy.group`.
        """
        del name
        leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, (ReplicaValues, Variable)))
        local = self._extended.strategy.experimental_local_results
        jax.block_until_ready([part for leaf in leaves for part in local(leaf)])

    def experimental_run(self, fn: Callable[..., Any], input_iterator: InputIterator | None = None) -> Any:
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
        return InputIterator(self._extended.strategy.experimental_distribute_dataset(dataset))

    def make_input_fn_iterator(
        self, input_fn: Callable[..., Any], replication_mode: InputReplicationMode | None = None
    ) -> InputIterator:
        """Distributes the datasets that a function makes, batched by the replicas' batch size; deprecated.

        Args:
          input_fn: takes an `InputContext`, returns a dataset that is sharded and batched.
          replication_mode: how often it is called; by default once a worker. TensorFlow takes nothing else.

        Returns:
          An iterator with `initialize()` and `get_next()`.

        Source: `tf.distribute.Strategy.make_input_fn_iterator`.
        """
        from jaxtribute._src.input.options import InputOptions, InputReplicationMode

        warn_deprecated(
            "Strategy.make_input_fn_iterator", "iterate over strategy.distribute_datasets_from_function(input_fn)"
        )
        options = InputOptions(experimental_replication_mode=replication_mode or InputReplicationMode.PER_WORKER)
        return InputIterator(self._extended.strategy.distribute_datasets_from_function(input_fn, options))

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
        del session_config
        warn_deprecated("Strategy.configure", "leave it out: JAX has no sessions to configure")
        if cluster_spec is not None:
            raise ArgumentError(
                f"configure(cluster_spec={cluster_spec!r}, task_type={task_type!r}, task_id={task_id!r}): "
                f"{type(self).__name__} joins a cluster when it is made, or none. HINT: pass a cluster resolver to "
                "jd.MultiWorkerMirroredStrategy."
            )
