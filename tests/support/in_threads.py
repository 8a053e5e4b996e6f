"""Runs a program whose parameter servers and workers are threads of its process, not processes that Ray starts.

python tests/support/in_threads.py PROGRAM ARGUMENT...
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import thread_engine
from jaxtribute._src.addons.parameter_servers.scheduling import starting
from jaxtribute._src.addons.parameter_servers.scheduling.cluster import Cluster


def start_cluster(resolver: Any, address: str | None, **options: Any) -> Cluster:
    """What stands in for `starting.start_cluster`: as many tasks as the resolver describes, as threads."""
    servers, workers = starting.tasks_of(resolver)
    return thread_engine.start_in_threads(servers, workers, **options)


if __name__ == "__main__":
    starting.start_cluster = start_cluster
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
