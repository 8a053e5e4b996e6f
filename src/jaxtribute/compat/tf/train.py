"""`tf.train`: clusters, checkpoints and moving averages. Optimizers have another name here."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.tf.averages import ExponentialMovingAverage as ExponentialMovingAverage
from jaxtribute._src.addons.parameter_servers.engines.server import ServerDef as ServerDef
from jaxtribute._src.core.cluster.spec import ClusterDef as ClusterDef
from jaxtribute._src.core.cluster.spec import ClusterSpec as ClusterSpec
from jaxtribute._src.core.cluster.spec import JobDef as JobDef

if TYPE_CHECKING:
    from jaxtribute._src.addons.compat.tf.checkpoints import Checkpoint as Checkpoint
    from jaxtribute._src.addons.compat.tf.checkpoints import CheckpointManager as CheckpointManager
    from jaxtribute._src.addons.compat.tf.checkpoints import CheckpointOptions as CheckpointOptions
    from jaxtribute._src.addons.compat.tf.checkpoints import latest_checkpoint as latest_checkpoint

_EXAMPLES = {"BytesList", "Example", "Feature", "Features", "FloatList", "Int64List"}
"""Names of a module that makes them with protobuf."""
_CHECKPOINTS = {"Checkpoint", "CheckpointManager", "CheckpointOptions", "latest_checkpoint"}
"""Names of a module that loads Orbax."""


def __getattr__(name: str) -> Any:
    if name in _CHECKPOINTS:
        return getattr(import_module("jaxtribute._src.addons.compat.tf.checkpoints"), name)
    if name in _EXAMPLES:
        return getattr(import_module("jaxtribute._src.addons.compat.tf.examples"), name)
    raise explain_absent(__name__, "tf.train", name)
