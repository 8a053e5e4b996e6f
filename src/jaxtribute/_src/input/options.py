"""Options of distributed datasets: buffer, placement, replication and the sharding over workers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from jaxtribute._src import settings
from jaxtribute.errors import ArgumentError


class InputReplicationMode(enum.Enum):
    """Number of pipelines that an input function makes.

    Source: `tf.distribute.InputReplicationMode`.
    """

    PER_WORKER = "PER_WORKER"
    """The function is called once on each worker, and the worker's replicas take turns at its dataset."""
    PER_REPLICA = "PER_REPLICA"
    """The function is called once for each replica."""


class AutoShardPolicy(enum.IntEnum):
    """Division of a dataset among the workers.

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
        given = prefetch if fetch is None else fetch
        fetch = True if given is None else settings.flag("experimental_fetch_to_device", given)
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
