"""Errors of which this library's lines say nothing: if nobody catches one, the user's lines and its words are shown."""

from __future__ import annotations

import functools
import sys
import weakref
from pathlib import Path
from types import TracebackType

from jaxtribute.errors import JaxtributeError

_HERE = str(Path(__file__).parents[3])
"""The folder of this library."""
_short: weakref.WeakSet[JaxtributeError] = weakref.WeakSet()


def shown_short(error: JaxtributeError) -> JaxtributeError:
    """Returns an error that is about to be raised, whose traceback is to end where this library is called."""
    _hook()
    _short.add(error)
    return error


@functools.cache
def _hook() -> None:
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, JaxtributeError) and error in _short:
            last = trace
            while last is not None and last.tb_next is not None:
                if last.tb_next.tb_frame.f_code.co_filename.startswith(_HERE):
                    last.tb_next = None
                else:
                    last = last.tb_next
        shown(kind, error, trace)

    sys.excepthook = hook
