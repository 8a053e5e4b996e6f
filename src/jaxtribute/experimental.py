"""`jd.experimental`: the names of `tf.distribute.experimental`, and what may still change."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.public import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from jaxtribute import coordinator as coordinator
    from jaxtribute import partitioners as partitioners
    from jaxtribute import rpc as rpc
    from jaxtribute._src.addons.compat.older import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from jaxtribute._src.addons.compat.older import TPUStrategy as TPUStrategy
    from jaxtribute._src.addons.compat.older_hints import CollectiveCommunication as CollectiveCommunication
    from jaxtribute._src.addons.compat.older_hints import CollectiveHints as CollectiveHints
    from jaxtribute._src.addons.compiling.targets import compile_for as compile_for
    from jaxtribute._src.addons.elastic.strategy import ElasticStrategy as ElasticStrategy
    from jaxtribute._src.addons.fitting.automatic import Automatic as Automatic
    from jaxtribute._src.addons.keras.dataset_creator import DatasetCreator as DatasetCreator
    from jaxtribute._src.addons.layouts.automatic import AutomaticLayout as AutomaticLayout
    from jaxtribute._src.addons.layouts.settling import automatic_layout as automatic_layout
    from jaxtribute._src.addons.parameter_servers.strategy import ParameterServerStrategy as ParameterServerStrategy
    from jaxtribute._src.addons.preemption.handler import PreemptionCheckpointHandler as PreemptionCheckpointHandler
    from jaxtribute._src.addons.preemption.handler import PreemptionWatcher as PreemptionWatcher
    from jaxtribute._src.addons.preemption.handler import TerminationConfig as TerminationConfig
    from jaxtribute._src.addons.tpu.device_assignment import DeviceAssignment as DeviceAssignment
    from jaxtribute._src.addons.tpu.device_assignment import Topology as Topology
    from jaxtribute._src.addons.tracking.sidecar import SidecarEvaluator as SidecarEvaluator
    from jaxtribute._src.core.collectives.options import CommunicationImplementation as CommunicationImplementation
    from jaxtribute._src.core.collectives.options import CommunicationOptions as CommunicationOptions
    from jaxtribute._src.core.observers import Event as Event
    from jaxtribute._src.core.observers import Observer as Observer
    from jaxtribute._src.core.observers import observe as observe
    from jaxtribute._src.core.strategies.base import ValueContext as ValueContext
    from jaxtribute._src.core.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy


_lazy_names(__name__)
