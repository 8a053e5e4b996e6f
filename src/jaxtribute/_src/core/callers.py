"""Finds the line of the user's code that a call comes from, for messages."""

from __future__ import annotations

import sys
import threading
import traceback
from types import FrameType

_NOT_THE_USERS = ("jaxtribute.", "jax.", "threading", "concurrent.")


def caller() -> str:
    """File and line of the user's code that led here."""
    return located(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]


def main_thread() -> FrameType | None:
    """The frame that the main thread is in."""
    return sys._current_frames().get(threading.main_thread().ident or 0)  # pyright: ignore[reportPrivateUsage]


def located(frame: FrameType | None) -> str:
    """File and line of the innermost frame of the user's code; of the outermost if there is none.

    Args:
      frame: the innermost frame of a thread; None for a thread that has ended.
    """
    place = "an unknown place"
    while frame is not None:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        # By the name of the module: paths differ between installations.
        if not str(frame.f_globals.get("__name__", "")).startswith(_NOT_THE_USERS):
            return place
        frame = frame.f_back
    return place


def stack(frame: FrameType | None) -> str:
    """The stack of a frame, as a traceback shows it."""
    return "".join(traceback.format_stack(frame)) if frame is not None else ""
