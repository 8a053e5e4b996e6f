"""The names of `tf.distribute.cluster_resolver`, `detect`, and what a resolver of one's own needs."""

from jaxtribute._src.cluster.resolvers import detect, known, register
from jaxtribute._src.cluster.resolvers.base import ClusterResolver, Detection
from jaxtribute._src.cluster.resolvers.simple import SimpleClusterResolver
from jaxtribute._src.cluster.resolvers.tf_config import TFConfigClusterResolver
from jaxtribute._src.cluster.resolvers.union import UnionResolver
from jaxtribute._src.public import publish as _publish
from jaxtribute._src.resolvers.gce import GCEClusterResolver
from jaxtribute._src.resolvers.kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
from jaxtribute._src.resolvers.slurm import SlurmClusterResolver
from jaxtribute._src.resolvers.tpu import TPUClusterResolver

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

_publish(__name__)
