"""The place of an input function in the cluster that it feeds."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtribute._src import settings
from jaxtribute.errors import ArgumentError, InputError


@dataclass(frozen=True, slots=True)
class InputContext:
    """Number of this input pipeline, of all pipelines, and of the replicas.

    Args:
      num_input_pipelines: pipelines over all workers: one a worker, or one a replica under `PER_REPLICA`.
      input_pipeline_id: this pipeline, in `[0, num_input_pipelines)`.
      num_replicas_in_sync: replicas that take part in a step, over all workers.

    Raises:
      ArgumentError: for an id outside its range, or a count below 1.

    Source: `tf.distribute.InputContext`.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def __post_init__(self) -> None:
        settings.whole("num_input_pipelines", self.num_input_pipelines, 1)
        settings.whole("num_replicas_in_sync", self.num_replicas_in_sync, 1)
        settings.whole("input_pipeline_id", self.input_pipeline_id)
        if not 0 <= self.input_pipeline_id < self.num_input_pipelines:
            raise ArgumentError(
                f"input_pipeline_id={self.input_pipeline_id} is not in [0, {self.num_input_pipelines}). "
                "HINT: number the pipelines from 0."
            )

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns the batch size of one replica.

        Args:
          global_batch_size: examples in a step, over all replicas.

        Raises:
          InputError: if the replicas do not divide it; a `ValueError`.

        Source: `tf.distribute.InputContext.get_per_replica_batch_size`.
        """
        settings.whole("global_batch_size", global_batch_size, 1)
        if global_batch_size % self.num_replicas_in_sync:
            lower = global_batch_size - global_batch_size % self.num_replicas_in_sync
            raise InputError(
                f"The `global_batch_size` {global_batch_size!r} is not divisible by `num_replicas_in_sync` "
                f"{self.num_replicas_in_sync!r}. HINT: use {lower + self.num_replicas_in_sync}, or give the dataset to "
                "experimental_distribute_dataset, which splits batches of any size."
            )
        return global_batch_size // self.num_replicas_in_sync

    def __str__(self) -> str:
        return (
            f"jaxtribute.InputContext(input pipeline id {self.input_pipeline_id}, total: {self.num_input_pipelines}, "
            f"replicas: {self.num_replicas_in_sync})"
        )
