"""Strategies with the methods and defaults of version 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import jaxtribute as jd
from jaxtribute import ReduceOp, Variable
from jaxtribute._src.addons.compat import older
from jaxtribute._src.addons.compat.legacy import warn_deprecated
from jaxtribute.typing import Device, Nest, ReduceOpLike

if TYPE_CHECKING:
    from jaxtribute import DistributedDataset, InputContext, InputOptions
    from jaxtribute.cluster_resolver import ClusterResolver


class Strategy(jd.Strategy):
    """A strategy as TensorFlow 1 knows it.

    Source: `tf.compat.v1.distribute.Strategy`.
    """

    def reduce(self, reduce_op: ReduceOpLike, value: Nest, axis: int | tuple[int, ...] | None = None) -> Any:
        """Reduces distributed values over the replicas; as `jd.Strategy.reduce`, where `axis` has no default.

        Source: `tf.compat.v1.distribute.Strategy.reduce`.
        """
        return super().reduce(reduce_op, value, axis)

    def unwrap(self, value: Nest) -> tuple[Any, ...]:
        """Older name of `experimental_local_results`. Source: `tf.compat.v1.distribute.Strategy.unwrap`."""
        warn_deprecated("Strategy.unwrap", "call strategy.experimental_local_results(value)")
        return super().unwrap(value)

    def colocate_vars_with(self, colocate_with_variable: Variable) -> AbstractContextManager[None]:
        """Older name of the method of `extended`. Source: `tf.compat.v1.distribute.Strategy.colocate_vars_with`."""
        warn_deprecated("Strategy.colocate_vars_with", "call strategy.extended.colocate_vars_with(variable)")
        return super().colocate_vars_with(colocate_with_variable)

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Older name of `distribute_datasets_from_function`.

        Source: `tf.compat.v1.distribute.Strategy.experimental_distribute_datasets_from_function`.
        """
        warn_deprecated(
            "Strategy.experimental_distribute_datasets_from_function",
            "call strategy.distribute_datasets_from_function(dataset_fn)",
        )
        return super().distribute_datasets_from_function(dataset_fn, options)

    def experimental_make_numpy_dataset(self, numpy_input: Nest, session: object = None) -> Any:
        """Makes a dataset of the rows of arrays, with the methods of `tf.data`: `take`, `batch`, `prefetch`.

        Source: `tf.compat.v1.distribute.Strategy.experimental_make_numpy_dataset`.
        """
        from jaxtribute._src.addons.compat.tf.dataset import Dataset

        return Dataset.from_tensor_slices(numpy_input)


# `Strategy` stands first among the bases: version 1's methods hide those of the strategy below.
class MirroredStrategy(Strategy, jd.MirroredStrategy):
    """`jd.MirroredStrategy` of version 1. Source: `tf.compat.v1.distribute.MirroredStrategy`."""


class OneDeviceStrategy(Strategy, jd.OneDeviceStrategy):
    """`jd.OneDeviceStrategy` of version 1. Source: `tf.compat.v1.distribute.OneDeviceStrategy`."""


class CentralStorageStrategy(Strategy, jd.CentralStorageStrategy):
    """`jd.CentralStorageStrategy`. Source: `tf.compat.v1.distribute.experimental.CentralStorageStrategy`."""


class MultiWorkerMirroredStrategy(Strategy, older.MultiWorkerMirroredStrategy):
    """`jd.experimental.MultiWorkerMirroredStrategy` of version 1.

    Source: `tf.compat.v1.distribute.experimental.MultiWorkerMirroredStrategy`.
    """


class TPUStrategy(Strategy, older.TPUStrategy):
    """`jd.experimental.TPUStrategy` of version 1.

    Args:
      tpu_cluster_resolver: as there.
      steps_per_run: what the attribute shall say; only the program itself reads it.
      device_assignment: as there.

    Source: `tf.compat.v1.distribute.experimental.TPUStrategy`.
    """

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        steps_per_run: int | None = None,
        device_assignment: Sequence[str | Device] | None = None,
    ) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)
        self._steps_per_run = 1 if steps_per_run is None else steps_per_run

    @property
    def steps_per_run(self) -> int:
        """Number of steps that a program should make before it looks at results; 1 by default.

        Source: `tf.compat.v1.distribute.experimental.TPUStrategy.steps_per_run`.
        """
        return self._steps_per_run


def get_loss_reduction() -> ReduceOp:
    """Returns how losses are combined over replicas: `ReduceOp.SUM`, as outside estimators in TensorFlow.

    Source: `tf.compat.v1.distribute.get_loss_reduction`.
    """
    return ReduceOp.SUM
