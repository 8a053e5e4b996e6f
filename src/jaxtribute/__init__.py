"""The programming model of `tf.distribute` on JAX: `import jaxtribute as jd`."""

from importlib import import_module as _import_module
from os import environ as _environ
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from jaxtribute import config as config
from jaxtribute import errors as errors
from jaxtribute import forks as _forks
from jaxtribute.collectives.cross_device_ops import CrossDeviceOps as CrossDeviceOps
from jaxtribute.collectives.cross_device_ops import HierarchicalCopyAllReduce as HierarchicalCopyAllReduce
from jaxtribute.collectives.cross_device_ops import NcclAllReduce as NcclAllReduce
from jaxtribute.collectives.cross_device_ops import ReductionToOneDevice as ReductionToOneDevice
from jaxtribute.execution.autodiff import grad as grad
from jaxtribute.execution.autodiff import value_and_grad as value_and_grad
from jaxtribute.execution.function import function as function
from jaxtribute.execution.replica_context import ReplicaContext as ReplicaContext
from jaxtribute.integrations.keras import activation as _keras
from jaxtribute.strategies import default as _default
from jaxtribute.strategies.base import RunOptions as RunOptions
from jaxtribute.strategies.base import Strategy as Strategy
from jaxtribute.strategies.extended import StrategyExtended as StrategyExtended
from jaxtribute.strategies.mirrored import MirroredStrategy as MirroredStrategy
from jaxtribute.strategies.one_device import OneDeviceStrategy as OneDeviceStrategy
from jaxtribute.strategies.scope import experimental_set_strategy as experimental_set_strategy
from jaxtribute.strategies.scope import get_replica_context as get_replica_context
from jaxtribute.strategies.scope import get_strategy as get_strategy
from jaxtribute.strategies.scope import has_strategy as has_strategy
from jaxtribute.strategies.scope import in_cross_replica_context as in_cross_replica_context
from jaxtribute.values.distributed import DistributedValues as DistributedValues
from jaxtribute.values.distributed import Mirrored as Mirrored
from jaxtribute.values.distributed import PerReplica as PerReplica
from jaxtribute.values.enums import ReduceOp as ReduceOp
from jaxtribute.values.enums import VariableAggregation as VariableAggregation
from jaxtribute.values.enums import VariableSynchronization as VariableSynchronization
from jaxtribute.values.mesh import AXIS as REPLICA_AXIS
from jaxtribute.values.scatter import IndexedSlices as IndexedSlices
from jaxtribute.values.spec import ArraySpec as ArraySpec
from jaxtribute.values.variable import Variable as Variable

_default.install()
_keras.install()
_forks.guard()
# Before user code can start a backend; this starts none.
config.apply_environment()
if "JAXTRIBUTE_FAULTS" in _environ:
    _import_module(f"{__name__}.testing.faults").apply_environment()

_LAZY = {
    "AutoShardPolicy": "input",
    "CentralStorageStrategy": "strategies.central_storage",
    "Checkpoint": "checkpoint",
    "CheckpointManager": "checkpoint",
    "ClusterDeviceFilters": "cluster.spec",
    "ClusterSpec": "cluster.spec",
    "DistributedDataset": "input",
    "DistributedIterator": "input",
    "FullyShardedStrategy": "strategies.fully_sharded",
    "InputContext": "input",
    "InputOptions": "input",
    "InputReplicationMode": "input",
    "Model": "integrations.model",
    "MultiWorkerMirroredStrategy": "strategies.multi_worker",
    "Optimizer": "optimizer",
    "ParameterServerStrategy": "strategies.parameter_server",
    "Server": "cluster.server",
    "TPUStrategy": "strategies.tpu",
    "latest_checkpoint": "checkpoint",
    "shard_hint": "input",
}
"""Names that are found when they are asked for, and in which module: what few programs need, or loads much more."""

_LAZY_MODULES = {
    "cluster_resolver",
    "coordinator",
    "debug",
    "experimental",
    "extending",
    "nn",
    "precision",
    "summary",
    "testing",
}
"""Modules of the public face that are loaded when they are asked for."""

if _TYPE_CHECKING:
    __version__: str
    from jaxtribute import cluster_resolver as cluster_resolver
    from jaxtribute import coordinator as coordinator
    from jaxtribute import debug as debug
    from jaxtribute import experimental as experimental
    from jaxtribute import extending as extending
    from jaxtribute import nn as nn
    from jaxtribute import precision as precision
    from jaxtribute import summary as summary
    from jaxtribute import testing as testing
    from jaxtribute.checkpoint import Checkpoint as Checkpoint
    from jaxtribute.checkpoint import CheckpointManager as CheckpointManager
    from jaxtribute.checkpoint import latest_checkpoint as latest_checkpoint
    from jaxtribute.cluster.server import Server as Server
    from jaxtribute.cluster.spec import ClusterDeviceFilters as ClusterDeviceFilters
    from jaxtribute.cluster.spec import ClusterSpec as ClusterSpec
    from jaxtribute.input import AutoShardPolicy as AutoShardPolicy
    from jaxtribute.input import DistributedDataset as DistributedDataset
    from jaxtribute.input import DistributedIterator as DistributedIterator
    from jaxtribute.input import InputContext as InputContext
    from jaxtribute.input import InputOptions as InputOptions
    from jaxtribute.input import InputReplicationMode as InputReplicationMode
    from jaxtribute.input import shard_hint as shard_hint
    from jaxtribute.integrations.model import Model as Model
    from jaxtribute.optimizer import Optimizer as Optimizer
    from jaxtribute.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy
    from jaxtribute.strategies.fully_sharded import FullyShardedStrategy as FullyShardedStrategy
    from jaxtribute.strategies.multi_worker import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from jaxtribute.strategies.parameter_server import ParameterServerStrategy as ParameterServerStrategy
    from jaxtribute.strategies.tpu import TPUStrategy as TPUStrategy


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    if name in _LAZY_MODULES:
        return _import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    found = getattr(_import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES, "__version__"})
