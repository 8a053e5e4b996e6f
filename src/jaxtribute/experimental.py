"""`jd.experimental`: the names of `tf.distribute.experimental`, and what may still change."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.public import lazy_names as _lazy_names

_LAZY = {
    "CollectiveCommunication": "collectives.options",
    "CollectiveHints": "collectives.options",
    "CommunicationImplementation": "collectives.options",
    "CommunicationOptions": "collectives.options",
    "Event": "observers",
    "Observer": "observers",
    "observe": "observers",
    "ValueContext": "strategies.base",
    "CentralStorageStrategy": "strategies.central_storage",
    "AutomaticLayout": "values.automatic",
    "DatasetCreator": "input.options",
    "DeviceAssignment": "strategies.device_assignment",
    "MultiWorkerMirroredStrategy": "compat.older",
    "ParameterServerStrategy": "parameter_servers.strategy",
    "PreemptionCheckpointHandler": "checkpoint.preemption",
    "PreemptionWatcher": "checkpoint.preemption",
    "SidecarEvaluator": "tracking.sidecar",
    "TPUStrategy": "compat.older",
    "TerminationConfig": "checkpoint.preemption",
    "Topology": "strategies.device_assignment",
    "automatic_layout": "layouts.settling",
    "compile_for": "tools.compiling.targets",
}
_LAZY_MODULES = {"coordinator", "partitioners", "rpc"}

if _TYPE_CHECKING:
    from jaxtribute import coordinator as coordinator
    from jaxtribute import partitioners as partitioners
    from jaxtribute import rpc as rpc
    from jaxtribute._src.checkpoint.preemption import PreemptionCheckpointHandler as PreemptionCheckpointHandler
    from jaxtribute._src.checkpoint.preemption import PreemptionWatcher as PreemptionWatcher
    from jaxtribute._src.checkpoint.preemption import TerminationConfig as TerminationConfig
    from jaxtribute._src.collectives.options import CollectiveCommunication as CollectiveCommunication
    from jaxtribute._src.collectives.options import CollectiveHints as CollectiveHints
    from jaxtribute._src.collectives.options import CommunicationImplementation as CommunicationImplementation
    from jaxtribute._src.collectives.options import CommunicationOptions as CommunicationOptions
    from jaxtribute._src.compat.older import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from jaxtribute._src.compat.older import TPUStrategy as TPUStrategy
    from jaxtribute._src.input.options import DatasetCreator as DatasetCreator
    from jaxtribute._src.layouts.settling import automatic_layout as automatic_layout
    from jaxtribute._src.observers import Event as Event
    from jaxtribute._src.observers import Observer as Observer
    from jaxtribute._src.observers import observe as observe
    from jaxtribute._src.parameter_servers.strategy import ParameterServerStrategy as ParameterServerStrategy
    from jaxtribute._src.strategies.base import ValueContext as ValueContext
    from jaxtribute._src.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy
    from jaxtribute._src.strategies.device_assignment import DeviceAssignment as DeviceAssignment
    from jaxtribute._src.strategies.device_assignment import Topology as Topology
    from jaxtribute._src.tools.compiling.targets import compile_for as compile_for
    from jaxtribute._src.tracking.sidecar import SidecarEvaluator as SidecarEvaluator
    from jaxtribute._src.values.automatic import AutomaticLayout as AutomaticLayout


__getattr__, __dir__ = _lazy_names(__name__, _LAZY, _LAZY_MODULES)
