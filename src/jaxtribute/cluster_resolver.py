"""The names of `tf.distribute.cluster_resolver`, `detect`, and what a resolver of one's own needs."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.core.cluster.resolvers import detect, known, register
from jaxtribute._src.core.cluster.resolvers.base import ClusterResolver, Detection
from jaxtribute._src.core.cluster.resolvers.simple import SimpleClusterResolver
from jaxtribute._src.core.cluster.resolvers.tf_config import TFConfigClusterResolver
from jaxtribute._src.public import lazy_names as _lazy_names
from jaxtribute._src.public import publish as _publish

if _TYPE_CHECKING:
    from jaxtribute._src.addons.resolvers.gce import GCEClusterResolver
    from jaxtribute._src.addons.resolvers.kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
    from jaxtribute._src.addons.resolvers.slurm import SlurmClusterResolver
    from jaxtribute._src.addons.resolvers.tpu import TPUClusterResolver
    from jaxtribute._src.addons.resolvers.union import UnionResolver

__all__ = [
    "ClusterResolver",
    "Detection",
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionResolver",
    "detect",
    "known",
    "register",
]

_lazy_names(__name__)

_publish(__name__)
