"""`jd.experimental`: the names of `tf.distribute.experimental`."""

from jaxtribute import partitioners as partitioners
from jaxtribute.collectives.options import CollectiveCommunication as CollectiveCommunication
from jaxtribute.collectives.options import CollectiveHints as CollectiveHints
from jaxtribute.collectives.options import CommunicationImplementation as CommunicationImplementation
from jaxtribute.collectives.options import CommunicationOptions as CommunicationOptions
from jaxtribute.strategies.base import ValueContext as ValueContext
from jaxtribute.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy
from jaxtribute.strategies.older import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from jaxtribute.strategies.older import TPUStrategy as TPUStrategy
