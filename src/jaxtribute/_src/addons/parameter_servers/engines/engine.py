"""Engines of a cluster's processes: they start them, notice their end and start them again."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from jaxtribute._src.addons.messaging.transport import Endpoint, TaskSettings
from jaxtribute.extending import Callers, Kinds
from jaxtribute.typing import Foreign

Lost = Callable[[str, int], None]
Back = Callable[[str, int, Endpoint | None], None]
Failed = Callable[[str], None]
TaskMaker = Callable[..., Any]
"""Makes the task of a process: called with its role, its number, the `TaskSettings`, the address under which other
machines reach it or None, and the arguments of `launch`. Engines know processes, not what runs in them."""

_LOG = logging.getLogger(__name__)


class Engine(Protocol):
    """Starts servers (`ps`), their mirrors (`mirror`) and workers (`worker`)."""

    host: str | None
    """The address of this machine, if others take part."""

    def launch(self, role: str, index: int, *arguments: object) -> None:
        """Starts a task; returns at once."""
        ...

    def endpoint(self, role: str, index: int, timeout_s: float) -> Endpoint:
        """Address of a task, once it runs."""
        ...

    def define(self, role: str, index: int, key: int, blob: bytes) -> None:
        """Brings code to a task: to a worker some time, to a server before this returns."""
        ...

    def take(self, index: int, closure: int) -> bytes | None:
        """Returns a worker's pickled result that is no plain structure; None if the worker is gone."""
        ...

    def stack(self, index: int) -> str:
        """Returns where a worker's thread is; nothing if its process does not say."""
        ...

    def renew(self, index: int) -> None:
        """Ends a worker in the middle of what it runs, and starts another in its place; returns at once."""
        ...

    def pid(self, role: str, index: int) -> int:
        """The process of a task."""
        ...

    def watch(self, lost: Lost, back: Back, failed: Failed) -> None:
        """Begins to watch the tasks.

        Args:
          lost: called when a task has ended.
          back: called when it runs again, with nothing of what it had.
          failed: called when they cannot be watched any more, with the reason.
        """
        ...

    def stop(self) -> None:
        """Ends all tasks."""
        ...


def stack_of(thread: threading.Thread) -> str:
    """Returns the stack of a thread as text."""
    return Callers.stack(Callers.frame_of(thread.ident or 0))


class ThreadEngine:
    """Everything in threads of this process: for tests and for looking at a program with a debugger.

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

    def _run(self, role: str, index: int, task: Foreign) -> None:
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
