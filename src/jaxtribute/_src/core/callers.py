"""Finds the line of the user's code that a call comes from, for messages, and tells whose code a module is."""

from __future__ import annotations

import sys
import sysconfig
import threading
import traceback
import warnings
from functools import lru_cache
from pathlib import Path
from types import FrameType

_LIBRARIES = tuple(Path(path).resolve() for path in set(map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))))
_OWN = Path(__file__).resolve().parents[2]
_NOT_THE_USERS = ("jaxtribute.", "jax.", "optax.", "flax.", "equinox.", "keras.", "threading", "concurrent.")


def caller() -> str:
    """File and line of the user's code that led here."""
    return located(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]


def frame_of(thread: int | None = None) -> FrameType | None:
    """The frame that a thread is in, by its number; by default the main thread."""
    number = threading.main_thread().ident if thread is None else thread
    return sys._current_frames().get(number or 0)  # pyright: ignore[reportPrivateUsage]


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


def is_of_user(name: str | None) -> bool:
    """True if a module, by its name, is the user's: neither Python's, an installed library's nor this one."""
    if name == "__main__":
        return True
    path = getattr(sys.modules.get(name or ""), "__file__", None)
    if not isinstance(path, str):
        return False
    # Above the module's packages: the folder that Python found the first of them in.
    above = (name or "").count(".") + (Path(path).stem == "__init__")
    # Some installers link the files of a library to a store elsewhere.
    return not any(_holds_libraries(str(file.parent), above) for file in (Path(path).absolute(), Path(path).resolve()))


@lru_cache(maxsize=1024)
def _holds_libraries(folder: str, above: int) -> bool:
    """True if libraries are installed in a folder, or so many above it.

    Those are Python's own, those of its environment, of the user alone, of a second environment, of `pip --target`.
    """
    own = Path(folder)
    if any(own.is_relative_to(library) for library in (*_LIBRARIES, _OWN)):
        return True
    if {"site-packages", "dist-packages"} & set(own.parts):
        return True
    root = Path(*own.parts[: max(1, len(own.parts) - above)])
    return next(root.glob("*.dist-info/RECORD"), None) is not None


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line of the user's code that led here; of a thread that has none, at its outermost line."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and not is_of_user(frame.f_globals.get("__name__")):
        frame = frame.f_back
    names, code = frame.f_globals, frame.f_code
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, code.co_filename, frame.f_lineno, names.get("__name__"), registry)


class Callers:
    """The line that a thread is at, the owner of its code, and warnings at the user's line."""

    frame_of = staticmethod(frame_of)
    is_of_user = staticmethod(is_of_user)
    located = staticmethod(located)
    stack = staticmethod(stack)
    warn = staticmethod(warn)
