"""The programming model of `tf.distribute` on JAX: `import jaxtribute as jd`.

Examples in docstrings are of a process with four devices or more (`jd.config.set_logical_cpu_devices(4)`), and name
`jnp`, `np` and `optax` as everybody does.
"""

from contextlib import suppress as _suppress
from importlib import import_module as _import_module
from os import environ as _environ
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from jaxtribute import errors as errors
from jaxtribute._src.launching import examines as _examines
from jaxtribute._src.launching import launches as _launches
from jaxtribute._src.launching import looks_on as _looks_on
from jaxtribute._src.offers import offer_all as _offer_all
from jaxtribute._src.public import lazy_names as _lazy_names
from jaxtribute._src.public import publish as _publish

# The doctor says what is wrong with a setting, and must come to do so.
_left_to_doctor = (errors.ConfigError,) if _examines() else ()
# The launcher starts in a tenth of the time without JAX, and leaves the settings of the environment to its ranks.
if not _launches():
    from jaxtribute import config as config
    from jaxtribute._src import forks as _forks
    from jaxtribute._src import last_call as _last_call
    from jaxtribute._src import misspelt as _misspelt
    from jaxtribute._src import proxies as _proxies
    from jaxtribute._src import roll_call as _roll_call
    from jaxtribute._src import stragglers as _stragglers
    from jaxtribute._src.core.collectives.cross_device_ops import CrossDeviceOps as CrossDeviceOps
    from jaxtribute._src.core.collectives.cross_device_ops import HierarchicalCopyAllReduce as HierarchicalCopyAllReduce
    from jaxtribute._src.core.collectives.cross_device_ops import NcclAllReduce as NcclAllReduce
    from jaxtribute._src.core.collectives.cross_device_ops import ReductionToOneDevice as ReductionToOneDevice
    from jaxtribute._src.core.execution.function import function as function
    from jaxtribute._src.core.execution.replica_context import ReplicaContext as ReplicaContext
    from jaxtribute._src.core.strategies import default as _default
    from jaxtribute._src.core.strategies.base import RunOptions as RunOptions
    from jaxtribute._src.core.strategies.base import Strategy as Strategy
    from jaxtribute._src.core.strategies.extended import StrategyExtended as StrategyExtended
    from jaxtribute._src.core.strategies.mirrored import MirroredStrategy as MirroredStrategy
    from jaxtribute._src.core.strategies.one_device import OneDeviceStrategy as OneDeviceStrategy
    from jaxtribute._src.core.strategies.scope import experimental_set_strategy as experimental_set_strategy
    from jaxtribute._src.core.strategies.scope import get_replica_context as get_replica_context
    from jaxtribute._src.core.strategies.scope import get_strategy as get_strategy
    from jaxtribute._src.core.strategies.scope import has_strategy as has_strategy
    from jaxtribute._src.core.strategies.scope import in_cross_replica_context as in_cross_replica_context
    from jaxtribute._src.core.values.distributed import DistributedValues as DistributedValues
    from jaxtribute._src.core.values.distributed import Mirrored as Mirrored
    from jaxtribute._src.core.values.distributed import PerReplica as PerReplica
    from jaxtribute._src.core.values.enums import ReduceOp as ReduceOp
    from jaxtribute._src.core.values.enums import VariableAggregation as VariableAggregation
    from jaxtribute._src.core.values.enums import VariableSynchronization as VariableSynchronization
    from jaxtribute._src.core.values.layouts import LayoutMap as LayoutMap
    from jaxtribute._src.core.values.layouts import with_layout as with_layout
    from jaxtribute._src.core.values.mesh import AXIS as _AXIS
    from jaxtribute._src.core.values.scatter import IndexedSlices as IndexedSlices
    from jaxtribute._src.core.values.variable import Variable as Variable

    REPLICA_AXIS = _AXIS
    """Name of the axis over the replicas in compiled programs: the `axis_name` of layers of other libraries."""

    _default.install()
    _offer_all()
    _forks.guard()
    _proxies.install()
    _roll_call.install()
    _last_call.install()
    _stragglers.install()
    # Before user code can start a backend; this starts none.
    _misspelt.check_names()
    with _suppress(*_left_to_doctor):
        config.apply_environment()

