"""`tf.data.experimental`."""

from jaxtribute._src.addons.compat.tf.dataset import DistributeOptions as DistributeOptions
from jaxtribute._src.addons.compat.tf.iterators import get_next_as_optional as get_next_as_optional
from jaxtribute._src.core.execution.feeds import Optional as Optional
from jaxtribute._src.core.input.options import AutoShardPolicy as AutoShardPolicy

AUTOTUNE = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2
