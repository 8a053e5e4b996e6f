"""`tf.summary`: figures for TensorBoard, written by `jd.summary.Writer`."""

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.tf.summaries import SummaryWriter as SummaryWriter
from jaxtribute._src.addons.compat.tf.summaries import create_file_writer as create_file_writer
from jaxtribute._src.addons.compat.tf.summaries import histogram as histogram
from jaxtribute._src.addons.compat.tf.summaries import scalar as scalar
from jaxtribute._src.addons.compat.tf.summaries import text as text


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.summary", name)
