"""Datasets, spread over the replicas: rebatching, sharding, splitting, prefetching and positions."""

from jaxtribute.execution.feeds import Optional
from jaxtribute.input.agreement import Agreements, KeyValueAgreements, StepAgreement
from jaxtribute.input.array_source import ArraySource, make_numpy_dataset
from jaxtribute.input.context import InputContext
from jaxtribute.input.dataset import DistributedDataset, distribute_dataset, distribute_from_function
from jaxtribute.input.explain import Explanation, WorkerReads
from jaxtribute.input.grain_files import shard_hint
from jaxtribute.input.iterator import DistributedIterator
from jaxtribute.input.options import AutoShardPolicy, InputOptions, InputReplicationMode
from jaxtribute.input.text_source import TextLineSource
from jaxtribute.values.spec import PerReplicaSpec

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
