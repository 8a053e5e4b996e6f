"""`tf.data.experimental`."""

from jaxtribute._src.compat.tf.dataset import DistributeOptions as DistributeOptions
from jaxtribute._src.compat.tf.iterators import get_next_as_optional as get_next_as_optional
from jaxtribute._src.execution.feeds import Optional as Optional
from jaxtribute._src.input.options import AutoShardPolicy as AutoShardPolicy

AUTOTUNE = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2
