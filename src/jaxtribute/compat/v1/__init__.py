"""The names of `tf.compat.v1.distribute`: `from jaxtribute.compat import v1`.

Strategies made here have version 1's methods and defaults: `reduce` without an axis, and the methods that TensorFlow 2
dropped, each with one `DeprecationWarning` that says what to write instead.
"""

from typing import Any

from jaxtribute import cluster_resolver as cluster_resolver
from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.legacy import InputIterator as InputIterator
from jaxtribute._src.addons.compat.v1_strategies import MirroredStrategy as MirroredStrategy
from jaxtribute._src.addons.compat.v1_strategies import OneDeviceStrategy as OneDeviceStrategy
from jaxtribute._src.addons.compat.v1_strategies import Strategy as Strategy
from jaxtribute._src.addons.compat.v1_strategies import get_loss_reduction as get_loss_reduction
from jaxtribute._src.addons.parameter_servers.engines.server import Server as Server
from jaxtribute._src.core.collectives.cross_device_ops import CrossDeviceOps as CrossDeviceOps
from jaxtribute._src.core.collectives.cross_device_ops import HierarchicalCopyAllReduce as HierarchicalCopyAllReduce
from jaxtribute._src.core.collectives.cross_device_ops import NcclAllReduce as NcclAllReduce
from jaxtribute._src.core.collectives.cross_device_ops import ReductionToOneDevice as ReductionToOneDevice
from jaxtribute._src.core.execution.replica_context import ReplicaContext as ReplicaContext
from jaxtribute._src.core.input.options import InputContext as InputContext
from jaxtribute._src.core.input.options import InputReplicationMode as InputReplicationMode
from jaxtribute._src.core.strategies.base import RunOptions as RunOptions
from jaxtribute._src.core.strategies.extended import StrategyExtended as StrategyExtended
from jaxtribute._src.core.strategies.scope import experimental_set_strategy as experimental_set_strategy
from jaxtribute._src.core.strategies.scope import get_replica_context as get_replica_context
from jaxtribute._src.core.strategies.scope import get_strategy as get_strategy
from jaxtribute._src.core.strategies.scope import has_strategy as has_strategy
from jaxtribute._src.core.strategies.scope import in_cross_replica_context as in_cross_replica_context
from jaxtribute._src.core.values.enums import ReduceOp as ReduceOp
from jaxtribute.compat.v1 import experimental as experimental


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.compat.v1.distribute", name)
