"""The names of `tf.compat.v1.distribute.experimental`."""

from typing import Any

from jaxtribute.collectives.options import CollectiveCommunication as CollectiveCommunication
from jaxtribute.collectives.options import CollectiveHints as CollectiveHints
from jaxtribute.collectives.options import CommunicationImplementation as CommunicationImplementation
from jaxtribute.collectives.options import CommunicationOptions as CommunicationOptions
from jaxtribute.compat.absent import explain_absent
from jaxtribute.compat.v1.strategy import CentralStorageStrategy as CentralStorageStrategy
from jaxtribute.compat.v1.strategy import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from jaxtribute.compat.v1.strategy import TPUStrategy as TPUStrategy


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.compat.v1.distribute.experimental", name)
