"""Errors of user code on their way to whom they concern, whatever their classes do.

The class of an error may be the user's: its text, its pickling and its notes are then user code, which may raise
anything, `SystemExit` among it, in a thread that others depend on.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

from jaxtribute.errors import ClusterError


def told(error: BaseException) -> str:
    """Returns the type and the text of an error, though the error may be unable to say it."""
    try:
        text = str(error)
    except BaseException as other:  # noqa: BLE001 (the class is the user's)
        text = f"<no text, as {type(other).__name__} was raised for it>"
    return f"{type(error).__name__}: {text}"


def trace_of(error: BaseException) -> str:
    """Returns the traceback of an error as text."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 (the class is the user's)
        return f"{told(error)}\n"


def pack_error(error: BaseException) -> bytes | None:
    """Pickles an error; None for one that cannot travel, or that would end the process that it is raised in."""
    if not isinstance(error, Exception):
        return None
    try:
        # Frames and causes hold objects of the worker, which need not pickle; the traceback travels as text beside the
        # error.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        blob = cloudpickle.dumps(error)
        # Tried here: an error whose `__init__` takes other arguments than `args` has pickles but cannot be read back,
        # and the coordinator, where that would be noticed too late, has only the text then.
        back = cloudpickle.loads(blob)
    except BaseException:  # noqa: BLE001 (its text has to do)
        return None
    # `__reduce__` may give an object of any class.
    return blob if isinstance(back, Exception) else None


def unpack_error(blob: bytes | None, text: str) -> Exception:
    """Returns the error that `pack_error` pickled, or else one with that text.

    Args:
      blob: the pickled error; None if there is none.
      text: what `told` said of it.
    """
    if blob is not None:
        with contextlib.suppress(BaseException):
            found = cloudpickle.loads(blob)
            if isinstance(found, Exception):
                return found
    return ClusterError(text)


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an error, unless its class does not let it."""
    with contextlib.suppress(BaseException):
        error.add_note(note)


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function for a message; that of its type for other callables."""
    inner = getattr(function, "python_function", function)
    for name in (getattr(inner, "__qualname__", None), getattr(inner, "__name__", None)):
        if type(name) is str:
            return name
    return type(inner).__qualname__
