"""Clusters of parameter servers in threads of this process: the same code as in processes, without their cost."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from jaxtribute._src.addons.messaging.transport import Endpoint, TaskSettings
from jaxtribute._src.addons.parameter_servers.engines.engine import Back, Failed, Lost, TaskMaker, stack_of
from jaxtribute._src.addons.parameter_servers.scheduling.cluster import Cluster
from jaxtribute._src.addons.parameter_servers.scheduling.starting import make_task
from jaxtribute.extending import Folder, Kinds

_LOG = logging.getLogger(__name__)


class ThreadEngine:
    """An `Engine` whose tasks are threads of this process.

    Args:
      make: makes a task.
      settings: the settings of all tasks.
    """

    host: str | None = None

    def __init__(self, make: TaskMaker, settings: TaskSettings) -> None:
        self._make, self._settings = make, settings
        self._tasks: dict[tuple[str, int], tuple[Any, threading.Thread, tuple[Any, ...]]] = {}
        self._lost: Lost = lambda *_: None
        self._back: Back = lambda *_: None
        self._stopping = False

    def launch(self, role: str, index: int, *arguments: object) -> None:
        """Starts a task in a thread."""
        task = self._make(role, index, self._settings, None, *arguments)
        name = f"jaxtribute-{role}-{index}"
        thread = threading.Thread(target=self._run, args=(role, index, task), name=name, daemon=True)
        self._tasks[role, index] = task, thread, arguments
        thread.start()

    def _run(self, role: str, index: int, task: Any) -> None:
        try:
            with Kinds.TASK.during(task, f"{role} {index}"):
                task.run()
        except BaseException:  # noqa: BLE001 (another takes its place)
            _LOG.exception("the thread of %s %d ends", role, index)
            # One that `crash` or `renew` has replaced already ends later than its successor has begun.
            if not self._stopping and self._tasks[role, index][0] is task:
                self._replace(role, index)

    def endpoint(self, role: str, index: int, timeout_s: float) -> Endpoint:
        """Address of a task."""
        return self._tasks[role, index][0].endpoint

    def define(self, role: str, index: int, key: int, blob: bytes) -> None:
        """Brings code to a task."""
        self._tasks[role, index][0].define(key, blob)

    def take(self, index: int, closure: int) -> bytes | None:
        """Returns a worker's pickled result."""
        return self._tasks["worker", index][0].take(closure)

    def stack(self, index: int) -> str:
        """Returns where a worker's thread is."""
        return stack_of(self._tasks["worker", index][1])

    def renew(self, index: int) -> None:
        """Starts another worker in the place of one, whose thread ends when what it runs has ended."""
        # A thread cannot be ended from outside: the old one runs on, and nobody listens to it.
        self._tasks["worker", index][0].stop()
        self._replace("worker", index)

    def pid(self, role: str, index: int) -> int:
        """This process."""
        return os.getpid()

    def watch(self, lost: Lost, back: Back, failed: Failed) -> None:
        """Remembers whom `crash` tells."""
        self._lost, self._back = lost, back

    def task(self, role: str, index: int) -> Any:
        """A task itself, for looking at it."""
        return self._tasks[role, index][0]

    def crash(self, role: str, index: int) -> None:
        """Ends a task, and starts another in its place that knows nothing."""
        task, thread, _ = self._tasks[role, index]
        task.stop()
        thread.join()
        self._replace(role, index)

    def _replace(self, role: str, index: int) -> None:
        arguments = self._tasks[role, index][2]
        self._lost(role, index)
        self.launch(role, index, *arguments)
        self._back(role, index, None if role == "worker" else self.endpoint(role, index, 0))

    def stop(self) -> None:
        """Ends all tasks."""
        self._stopping = True
        # All are told before the first is waited for: they end side by side.
        for task, _, _ in self._tasks.values():
            task.stop()
        for _, thread, _ in self._tasks.values():
            thread.join()
        self._tasks.clear()


def start_in_threads(servers: int, workers: int, **options: Any) -> Cluster:
    """A cluster whose servers and workers are threads of this process."""
    folder = Folder()
    task_settings = TaskSettings(folder.path)
    return Cluster(
        ThreadEngine(make_task, task_settings), folder, task_settings, servers=servers, workers=workers, **options
    )
