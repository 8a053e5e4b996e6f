"""Runners that a whole test session shares."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from jaxtribute._src.addons.testing.runner import MultiProcessRunner

KEPT = 2
"""Number of clusters that stay at a time: each process of one holds some 300 MB."""


class SharedRunners:
    """Runners by number of workers and devices; the fixture `multi_process`.

    Attributes:
        environment: Variables that the processes get; change it before the first runner starts.
    """

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self._runners: dict[tuple[int, int | None], MultiProcessRunner] = {}

    def __call__(self, workers: int = 2, devices: int | None = 1) -> MultiProcessRunner:
        """The runner of that shape. Its processes have joined their cluster, and keep the state of earlier calls.

        Args:
            workers: The number of processes.
            devices: Logical CPU devices a process.
        """
        shape = workers, devices
        runner = self._runners.pop(shape, None) or MultiProcessRunner(
            workers, devices, env=self.environment, setup=_join
        )
        self._runners[shape] = runner  # the last one used comes last
        if len(self._runners) > KEPT:
            self._runners.pop(next(iter(self._runners))).close()
        return runner

    @property
    def pids(self) -> frozenset[int]:
        """The ids of all processes that run now."""
        found: set[int] = set()
        for runner in self._runners.values():
            found.update(runner.pids)
        return frozenset(found)

    def close(self) -> None:
        """Ends all processes."""
        while self._runners:
            self._runners.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _join() -> None:
    """Before anything starts JAX in these processes: later it could not be done, whatever the next test needs."""
    from jaxtribute import MultiWorkerMirroredStrategy

    MultiWorkerMirroredStrategy()
