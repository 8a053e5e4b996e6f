"""Fixtures that fail a test which leaves something behind: a thread, a process, a port, an environment variable."""

import gc
import os
import pathlib
import threading
import time
from collections.abc import Callable, Collection, Generator

import psutil
import pytest

# How long what a test has closed may take to end.
DEADLINE_S = 5.0
PATIENCE_S = 0.1

# pytest sets it around each phase of a test.
_ENVIRONMENT_OF_PYTEST = {"PYTEST_CURRENT_TEST"}


def left_behind(listing: Callable[[], Collection[str]], before: Collection[str]) -> list[str]:
    """What `listing()` shows beyond `before` once garbage is collected and the deadline has passed."""
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
    return [f"{thread.name} (thread {thread.ident})" for thread in threading.enumerate()]


def list_children() -> list[str]:
    # Asking each thread for its children takes microseconds; psutil looks at every process of the machine.
    tasks = list(pathlib.Path("/proc/self/task").glob("*/children"))
    if tasks and not any(_read(task) for task in tasks):
        return []
    return [f"process {child.pid}" for child in psutil.Process().children(recursive=True) if is_alive(child)]


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def list_ports() -> list[str]:
    connections = psutil.Process().net_connections(kind="tcp")
    return [f"port {c.laddr.port}" for c in connections if c.status == psutil.CONN_LISTEN and c.laddr]


def list_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _ENVIRONMENT_OF_PYTEST}


@pytest.fixture(autouse=True)
def no_leaks() -> Generator[None]:
    """Fails the test if it leaves a thread, a child process or a listening port."""
    watched = [list_threads, list_children, list_ports]
    before = [listing() for listing in watched]
    yield
    extra = [name for listing, old in zip(watched, before, strict=True) for name in left_behind(listing, old)]
    if extra:
        pytest.fail(f"the test left behind: {', '.join(extra)}", pytrace=False)


@pytest.fixture(autouse=True)
def same_environment() -> Generator[None]:
    """Fails the test if it changes an environment variable, and restores it."""
    before = list_environment()
    yield
    after = list_environment()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    if changed:
        pytest.fail(f"the test changed environment variables: {', '.join(changed)}", pytrace=False)
