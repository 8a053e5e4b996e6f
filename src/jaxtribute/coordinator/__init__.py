"""`jd.coordinator`: functions scheduled on the workers of a cluster, variables on its parameter servers."""

from jaxtribute.coordinator.coordinator import ClusterCoordinator as ClusterCoordinator
from jaxtribute.coordinator.dataset import PerWorkerDataset as PerWorkerDataset
from jaxtribute.coordinator.dataset import PerWorkerValues as PerWorkerValues
from jaxtribute.coordinator.remote_value import RemoteValue as RemoteValue
from jaxtribute.coordinator.variable import ServerVariable as ServerVariable
from jaxtribute.coordinator.variable import ShardedVariable as ShardedVariable
from jaxtribute.coordinator.variable import ShardInfo as ShardInfo
from jaxtribute.coordinator.worker_task import current_worker_index as experimental_get_current_worker_index

PerWorkerValue = PerWorkerValues

__all__ = [
    "ClusterCoordinator",
    "PerWorkerDataset",
    "PerWorkerValue",
    "PerWorkerValues",
    "RemoteValue",
    "ServerVariable",
    "ShardInfo",
    "ShardedVariable",
    "experimental_get_current_worker_index",
]
