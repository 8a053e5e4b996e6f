"""The prefetching thread: order, bounds, errors, and how it ends."""

import contextvars
import gc
import itertools
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
import pytest

from jaxtribute._src.core.execution import rendezvous
from jaxtribute._src.core.input import prefetch
from jaxtribute._src.core.input.prefetch import Prefetcher
from jaxtribute.errors import InputError


def producer(items: Iterator[Any]) -> Callable[[], Any]:
    return lambda: next(items)


def nothing() -> None:
    """For a release that does not matter."""


def drain(prefetcher: Prefetcher[Any]) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(prefetcher.get())
        except StopIteration:
            return found


@pytest.mark.parametrize("buffer", [1, 2, 7])
def test_everything_arrives_in_order(buffer: int) -> None:
    prefetcher = Prefetcher(producer(iter(range(20))), nothing, buffer)
    assert drain(prefetcher) == list(range(20))


def test_the_end_stays_the_end() -> None:
    prefetcher = Prefetcher(producer(iter([1])), nothing, 1)
    assert drain(prefetcher) == [1]
    assert drain(prefetcher) == []


@pytest.mark.parametrize("buffer", [1, 3])
def test_no_more_than_the_buffer_is_made_ahead(buffer: int) -> None:
    made = threading.Semaphore(0)
    count = itertools.count()

    def produce() -> int:
        made.release()
        return next(count)

    prefetcher = Prefetcher(produce, nothing, buffer)
    for _ in range(buffer):
        assert made.acquire(timeout=10)
    assert not made.acquire(timeout=0.05)
    assert prefetcher.get() == 0
    assert made.acquire(timeout=10)
    prefetcher.close()


def test_an_error_comes_with_its_own_traceback_where_it_happened() -> None:
    def failing_read() -> Iterator[int]:
        yield 1
        raise KeyError("bad record")

    prefetcher = Prefetcher(producer(failing_read()), nothing, 4)
    assert prefetcher.get() == 1
    with pytest.raises(KeyError, match="bad record") as caught:
        prefetcher.get()
    assert "failing_read" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    with pytest.raises(StopIteration):
        prefetcher.get()


def test_what_was_read_before_an_error_arrives_first() -> None:
    def read() -> Iterator[int]:
        yield from (1, 2, 3)
        raise OSError("gone")

    prefetcher = Prefetcher(producer(read()), nothing, 8)
    assert [prefetcher.get() for _ in range(3)] == [1, 2, 3]
    with pytest.raises(OSError, match="gone"):
        prefetcher.get()


def test_closing_stops_an_infinite_source_and_releases_it() -> None:
    released = threading.Event()
    prefetcher = Prefetcher(producer(itertools.count()), released.set, 2)
    assert prefetcher.get() == 0
    prefetcher.close()
    assert released.is_set()
    prefetcher.close()


def test_dropping_it_ends_its_thread() -> None:
    released = threading.Event()
    prefetcher = Prefetcher(producer(itertools.count()), released.set, 2)
    prefetcher.get()
    gone = weakref.ref(prefetcher)
    del prefetcher
    gc.collect()
    assert gone() is None
    assert released.wait(10)


def test_a_pipeline_that_hangs_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_JOIN_SECONDS", 0.05)
    free = threading.Event()
    prefetcher: Prefetcher[bool] = Prefetcher(lambda: free.wait(30), nothing, 1)
    with pytest.raises(InputError, match=r"has not returned.*HINT"):
        prefetcher.close()
    free.set()


def test_settings_of_the_thread_that_starts_it_hold_in_it() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    with jax.enable_x64(True):
        prefetcher = Prefetcher(lambda: (variable.get(), jax.device_put(np.int64(1)).dtype), nothing, 1)
    value, dtype = prefetcher.get()
    prefetcher.close()
    assert value == "set"
    assert dtype == np.dtype("int64")


class SlowLock:
    """A lock that a prefetching thread takes late."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if threading.current_thread().name == "jaxtribute-prefetch":
            time.sleep(0.02)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def one_pass(how: str) -> threading.Thread:
    """The thread of a pass that is closed at its end, at an error, or half way."""
    seen: list[threading.Thread] = []

    def produce() -> int:
        seen.append(threading.current_thread())
        if how == "fails":
            raise OSError("gone")
        if how == "ends":
            raise StopIteration
        return 1

    prefetcher = Prefetcher(produce, nothing, 1)
    with pytest.raises(OSError, match="gone") if how == "fails" else nullcontext():
        next(iter(prefetcher.get, None), None)
    prefetcher.close()
    return seen[0]


@pytest.mark.parametrize("how", ["ends", "fails", "is left"])
def test_a_pass_that_was_closed_lends_its_thread_to_the_next(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "IDLE_SECONDS", 60)
    pool = rendezvous.Workers("jaxtribute-prefetch")
    monkeypatch.setattr(pool, "_lock", SlowLock())
    monkeypatch.setattr(prefetch, "_threads", pool)
    first = one_pass(how)
    assert one_pass("ends") is first, "it is idle once a pass has been closed, however slow it is"
    monkeypatch.setattr(rendezvous, "IDLE_SECONDS", 0.01)
    assert one_pass(how) is first
    first.join(10)
    assert not first.is_alive(), "an idle thread ends"
    assert one_pass("ends") is not first


def test_a_pass_that_is_dropped_half_way_does_not_keep_its_thread() -> None:
    seen: list[threading.Thread] = []
    Prefetcher(lambda: seen.append(threading.current_thread()), nothing, 1).get()
    gc.collect()
    seen[0].join(10)
    assert not seen[0].is_alive()
