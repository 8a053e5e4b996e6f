"""One thread that makes elements ahead of their use, into a bounded buffer."""

from __future__ import annotations

import contextvars
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax

from jaxtribute.errors import InputError

T = TypeVar("T")

_JOIN_SECONDS = 10.0


class Prefetcher(Generic[T]):
    """Calls `produce` in a thread, up to `buffer` results ahead, and hands the results out in order.

    The thread ends at the end of the data, at an exception, on `close()`, and when the prefetcher is garbage.

    Args:
      produce: makes the next element; `StopIteration` ends the data. Called in the thread only.
      release: called once in the thread when nothing more will be produced.
      buffer: elements that may wait; at least 1.
    """

    def __init__(self, produce: Callable[[], T], release: Callable[[], None], buffer: int) -> None:
        self._channel = channel = _Channel(buffer)
        context = contextvars.copy_context()
        x64 = bool(jax.config.read("jax_enable_x64"))
        self._thread = threading.Thread(
            target=context.run,
            args=(_work, channel, produce, release, x64),
            name="jaxtribute-prefetch",
            daemon=True,
        )
        self._thread.start()
        self._finalizer = weakref.finalize(self, _stop, channel, self._thread)
        self._end: BaseException | None = None

    def get(self) -> T:
        """Returns the next element, waiting for it if need be.

        Raises:
          StopIteration: at the end of the data.
          BaseException: what `produce` raised, with the traceback from there.
        """
        if self._end is not None:
            raise StopIteration from None
        element, error = self._channel.elements.get()
        if error is None:
            self._channel.places.put(True)
            return element
        self._end = error
        if isinstance(error, StopIteration):
            raise StopIteration
        try:
            raise error
        finally:
            del error

    def close(self) -> None:
        """Stops the thread and waits for it.

        Raises:
          InputError: if the pipeline does not return within 10 seconds.
        """
        self._finalizer()
        if self._thread.is_alive():
            raise InputError(
                f"the input pipeline has not returned for {_JOIN_SECONDS:.0f} s; its thread {self._thread.name} is "
                "left behind. HINT: look for a read that waits without a timeout."
            )


class _Channel:
    """What the two sides share. It holds no reference to the prefetcher, so that that can be collected."""

    def __init__(self, buffer: int) -> None:
        self.elements: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.places: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.stopped = False
        for _ in range(buffer):
            self.places.put(True)


def _work(channel: _Channel, produce: Callable[[], Any], release: Callable[[], None], x64: bool) -> None:
    try:
        with jax.enable_x64(x64):
            while channel.places.get() and not channel.stopped:
                channel.elements.put((produce(), None))
    except BaseException as error:  # noqa: BLE001  # it belongs to the thread that asks for the element
        channel.elements.put((None, error))
    finally:
        release()


def _stop(channel: _Channel, thread: threading.Thread) -> None:
    channel.stopped = True
    channel.places.put(False)
    # Garbage may be collected in any thread, the prefetching one included.
    if thread is not threading.current_thread():
        thread.join(_JOIN_SECONDS)
