"""Shows the parts of a training step's time; `jaxtribute trace` is its command line."""

from jaxtribute._src.public import publish as _publish
from jaxtribute._src.tools.profiling.breakdown import Breakdown, Shares
from jaxtribute._src.tools.profiling.record import record

__all__ = [
    "Breakdown",
    "Shares",
    "record",
]

_publish(__name__)
