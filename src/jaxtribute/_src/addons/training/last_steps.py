"""The end of a process: an error of its last steps, of which nobody has read a result, becomes its exit status.

Steps are computed while Python goes on. JAX tells of an error where a value is read, and drops it where none is.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

from jaxtribute import Variable
from jaxtribute.extending import Library, points

WAIT_S = 60.0
"""Seconds that the last steps have to end."""
_LOOK_S = 0.005


def settle() -> None:
    """Waits for the newest values of variables; ends the process with status 1 if their computation has failed."""
    if getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None:
        return  # it ends with an error already
    end = time.monotonic() + WAIT_S
    for array in _newest():
        try:
            while not array.is_deleted() and not array.is_ready() and time.monotonic() < end:
                time.sleep(_LOOK_S)
            if not array.is_deleted() and array.is_ready():
                array.block_until_ready()
        except RuntimeError as error:
            if not array.is_deleted():
                _fail(error)
                return


def _newest() -> Iterator[Any]:
    # A cluster remembers its last steps, whatever has become of their variables.
    if os.environ.get("JAXTRIBUTE_LAUNCHER") == "1":
        yield from jax.live_arrays()
    for found in gc.get_objects():
        # Not `isinstance`, which asks the object: a proxy of what is gone would raise.
        if issubclass(type(found), Variable) and hasattr(array := getattr(found, "stored", None), "is_ready"):
            yield array


def _fail(error: RuntimeError) -> None:
    sys.stderr.write("The last steps of this process failed, and nobody has read their results:\n")
    sys.excepthook(type(error), error, error.__traceback__)  # which tells the other workers, too
    atexit.unregister(settle)
    # Python has settled its exit status before: it is changed here, once all others that wait for the end have had it.
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)


points.LIBRARIES.register(Library("jax", "live_arrays", lambda: atexit.register(settle) and None))
