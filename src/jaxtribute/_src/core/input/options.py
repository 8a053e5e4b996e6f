"""Options of distributed datasets, and the functions that make one on each worker."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from jaxtribute._src.core import settings
from jaxtribute.errors import ArgumentError, InputError


class InputReplicationMode(enum.Enum):
    """Number of pipelines that an input function makes.

    Examples:
      >>> options = jd.InputOptions(experimental_replication_mode=jd.InputReplicationMode.PER_REPLICA)
      >>> strategy = jd.MirroredStrategy(2)
      >>> batches = strategy.distribute_datasets_from_function(lambda context: [np.ones(3)], options)
      >>> [part.shape for part in next(iter(batches)).values]
      [(3,), (3,)]

    Source: `tf.distribute.InputReplicationMode`.
    """

    PER_WORKER = "PER_WORKER"
    """The function is called once on each worker, and the worker's replicas take turns at its dataset."""
    PER_REPLICA = "PER_REPLICA"
    """The function is called once for each replica."""


class AutoShardPolicy(enum.IntEnum):
    """Division of a dataset among the workers.

    Examples:
      >>> options = jd.InputOptions(auto_shard_policy=jd.AutoShardPolicy.DATA)
      >>> batches = jd.MirroredStrategy(2).experimental_distribute_dataset([np.arange(4)], options)
      >>> len(list(batches))
      1

    Source: `tf.data.experimental.AutoShardPolicy`, with its values.
    """

    OFF = -1
    """Not at all: every worker reads the whole dataset."""
    AUTO = 0
    """By FILE where the dataset reads files and each worker gets at least one, else by DATA."""
    FILE = 1
    """Each worker reads files of its own."""
    DATA = 2
    """All workers go through the same batches, and each takes its replicas' slices of every batch."""
    HINT = 3
    """Sharding as the pipeline asks for it: see `shard_hint`."""


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Options of `experimental_distribute_dataset` and `distribute_datasets_from_function`.

    Args:
      experimental_fetch_to_device: whether elements are put on the replicas' devices ahead of time. False leaves
        them as NumPy arrays on the host. None means True.
      experimental_replication_mode: how often a dataset function is called; see `InputReplicationMode`.
      experimental_place_dataset_on_device: accepted with `PER_REPLICA` for TensorFlow's sake. A dataset is Python
        here and lives on the host, so it changes nothing.
      experimental_per_replica_buffer_size: batches that wait ready for each replica. 0 reads and places a batch
        only when it is asked for, without a thread.
      auto_shard_policy: how workers share the dataset. None takes what a `tf.data.Dataset` says of itself in its
        `options()`, and AUTO for any other dataset.
      experimental_prefetch_to_device: older name of `experimental_fetch_to_device`.

    Raises:
      ArgumentError: for a negative buffer size, two names of one option that disagree, or a mode or a policy that
        its enum does not have; strings name members.
      ArgumentTypeError: for what is no number, no truth, or neither a member nor a string.

    Examples:
      >>> options = jd.InputOptions(experimental_fetch_to_device=False)
      >>> batches = jd.MirroredStrategy(2).experimental_distribute_dataset([np.arange(4)], options)
      >>> type(next(iter(batches)).values[0])
      <class 'numpy.ndarray'>

    Source: `tf.distribute.InputOptions`; `auto_shard_policy` is `tf.data.experimental.DistributeOptions`.
    """

    experimental_fetch_to_device: bool | None = None
    experimental_replication_mode: InputReplicationMode | str = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1
    auto_shard_policy: AutoShardPolicy | str | None = None
    experimental_prefetch_to_device: bool | None = None

    def __post_init__(self) -> None:
        fetch, prefetch = self.experimental_fetch_to_device, self.experimental_prefetch_to_device
        if fetch is not None and prefetch is not None and fetch != prefetch:
            raise ArgumentError(
                f"experimental_fetch_to_device={fetch} and experimental_prefetch_to_device={prefetch} are two names of "
                "one option. HINT: give only experimental_fetch_to_device."
            )
        # Frozen, so what was checked and completed is put in past its own `__setattr__`.
        depth = prefetch if fetch is None else fetch
        fetch = True if depth is None else settings.flag("experimental_fetch_to_device", depth)
        object.__setattr__(self, "experimental_fetch_to_device", fetch)
        object.__setattr__(self, "experimental_prefetch_to_device", self.experimental_fetch_to_device)
        settings.flag("experimental_place_dataset_on_device", self.experimental_place_dataset_on_device)
        settings.whole("experimental_per_replica_buffer_size", self.experimental_per_replica_buffer_size)
        mode = settings.member(
            "experimental_replication_mode", self.experimental_replication_mode, InputReplicationMode
        )
        object.__setattr__(self, "experimental_replication_mode", mode)
        if self.auto_shard_policy is not None:
            policy = settings.member("auto_shard_policy", self.auto_shard_policy, AutoShardPolicy)
            object.__setattr__(self, "auto_shard_policy", policy)


@dataclass(frozen=True, slots=True)
class InputContext:
    """Number of this input pipeline, of all pipelines, and of the replicas.

    Args:
      num_input_pipelines: pipelines over all workers: one a worker, or one a replica under `PER_REPLICA`.
      input_pipeline_id: this pipeline, in `[0, num_input_pipelines)`.
      num_replicas_in_sync: replicas that take part in a step, over all workers.

    Raises:
      ArgumentError: for an id outside its range, or a count below 1.

    Examples:
      >>> context = jd.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
      >>> context.get_per_replica_batch_size(64)
      16

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
        return f"jaxtribute.InputContext(input pipeline id {self.input_pipeline_id}, total: {self.num_input_pipelines})"
