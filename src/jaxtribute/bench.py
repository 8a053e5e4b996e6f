"""Measures the speed of this cluster for a user; `jaxtribute bench` is its command line."""

from jaxtribute._src.public import publish as _publish
from jaxtribute._src.tools.bench.suite import PARTS, Report, run

__all__ = [
    "PARTS",
    "Report",
    "run",
]

_publish(__name__)
