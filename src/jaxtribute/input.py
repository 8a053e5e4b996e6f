"""Datasets, spread over the replicas: rebatching, sharding, splitting, prefetching and positions."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.core.execution.feeds import Optional
from jaxtribute._src.core.input.agreement import Agreements, KeyValueAgreements, StepAgreement
from jaxtribute._src.core.input.array_source import ArraySource, make_numpy_dataset
from jaxtribute._src.core.input.dataset import DistributedDataset, distribute_dataset, distribute_from_function
from jaxtribute._src.core.input.explanation import Explanation, WorkerReads
from jaxtribute._src.core.input.grain_files import shard_hint
from jaxtribute._src.core.input.iterator import DistributedIterator
from jaxtribute._src.core.input.options import AutoShardPolicy, InputContext, InputOptions, InputReplicationMode
from jaxtribute._src.core.values.spec import PerReplicaSpec
from jaxtribute._src.public import lazy_names as _lazy_names
from jaxtribute._src.public import publish as _publish

if _TYPE_CHECKING:
    from jaxtribute._src.addons.sources.file_records import TextLineSource

__all__ = [
    "Agreements",
    "ArraySource",
    "AutoShardPolicy",
    "DistributedDataset",
    "DistributedIterator",
    "Explanation",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "KeyValueAgreements",
    "Optional",
    "PerReplicaSpec",
    "StepAgreement",
    "TextLineSource",
    "WorkerReads",
    "distribute_dataset",
    "distribute_from_function",
    "make_numpy_dataset",
    "shard_hint",
]

_lazy_names(__name__)

_publish(__name__)
