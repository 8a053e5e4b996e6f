"""One thread that makes elements ahead of their use, into a bounded buffer."""

from __future__ import annotations

import operator
import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from jaxtribute._src.core.execution.rendezvous import Workers
from jaxtribute.errors import InputError

T = TypeVar("T")

_JOIN_SECONDS = 10.0

# A new thread for each epoch would allocate its batches in a malloc arena of its own, and memory would grow with them.
_threads = Workers("jaxtribute-prefetch")


class Prefetcher(Generic[T]):
    """Calls `produce` in a thread, up to `buffer` results ahead, and hands the results out in order.

    The work ends at the end of the data, at an exception, on `close()`, and when the prefetcher is garbage.

    Args:
      produce: makes the next element; `StopIteration` ends the data. Called in the thread only.
      release: called once in the thread when nothing more will be produced.
      buffer: elements that may wait; at least 1.
    """

    def __init__(self, produce: Callable[[], T], release: Callable[[], None], buffer: int) -> None:
        self._channel = channel = _Channel(buffer)
        self._end: BaseException | None = None
        self._taken: list[Any] = []
        """The element that the last call took and an interrupt kept it from handing out."""
        self._free = partial(channel.places.put, True)
        self._finalizer = weakref.finalize(self, _stop, channel)
        _threads.submit(partial(_work, channel, produce, release))

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


def _work(channel: _Channel, produce: Callable[[], Any], release: Callable[[], None]) -> Callable[[], None]:
    """Fills the channel; whoever waits for the end finds the thread idle."""
    channel.thread = threading.get_ident()
    try:
        # A place is taken before an element is made: no more than `buffer` are ever there, on devices with little
        # memory too.
        while channel.places.get() and not channel.stopped:
            channel.elements.put((produce(), None))
    except BaseException as error:  # noqa: BLE001  # it belongs to the thread that asks for the element
        channel.elements.put((None, error))
    finally:
        release()
    return channel.working.release


def _stop(channel: _Channel) -> None:
    channel.stopped = True
    channel.places.put(False)  # wakes a producer that waits for a place
    # Garbage may be collected in any thread, the prefetching one included.
    if channel.thread != threading.get_ident() and channel.working.acquire(timeout=_JOIN_SECONDS):
        channel.working.release()
