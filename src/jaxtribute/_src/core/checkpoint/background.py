"""One save at a time in a thread of its own, whose error comes out at the next call."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from os.path import realpath
from pathlib import Path

from jaxtribute._src.core.execution.interrupts import undisturbed

_LOG = logging.getLogger(__name__)

_running: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Runs saves one after the other.

    Attributes:
      alone: held by the thread that saves or restores, for what must not happen in two threads at a time.
    """

    def __init__(self) -> None:
        # A thread may take it again, as a handler of signals that saves does in the middle of a save.
        self.alone = threading.RLock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._path: Path | None = None
        _running.add(self)

    @property
    def busy(self) -> bool:
        """True if a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, save: Callable[[], None], path: Path | None = None) -> None:
        """Starts a save, to a path that `settle` may be asked for, once the one before has ended.

        Raises:
          BaseException: what the one before has raised.
        """
        self.wait()
        self._path = path
        # A signal between the two lines there would leave a save that nobody waits for.
        undisturbed(self._begin, threading.Thread(target=self._run, args=(save,), name="jaxtribute-save"))

    def _begin(self, thread: threading.Thread) -> None:
        thread.start()
        self._thread = thread  # started: others may wait for it at once

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits for the save that is under way.

        Raises:
          BaseException: what it has raised, once.
        """
        thread = self._thread  # another thread that waits may forget it meanwhile
        if thread is not None:
            thread.join(timeout_s)
            if not thread.is_alive() and self._thread is thread:
                self._thread = None
        # Once: the next save starts without the error of the last.
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, save: Callable[[], None]) -> None:
        try:
            save()
        except BaseException as error:  # noqa: BLE001  # it belongs to the thread that trains
            _LOG.error("%s", error)
            self._error = error

    def settle(self, path: Path | None = None) -> None:
        """Waits for the save to a path, or into a folder, or to any; an error has been logged."""
        thread, target = self._thread, self._path
        if thread is None or thread is threading.current_thread():
            return
        places = [] if target is None else map(realpath, (target, target.parent))
        if path is None or realpath(path) in places:
            thread.join()


def settle_all(path: Path | None = None) -> None:
    """Waits for all saves to a path or into a folder, whoever began them; for all at the end of the program."""
    for saves in list(_running):
        saves.settle(path)


def _forget_threads() -> None:
    """Frees, in a process that was just forked, what other threads hold, which are not there."""
    for saves in list(_running):
        saves.alone = threading.RLock()


os.register_at_fork(after_in_child=_forget_threads)
# Not `atexit`, which comes after the threads that Orbax writes with have been told to end: what is registered last
# is called first.
import_module("concurrent.futures.thread")
threading._register_atexit(settle_all)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
