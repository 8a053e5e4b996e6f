"""Workers simulated in one process: each runs the host side of the input in a thread of its own."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax

from jaxtribute._src.core.input.agreement import Agreements, StepRows
from jaxtribute._src.core.input.dataset import DistributedDataset
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.input.worker_steps import WorkerStep, WorkerSteps

T = TypeVar("T")
DEADLINE_S = 60.0


class Store:
    """A key-value store in memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.largest = 0
        self._changed = threading.Condition()

    def set(self, key: str, value: str, /) -> None:
        with self._changed:
            assert key not in self.values, f"{key} is set twice"
            self.values[key] = value
            self.largest = max(self.largest, len(self.values))
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float, /, *, of: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_s):
                raise TimeoutError(f"{key} of {of}")
            return self.values[key]

    def delete(self, key: str, /) -> None:
        with self._changed:
            del self.values[key]

    def by_rank(self, place: str, /) -> dict[int, str]:
        with self._changed:
            parts = [(*key.rpartition("/")[::2], value) for key, value in self.values.items()]
        return {int(rank): value for before, rank, value in parts if before == place}


class Meeting:
    """An agreement between threads, one a worker. A worker that does not come fails the others."""

    def __init__(self, workers: int) -> None:
        self._barrier = threading.Barrier(workers)
        self._slots: list[Any] = [None] * workers
        self.calls = 0

    def of(self, worker: int) -> Agreements:
        def agree(step: int, rows: StepRows, /) -> Sequence[StepRows]:
            self._slots[worker] = (step, rows)
            self._barrier.wait(DEADLINE_S)
            found = list(self._slots)
            self.calls += worker == 0
            self._barrier.wait(DEADLINE_S)
            assert {step for step, _ in found} == {step}, "the workers are at different steps"
            return [rows for _, rows in found]

        return lambda: agree

    def leave(self) -> None:
        self._barrier.abort()


def on_workers(workers: int, work: Callable[[int, Meeting], T]) -> list[T]:
    """Runs `work(worker, meeting)` for every worker at once and returns their results."""
    meeting = Meeting(workers)

    def run(worker: int) -> T:
        try:
            return work(worker, meeting)
        except BaseException:
            meeting.leave()
            raise

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run, worker) for worker in range(workers)]
        errors = [error for future in futures if (error := future.exception(DEADLINE_S))]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [future.result(DEADLINE_S) for future in futures]


def steps_of(dataset: DistributedDataset) -> WorkerSteps:
    return dataset._steps(0)  # pyright: ignore[reportPrivateUsage]


def rows_of(step: WorkerStep) -> list[Any]:
    """The rows of each local replica, as lists; for a tree, those of its first array."""
    return [jax.tree.leaves(part)[0].tolist() for part in step.cut()]


def drain(steps: WorkerSteps, limit: int = 10_000) -> list[WorkerStep]:
    """All steps of a pass."""
    found: list[WorkerStep] = []
    try:
        while True:
            found.append(next(steps))
            assert len(found) <= limit
    except StopIteration:
        return found
    finally:
        steps.close()


def shards(workers: int, replicas: int) -> list[Shard]:
    return [Shard(workers, worker, replicas) for worker in range(workers)]
