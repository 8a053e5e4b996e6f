"""`tf.data`: datasets on Grain."""

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.tf.dataset import Dataset as Dataset
from jaxtribute._src.addons.compat.tf.dataset import Options as Options
from jaxtribute._src.addons.compat.tf.element_specs import DatasetSpec as DatasetSpec
from jaxtribute._src.addons.compat.tf.iterators import Iterator as Iterator
from jaxtribute._src.addons.compat.tf.records import TextLineDataset as TextLineDataset
from jaxtribute._src.addons.compat.tf.records import TFRecordDataset as TFRecordDataset
from jaxtribute.compat.tf.data import experimental as experimental

AUTOTUNE = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.data", name)
