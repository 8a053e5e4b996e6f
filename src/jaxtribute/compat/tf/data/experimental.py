"""`tf.data.experimental`."""

from jaxtribute.compat.tf.data.options import DistributeOptions as DistributeOptions
from jaxtribute.input.options import AutoShardPolicy as AutoShardPolicy

AUTOTUNE = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2
