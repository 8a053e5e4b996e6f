"""Shows the parts of a training step's time; `jaxtribute trace` is its command line."""

from jaxtribute.profiling.breakdown import Breakdown as Breakdown
from jaxtribute.profiling.breakdown import Shares as Shares
from jaxtribute.profiling.record import record as record

__all__ = ["Breakdown", "Shares", "record"]
