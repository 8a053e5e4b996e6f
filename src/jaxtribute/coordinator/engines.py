"""Where the processes of a cluster run: what starts them, notices their end and starts them again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from jaxtribute.coordinator.server_task import ServerTask, TaskSettings
from jaxtribute.coordinator.transport import Endpoint
from jaxtribute.coordinator.worker_task import WorkerTask

Lost = Callable[[str, int], None]
Back = Callable[[str, int, Endpoint | None], None]


class Engine(Protocol):
    """Starts servers (`ps`), their mirrors (`mirror`) and workers (`worker`)."""

    host: str | None
    """The address of this machine, if others take part."""

    def launch(self, role: str, index: int, *arguments: Any) -> None:
        """Starts a task; returns at once."""
        ...

    def endpoint(self, role: str, index: int, timeout_s: float) -> Endpoint:
        """Where a task can be reached, once it runs."""
        ...

    def define(self, role: str, index: int, key: int, blob: bytes) -> None:
        """Brings code to a task: to a worker some time, to a server before this returns."""
        ...

    def take(self, index: int, closure: int) -> Any:
        """A worker's result that is no plain structure."""
        ...

    def pid(self, role: str, index: int) -> int:
        """The process of a task."""
        ...

    def watch(self, lost: Lost, back: Back) -> None:
        """Calls `lost` when a task has ended, and `back` when it runs again, with nothing of what it had."""
        ...

    def stop(self) -> None:
        """Ends all tasks."""
        ...


def make_task(role: str, index: int, settings: TaskSettings, host: str | None, *arguments: Any) -> Any:
    """A task of that role."""
    if role == "worker":
        return WorkerTask(index, settings, *arguments)
    return ServerTask(index, settings, host)


class ThreadEngine:
    """Everything in threads of this process: for tests and for looking at a program with a debugger."""

    host: str | None = None

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self._tasks: dict[tuple[str, int], tuple[Any, threading.Thread, tuple[Any, ...]]] = {}
        self._lost: Lost = lambda *_: None
        self._back: Back = lambda *_: None

    def launch(self, role: str, index: int, *arguments: Any) -> None:
        """Starts a task in a thread."""
        task = make_task(role, index, self._settings, None, *arguments)
        thread = threading.Thread(target=task.run, name=f"jaxtribute-{role}-{index}", daemon=True)
        self._tasks[role, index] = task, thread, arguments
        thread.start()

    def endpoint(self, role: str, index: int, timeout_s: float) -> Endpoint:
        """Where a task can be reached."""
        del timeout_s
        return self._tasks[role, index][0].endpoint

    def define(self, role: str, index: int, key: int, blob: bytes) -> None:
        """Brings code to a task."""
        self._tasks[role, index][0].define(key, blob)

    def take(self, index: int, closure: int) -> Any:
        """A worker's result."""
        return self._tasks["worker", index][0].take(closure)

    def pid(self, role: str, index: int) -> int:
        """This process."""
        del role, index
        return os.getpid()

    def watch(self, lost: Lost, back: Back) -> None:
        """Remembers whom `crash` tells."""
        self._lost, self._back = lost, back

    def task(self, role: str, index: int) -> Any:
        """A task itself, for looking at it."""
        return self._tasks[role, index][0]

    def crash(self, role: str, index: int) -> None:
        """Ends a task, and starts another in its place that knows nothing."""
        task, thread, arguments = self._tasks[role, index]
        task.stop()
        thread.join()
        self._lost(role, index)
        self.launch(role, index, *arguments)
        self._back(role, index, None if role == "worker" else self.endpoint(role, index, 0))

    def stop(self) -> None:
        """Ends all tasks."""
        for task, _, _ in self._tasks.values():
            task.stop()
        for _, thread, _ in self._tasks.values():
            thread.join()
        self._tasks.clear()
