"""Shows the parts of a training step's time; `jaxtribute trace` is its command line."""

from jaxtribute._src.addons.profiling.breakdown import Breakdown, Shares
from jaxtribute._src.addons.profiling.record import record
from jaxtribute._src.public import publish as _publish

__all__ = [
    "Breakdown",
    "Shares",
    "record",
]

_publish(__name__)
