"""`tf.train`: clusters. Optimizers and checkpoints have other names here."""

from typing import Any

from jaxtribute.cluster.server import ServerDef as ServerDef
from jaxtribute.cluster.spec import ClusterDef as ClusterDef
from jaxtribute.cluster.spec import ClusterSpec as ClusterSpec
from jaxtribute.cluster.spec import JobDef as JobDef
from jaxtribute.compat.absent import explain_absent


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.train", name)
