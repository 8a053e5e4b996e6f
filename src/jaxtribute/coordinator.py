"""`jd.coordinator`: functions scheduled on the workers of a cluster, variables on its parameter servers."""

from jaxtribute._src.addons.parameter_servers.scheduling.coordinator import ClusterCoordinator
from jaxtribute._src.addons.parameter_servers.scheduling.per_worker import PerWorkerDataset, PerWorkerValues
from jaxtribute._src.addons.parameter_servers.scheduling.remote_value import RemoteValue
from jaxtribute._src.addons.parameter_servers.scheduling.worker_task import experimental_get_current_worker_index
from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable, ShardedVariable, ShardInfo
from jaxtribute._src.public import publish as _publish

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

_publish(__name__)
