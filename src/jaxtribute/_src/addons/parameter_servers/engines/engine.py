"""Engines of a cluster's processes: they start them, notice their end and start them again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from jaxtribute._src.addons.messaging.transport import Endpoint
from jaxtribute.extending import Callers

Lost = Callable[[str, int], None]
Back = Callable[[str, int, Endpoint | None], None]
Failed = Callable[[str], None]
TaskMaker = Callable[..., Any]
"""Makes the task of a process: called with its role, its number, the `TaskSettings`, the address under which other
machines reach it or None, and the arguments of `launch`. Engines know processes, not what runs in them."""


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
