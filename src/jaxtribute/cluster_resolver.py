"""The names of `tf.distribute.cluster_resolver`, `detect`, and what a resolver of one's own needs."""

from jaxtribute.cluster.resolvers import detect as detect
from jaxtribute.cluster.resolvers import known as known
from jaxtribute.cluster.resolvers.base import ClusterResolver as ClusterResolver
from jaxtribute.cluster.resolvers.base import Detection as Detection
from jaxtribute.cluster.resolvers.base import register as register
from jaxtribute.cluster.resolvers.gce import GCEClusterResolver as GCEClusterResolver
from jaxtribute.cluster.resolvers.kubernetes import KubernetesClusterResolver as KubernetesClusterResolver
from jaxtribute.cluster.resolvers.kubernetes import KubernetesExecutableLocation as KubernetesExecutableLocation
from jaxtribute.cluster.resolvers.simple import SimpleClusterResolver as SimpleClusterResolver
from jaxtribute.cluster.resolvers.slurm import SlurmClusterResolver as SlurmClusterResolver
from jaxtribute.cluster.resolvers.tf_config import TFConfigClusterResolver as TFConfigClusterResolver
from jaxtribute.cluster.resolvers.tpu import TPUClusterResolver as TPUClusterResolver
from jaxtribute.cluster.resolvers.union import UnionResolver as UnionResolver