if _TYPE_CHECKING:
    __version__: str
    from jaxtribute import bench as bench
    from jaxtribute import checkpoint as checkpoint
    from jaxtribute import cluster_resolver as cluster_resolver
    from jaxtribute import compat as compat
    from jaxtribute import coordinator as coordinator
    from jaxtribute import debug as debug
    from jaxtribute import experimental as experimental
    from jaxtribute import extending as extending
    from jaxtribute import input as input
    from jaxtribute import integrations as integrations
    from jaxtribute import nn as nn
    from jaxtribute import partitioners as partitioners
    from jaxtribute import planning as planning
    from jaxtribute import precision as precision
    from jaxtribute import profiling as profiling
    from jaxtribute import rpc as rpc
    from jaxtribute import summary as summary
    from jaxtribute import testing as testing
    from jaxtribute import typing as typing
    from jaxtribute import visualize as visualize
    from jaxtribute._src.addons.live.progress import progress as progress
    from jaxtribute._src.addons.models.model import Model as Model
    from jaxtribute._src.addons.parameter_servers.engines.server import Server as Server
    from jaxtribute._src.addons.parameter_servers.strategy import ParameterServerStrategy as ParameterServerStrategy
    from jaxtribute._src.addons.tpu.strategy import TPUStrategy as TPUStrategy
    from jaxtribute._src.core.checkpoint.checkpoint import Checkpoint as Checkpoint
    from jaxtribute._src.core.checkpoint.folder import latest_checkpoint as latest_checkpoint
    from jaxtribute._src.core.checkpoint.manager import CheckpointManager as CheckpointManager
    from jaxtribute._src.core.cluster.spec import ClusterDeviceFilters as ClusterDeviceFilters
    from jaxtribute._src.core.cluster.spec import ClusterSpec as ClusterSpec
    from jaxtribute._src.core.execution.autodiff import grad as grad
    from jaxtribute._src.core.execution.autodiff import value_and_grad as value_and_grad
    from jaxtribute._src.core.execution.autodiff import value_and_grads as value_and_grads
    from jaxtribute._src.core.input.dataset import DistributedDataset as DistributedDataset
    from jaxtribute._src.core.input.grain_files import shard_hint as shard_hint
    from jaxtribute._src.core.input.iterator import DistributedIterator as DistributedIterator
    from jaxtribute._src.core.input.options import AutoShardPolicy as AutoShardPolicy
    from jaxtribute._src.core.input.options import InputContext as InputContext
    from jaxtribute._src.core.input.options import InputOptions as InputOptions
    from jaxtribute._src.core.input.options import InputReplicationMode as InputReplicationMode
    from jaxtribute._src.core.optimizer.optimizer import Optimizer as Optimizer
    from jaxtribute._src.core.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy
    from jaxtribute._src.core.strategies.fully_sharded import FullyShardedStrategy as FullyShardedStrategy
    from jaxtribute._src.core.strategies.multi_worker import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from jaxtribute._src.core.values.spec import ArraySpec as ArraySpec
    from jaxtribute._src.main_process import is_main as is_main


_found, _listed = _lazy_names(__name__)


if not _TYPE_CHECKING:  # a checker is to know what is not there

    def __getattr__(name: str) -> _Any:
        if name == "__version__":
            from importlib.metadata import version

            return version(__name__)
        return _found(name)


def __dir__() -> list[str]:
    return sorted([*_listed(), "__version__"])


_publish(__name__, [name for name in globals() if not name.startswith("_")])

# At the end: what they load imports the names above.
if not _launches():
    if "JAXTRIBUTE_RUN" in _environ and not _looks_on():
        _import_module(f"{__name__}._src.addons.live.starting").apply_environment()
    if "JAXTRIBUTE_FAULTS" in _environ:
        with _suppress(*_left_to_doctor):
            _import_module(f"{__name__}._src.addons.testing.faults").apply_environment()
