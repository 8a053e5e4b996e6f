"""`tf.data.experimental`."""

from jaxtribute._src.addons.compat.tf.dataset import Dataset
from jaxtribute._src.addons.compat.tf.dataset import DistributeOptions as DistributeOptions
from jaxtribute._src.addons.compat.tf.iterators import get_next_as_optional as get_next_as_optional
from jaxtribute._src.core.execution.feeds import Optional as Optional
from jaxtribute._src.core.input.options import AutoShardPolicy as AutoShardPolicy

AUTOTUNE = -1


def cardinality(dataset: Dataset) -> int:
    """Returns the number of elements of a dataset, or one of the two below.

    Source: `tf.data.experimental.cardinality`.
    """
    return dataset.cardinality()


INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2
