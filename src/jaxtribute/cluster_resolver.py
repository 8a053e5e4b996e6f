"""The names of `tf.distribute.cluster_resolver`, `detect`, and what a resolver of one's own needs."""

from jaxtribute.cluster.resolvers import detect, known
from jaxtribute.cluster.resolvers.base import ClusterResolver, Detection, register
from jaxtribute.cluster.resolvers.gce import GCEClusterResolver
from jaxtribute.cluster.resolvers.kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
from jaxtribute.cluster.resolvers.simple import SimpleClusterResolver
from jaxtribute.cluster.resolvers.slurm import SlurmClusterResolver
from jaxtribute.cluster.resolvers.tf_config import TFConfigClusterResolver
from jaxtribute.cluster.resolvers.tpu import TPUClusterResolver
from jaxtribute.cluster.resolvers.union import UnionResolver

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
