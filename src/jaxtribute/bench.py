"""Measures the speed of this cluster for a user; `jaxtribute bench` is its command line."""

from jaxtribute._src.addons.bench.suite import PARTS, Report, run
from jaxtribute._src.public import publish as _publish

__all__ = [
    "PARTS",
    "Report",
    "run",
]

_publish(__name__)
