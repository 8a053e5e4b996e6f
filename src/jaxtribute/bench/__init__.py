"""How fast this cluster is, for a user to see; `jaxtribute bench` is its command line."""

from jaxtribute.bench.suite import PARTS as PARTS
from jaxtribute.bench.suite import Report as Report
from jaxtribute.bench.suite import run as run

__all__ = ["PARTS", "Report", "run"]
