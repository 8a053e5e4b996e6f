"""Signs of life on standard error from what takes minutes, such as a compiler."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Event, Thread

MARK = "jaxtribute: "
"""Begins every line; of a process that answers, its parent passes such lines on."""
_EVERY_S = 20.0


def say(text: str) -> None:
    """Writes a line on standard error."""
    sys.stderr.write(f"{MARK}{text}\n")
    sys.stderr.flush()


@contextmanager
def telling(what: str) -> Generator[None]:
    """Says every 20 s what is being done, and for how long it has been.

    Args:
      what: such as `compiling for v5e:4x4`.
    """
    begun, ended = time.monotonic(), Event()

    def tell() -> None:
        while not ended.wait(_EVERY_S):
            say(f"{what}, {time.monotonic() - begun:.0f} s so far")

    thread = Thread(target=tell, name="jaxtribute-telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
