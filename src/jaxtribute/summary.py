"""`jd.summary`: figures of a training for TensorBoard and other trackers, written by the first worker alone."""

from jaxtribute._src.addons.tracking.protocol import Tracker
from jaxtribute._src.addons.tracking.summary import Writer
from jaxtribute._src.public import publish as _publish

__all__ = [
    "Tracker",
    "Writer",
]

_publish(__name__)
