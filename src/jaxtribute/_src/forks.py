"""Children that are forked once JAX has started: an error where they would hang.

A fork copies one thread, and none of those on which JAX computes, so that a child's first program waits for ever. JAX
warns in the parent. Children that compute nothing, as those that read data may, are left in peace; a program that forks
before it has used JAX works, and so do processes that start again (`spawn`, `forkserver`, `subprocess`).
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

from jaxtribute._src.core import backend
from jaxtribute._src.core import context as contexts
from jaxtribute.errors import ContextError


class _Entries(contexts.Entries):
    """The stack of a thread that a fork has copied: it can be left, and not looked at."""

    def __getitem__(self, place: Any) -> NoReturn:
        _refuse()


class _Guard:
    """Functions called around every fork of this process.

    Attributes:
      started: True if a child that is forked now finds JAX started, by this process or by one before it.
    """

    def __init__(self) -> None:
        self.started = False

    def look(self) -> None:
        """Looks whether JAX has started; before the fork, since the child may wait for ever for JAX's lock."""
        # JAX does not stop once it has started: after that its lock is not asked for any more.
        self.started = self.started or backend.backend_started()

    def close(self) -> None:
        """In the child, lets everything raise that asks for the context, as all of the library does first."""
        if self.started:
            contexts.fallback.make, contexts.fallback.context = _refuse, None
            contexts.replace_entries(_Entries(contexts.entries()))
            contexts.set_base(None)


def guard() -> None:
    """Watches over the forks of this process; `import jaxtribute` calls it once."""
    if hasattr(os, "register_at_fork"):
        watch = _Guard()
        os.register_at_fork(before=watch.look, after_in_child=watch.close)


def _refuse() -> NoReturn:
    raise ContextError(
        f"process {os.getpid()} was forked by process {os.getppid()} after JAX had started there: JAX's threads "
        "are not in it, and it would wait for them for ever. HINT: start it anew, e.g. with "
        'multiprocessing.get_context("spawn"), or fork before the first use of JAX.'
    )
