"""A cluster in threads of the test process: the same code as in processes, without their cost."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxtribute._src.addons.parameter_servers.strategy import ParameterServerStrategy
from jaxtribute.coordinator import ClusterCoordinator
from thread_engine import ThreadEngine, start_in_threads


def int32(values: Any) -> np.ndarray[Any, Any]:
    """An array of int32."""
    return np.asarray(values, np.int32)


def float32(values: Any) -> np.ndarray[Any, Any]:
    """An array of float32."""
    return np.asarray(values, np.float32)


SHARED: dict[str, Any] = {}
"""What scheduled functions and tests share, as they are in one process."""


@contextmanager
def threads(servers: int = 1, workers: int = 1, **options: Any) -> Generator[ParameterServerStrategy]:
    """The strategy of a cluster of threads."""
    options.setdefault("timeout_s", 20.0)
    with ParameterServerStrategy.of_cluster(start_in_threads(servers, workers, **options)) as strategy:
        yield strategy


@contextmanager
def coordinated(servers: int = 1, workers: int = 1, **options: Any) -> Generator[ClusterCoordinator]:
    """A coordinator of a cluster of threads."""
    with threads(servers, workers, **options) as strategy:
        yield ClusterCoordinator(strategy)


def engine_of(coordinator: ClusterCoordinator) -> ThreadEngine:
    """What can make tasks fail."""
    strategy = coordinator.strategy
    assert isinstance(strategy, ParameterServerStrategy)
    assert strategy.cluster is not None
    engine = strategy.cluster.engine
    assert isinstance(engine, ThreadEngine)
    return engine
