"""`tf.data`: datasets on Grain."""

from typing import Any

from jaxtribute._src.compat.absent import explain_absent
from jaxtribute._src.compat.tf.data.dataset import Dataset as Dataset
from jaxtribute._src.compat.tf.data.options import Options as Options
from jaxtribute._src.compat.tf.data.records import TextLineDataset as TextLineDataset
from jaxtribute._src.compat.tf.data.records import TFRecordDataset as TFRecordDataset
from jaxtribute.compat.tf.data import experimental as experimental

AUTOTUNE = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.data", name)
