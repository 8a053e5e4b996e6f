"""`jd.experimental`: the names of `tf.distribute.experimental`."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from jaxtribute import partitioners as partitioners
from jaxtribute.collectives.options import CollectiveCommunication as CollectiveCommunication
from jaxtribute.collectives.options import CollectiveHints as CollectiveHints
from jaxtribute.collectives.options import CommunicationImplementation as CommunicationImplementation
from jaxtribute.collectives.options import CommunicationOptions as CommunicationOptions
from jaxtribute.strategies.base import ValueContext as ValueContext
from jaxtribute.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy
from jaxtribute.strategies.older import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from jaxtribute.strategies.older import TPUStrategy as TPUStrategy

_LAZY = {
    "DatasetCreator": "input.creator",
    "ParameterServerStrategy": "strategies.parameter_server",
    "PreemptionCheckpointHandler": "checkpoint.preemption",
    "PreemptionWatcher": "checkpoint.preemption",
    "SidecarEvaluator": "coordinator.sidecar",
    "TerminationConfig": "checkpoint.preemption",
    "compile_for": "compiling",
}
_LAZY_MODULES = {"coordinator", "rpc"}

if _TYPE_CHECKING:
    from jaxtribute import coordinator as coordinator
    from jaxtribute import rpc as rpc
    from jaxtribute.checkpoint.preemption import PreemptionCheckpointHandler as PreemptionCheckpointHandler
    from jaxtribute.checkpoint.preemption import PreemptionWatcher as PreemptionWatcher
    from jaxtribute.checkpoint.preemption import TerminationConfig as TerminationConfig
    from jaxtribute.compiling import compile_for as compile_for
    from jaxtribute.coordinator.sidecar import SidecarEvaluator as SidecarEvaluator
    from jaxtribute.input.creator import DatasetCreator as DatasetCreator
    from jaxtribute.strategies.parameter_server import ParameterServerStrategy as ParameterServerStrategy


def __getattr__(name: str) -> _Any:
    if name in _LAZY_MODULES:
        return _import_module(f"jaxtribute.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(_import_module(f"jaxtribute.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES})
