"""`tf.distribute`: the names of this library. Those that come with time are found by name."""

from typing import Any

import jaxtribute
from jaxtribute import CrossDeviceOps as CrossDeviceOps
from jaxtribute import DistributedValues as DistributedValues
from jaxtribute import HierarchicalCopyAllReduce as HierarchicalCopyAllReduce
from jaxtribute import MirroredStrategy as MirroredStrategy
from jaxtribute import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from jaxtribute import NcclAllReduce as NcclAllReduce
from jaxtribute import OneDeviceStrategy as OneDeviceStrategy
from jaxtribute import ReduceOp as ReduceOp
from jaxtribute import ReductionToOneDevice as ReductionToOneDevice
from jaxtribute import ReplicaContext as ReplicaContext
from jaxtribute import RunOptions as RunOptions
from jaxtribute import Strategy as Strategy
from jaxtribute import StrategyExtended as StrategyExtended
from jaxtribute import TPUStrategy as TPUStrategy
from jaxtribute import experimental as experimental
from jaxtribute import experimental_set_strategy as experimental_set_strategy
from jaxtribute import get_replica_context as get_replica_context
from jaxtribute import get_strategy as get_strategy
from jaxtribute import has_strategy as has_strategy
from jaxtribute import in_cross_replica_context as in_cross_replica_context
from jaxtribute._src.addons.compat.catalog.distribute import MODULES
from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.core.input.dataset import DistributedDataset as DistributedDataset
from jaxtribute._src.core.input.iterator import DistributedIterator as DistributedIterator
from jaxtribute._src.core.input.options import InputContext as InputContext
from jaxtribute._src.core.input.options import InputOptions as InputOptions
from jaxtribute._src.core.input.options import InputReplicationMode as InputReplicationMode
from jaxtribute._src.core.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy


def __getattr__(name: str) -> Any:
    if name in MODULES["tf.distribute"].names and hasattr(jaxtribute, name):
        return getattr(jaxtribute, name)
    raise explain_absent(__name__, "tf.distribute", name)
