"""`jd.summary`: scalars and more for TensorBoard, written by the first worker alone."""

from jaxtribute._src.public import publish as _publish
from jaxtribute._src.summary import Writer

__all__ = [
    "Writer",
]

_publish(__name__)
