"""Measures the speed of this cluster for a user; `jaxtribute bench` is its command line."""

from jaxtribute.bench.suite import PARTS as PARTS
from jaxtribute.bench.suite import Report as Report
from jaxtribute.bench.suite import run as run

__all__ = ["PARTS", "Report", "run"]
