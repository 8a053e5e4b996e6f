"""The names of `tf.compat.v1.distribute.experimental`."""

from typing import TYPE_CHECKING, Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.older_hints import CollectiveCommunication as CollectiveCommunication
from jaxtribute._src.addons.compat.older_hints import CollectiveHints as CollectiveHints
from jaxtribute._src.addons.compat.v1_strategies import CentralStorageStrategy as CentralStorageStrategy
from jaxtribute._src.addons.compat.v1_strategies import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from jaxtribute._src.addons.compat.v1_strategies import TPUStrategy as TPUStrategy
from jaxtribute._src.core.collectives.options import CommunicationImplementation as CommunicationImplementation
from jaxtribute._src.core.collectives.options import CommunicationOptions as CommunicationOptions

if TYPE_CHECKING:
    from jaxtribute._src.addons.compat.v1_parameter_server import ParameterServerStrategy as ParameterServerStrategy


def __getattr__(name: str) -> Any:
    if name == "ParameterServerStrategy":
        from jaxtribute._src.addons.compat.v1_parameter_server import ParameterServerStrategy

        return ParameterServerStrategy
    raise explain_absent(__name__, "tf.compat.v1.distribute.experimental", name)
