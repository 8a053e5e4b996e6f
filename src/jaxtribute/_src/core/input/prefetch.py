"""One thread that makes elements ahead of their use, into a bounded buffer."""

from __future__ import annotations

import contextvars
import operator
import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import jax

from jaxtribute._src.core.execution.interrupts import undisturbed
from jaxtribute.errors import InputError

T = TypeVar("T")

_JOIN_SECONDS = 10.0
_IDLE_SECONDS = 1.0

_Job = Callable[[], "Callable[[], None] | None"]
"""Work for a thread. It returns what to call once the thread is idle, or None if the thread is to end."""


class Threads:
    """Lends threads to the passes over one dataset.

    The thread of a pass that came to its end waits a second for the next pass. A new thread for each epoch would
    allocate its batches in a malloc arena of its own, and memory would grow with the epochs.
    """

    def __init__(self) -> None:
        self._shared = shared = _Shared()
        weakref.finalize(self, shared.jobs.put, None)

    def run(self, job: _Job) -> None:
        """Runs a job in a thread."""
        # A job without a thread would be the next one's first, and the next job would wait for it.
        undisturbed(self._run, job)

    def _run(self, job: _Job) -> None:
        shared = self._shared
        with shared.lock:
            # Through the queue, since a Thread keeps its arguments alive for as long as it runs.
            shared.jobs.put(job)
            if shared.idle:
                # Counted down here, not by the thread: the next job must not count on the same one.
                shared.idle -= 1
                return
        threading.Thread(target=_serve, args=(shared,), name="jaxtribute-prefetch", daemon=True).start()


class _Shared:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.idle = 0


def _serve(shared: _Shared) -> None:
    while True:
        try:
            job = shared.jobs.get(timeout=_IDLE_SECONDS)
        except queue.Empty:
            # Looked at once more under the lock: a job may have come since, for which this thread was counted on.
            with shared.lock:
                if shared.jobs.empty():
                    shared.idle -= 1
                    return
            continue
        if job is None:
            # Tell the next idle thread as well.
            shared.jobs.put(None)
            return
        ended = job()
        # What the job holds must not live on while the thread waits.
        del job
        if ended is None:
            return
        with shared.lock:
            shared.idle += 1
        ended()
        del ended


class Prefetcher(Generic[T]):
    """Calls `produce` in a thread, up to `buffer` results ahead, and hands the results out in order.

    The work ends at the end of the data, at an exception, on `close()`, and when the prefetcher is garbage.

    Args:
      produce: makes the next element; `StopIteration` ends the data. Called in the thread only.
      release: called once in the thread when nothing more will be produced.
      buffer: elements that may wait; at least 1.
      threads: lends the thread.
    """

    def __init__(
        self, produce: Callable[[], T], release: Callable[[], None], buffer: int, threads: Threads | None = None
    ) -> None:
        self._channel = channel = _Channel(buffer)
        # The thread works in the scope of the one who iterates. JAX keeps its settings by thread instead.
        context = contextvars.copy_context()
        x64 = bool(jax.config.read("jax_enable_x64"))
        self._end: BaseException | None = None
        self._taken: list[Any] = []
        """The element that the last call took and an interrupt kept it from handing out."""
        self._free = partial(channel.places.put, True)
        self._finalizer = weakref.finalize(self, _stop, channel)
        (threads or Threads()).run(lambda: context.run(_work, channel, produce, release, x64))

    def get(self) -> T:
        """Returns the next element, waiting for it if need be.

        Raises:
          StopIteration: at the end of the data.
          BaseException: what `produce` raised, with the traceback from there.
        """
        if self._end is not None:
            raise StopIteration from None
        if not self._taken:
            # One call of C: a signal's handler that raised between the two would lose a place, the producer's last one
            # some time, and the element.
            self._taken.extend(map(operator.call, (self._channel.elements.get, self._free)))
        element, error = self._taken[0]
        self._taken.clear()
        if error is None:
            return element
        self._end = error
        if isinstance(error, StopIteration):
            raise StopIteration
        try:
            raise error
        finally:
            # The traceback has this frame, and the frame would have the error: garbage that holds the whole pipeline.
            del error

    def close(self) -> None:
        """Stops the work and waits for its end.

        Raises:
          InputError: if the pipeline does not return within 10 seconds.
        """
        self._finalizer()
        if self._channel.working.locked():
            raise InputError(
                f"the input pipeline has not returned for {_JOIN_SECONDS} s, and its thread is left behind. "
                "HINT: look for a read that waits without a timeout."
            )


class _Channel:
    """State shared by the two sides. It holds no reference to the prefetcher, so that that can be collected."""

    def __init__(self, buffer: int) -> None:
        self.elements: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.places: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.stopped = False
        self.thread = 0
        # Held until the work ends; a lock is safe to wait for where garbage is collected, an Event is not.
        self.working = threading.Lock()
        self.working.acquire()
        for _ in range(buffer):
            self.places.put(True)


def _work(
    channel: _Channel, produce: Callable[[], Any], release: Callable[[], None], x64: bool
) -> Callable[[], None] | None:
    """Fills the channel. Where the data came to its end, whoever waits for that shall find the thread idle."""
    channel.thread = threading.get_ident()
    try:
        with jax.enable_x64(x64):
            # A place is taken before an element is made: no more than `buffer` are ever there, on devices with little
            # memory too.
            while channel.places.get() and not channel.stopped:
                channel.elements.put((produce(), None))
        at_end = False
    except BaseException as error:  # noqa: BLE001  # it belongs to the thread that asks for the element
        channel.elements.put((None, error))
        at_end = isinstance(error, StopIteration)
    finally:
        release()
    if at_end:
        return channel.working.release
    channel.working.release()
    return None


def _stop(channel: _Channel) -> None:
    channel.stopped = True
    channel.places.put(False)  # wakes a producer that waits for a place
    # Garbage may be collected in any thread, the prefetching one included.
    if channel.thread != threading.get_ident() and channel.working.acquire(timeout=_JOIN_SECONDS):
        channel.working.release()
