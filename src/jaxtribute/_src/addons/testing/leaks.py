"""Finds leftovers of a piece of code: threads, processes, listening ports, environment variables."""

from __future__ import annotations

import gc
import os
import pathlib
import threading
import time
from collections.abc import Callable, Collection, Iterator

import psutil

DEADLINE_S = 5.0
"""Seconds that something closed may take to end."""
PATIENCE_S = 0.1

# pytest sets it around each phase of a test.
_ENVIRONMENT_OF_PYTEST = {"PYTEST_CURRENT_TEST"}


def left_behind(listing: Callable[[], Collection[str]], before: Collection[str]) -> list[str]:
    """New entries of a listing, once garbage is collected and 5 seconds have passed.

    Args:
        listing: Names what there is now, such as `list_threads`.
        before: What it named then.
    """
    start = time.monotonic()
    pause = 0.001
    while extra := sorted(set(listing()) - set(before)):
        waited = time.monotonic() - start
        if waited > PATIENCE_S:  # most things end by themselves, and a collection of a large heap takes long
            gc.collect()
        if waited > DEADLINE_S:
            break
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return extra


def list_threads() -> list[str]:
    """The Python threads of this process."""
    return [f"{thread.name} (thread {thread.ident})" for thread in threading.enumerate()]


def list_children(ignored: Collection[int] = ()) -> list[str]:
    """The processes that this one has started, and those that they have started.

    Args:
        ignored: Process ids to leave out, with all their children.
    """
    if not _has_children():
        return []
    # Asking each thread for its children takes microseconds; psutil looks at every process of the machine.
    if pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/children").exists():
        found = list(_descendants(os.getpid(), ignored))
    else:
        found = [child.pid for child in psutil.Process().children(recursive=True) if child.pid not in ignored]
    return [f"process {pid}" for pid in found if is_alive(pid)]


def _has_children() -> bool:
    """False if this process has none, which the kernel tells at once."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descendants(pid: int, ignored: Collection[int]) -> Iterator[int]:
    for task in _tasks(pid):
        for child in map(int, _read(f"/proc/{pid}/task/{task}/children").split()):
            if child not in ignored:
                yield child
                yield from _descendants(child, ignored)


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 (pathlib takes ten times as long)
    except OSError:  # the process has ended
        return []


def _read(path: str) -> str:
    try:
        with open(path) as file:  # noqa: PTH123
            return file.read()
    except OSError:  # the thread has ended
        return ""


def is_alive(pid: int) -> bool:
    """True if a process runs: it exists, and is not merely waiting to be reaped.

    Args:
        pid: Its id.
    """
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def list_ports() -> list[str]:
    """The TCP ports on which this process listens."""
    connections = psutil.Process().net_connections(kind="tcp")
    return [f"port {c.laddr.port}" for c in connections if c.status == psutil.CONN_LISTEN and c.laddr]


def list_environment() -> dict[str, str]:
    """The environment variables, without pytest's own."""
    return {name: value for name, value in os.environ.items() if name not in _ENVIRONMENT_OF_PYTEST}
