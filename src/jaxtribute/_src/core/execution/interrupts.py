"""Steps that no signal can cut in two: the variables' old arrays are given up and the new ones bound, or neither.

A signal's handler runs between two operations of Python in the main thread, and may raise. A step that has given up
the variables' arrays must bind the new ones before that: so the call of the compiled program and the binding are one
call of C, in which no Python runs once JAX has a program for the arguments. Where JAX first has to trace, to compile or
to look one up, it runs Python around the call: the handlers are put off meanwhile.

A handler that stays installed and asks an "in a step" flag would be no shorter, as `Telltale` is needed for more than
signals, and others would see it: `asyncio.run` cancels its main task at Ctrl-C only if Python's own handler is in
force.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from jaxtribute._src.core.jaxprs.telltale import Telltale
from jaxtribute._src.core.types import Nest

R = TypeVar("R")
_Handler = Callable[[int, FrameType | None], Any]

# What `signal` wraps makes an enum of every answer, which takes longer than the question.
_handler_of: Callable[[int], Any] = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
_set_handler: Callable[[int, Any], Any] = getattr(signal.signal, "__wrapped__", signal.signal)
_SIGNALS = tuple(map(int, signal.valid_signals()))


class Deferral:
    """Puts off what handlers of signals do, from `begin` to `end`; of the main thread alone, which runs them."""

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] = {}
        self._noted: list[tuple[int, FrameType | None]] = []
        self._waiting = False

    def begin(self) -> None:
        """From here on signals are only noted."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._waiting = True
        for number in _SIGNALS:
            handler = _handler_of(number)
            if callable(handler) and number not in self._handlers:
                self._handlers[number] = handler
                _set_handler(number, self._note)

    def end(self) -> None:
        """Puts the handlers back and calls those whose signals came, which may raise."""
        self._waiting = False
        try:
            self._put_back()
            self._call_noted()
        finally:
            if self._handlers or self._noted:  # a handler that was back already has raised
                self.end()

    # CPython 3.13 leaves some jumps back to a loop's head out of the `try` around it: so each loop is a function.

    def _put_back(self) -> None:
        while self._handlers:
            number, handler = next(reversed(self._handlers.items()))
            if _handler_of(number) == self._note:  # else the program has set another one meanwhile
                _set_handler(number, handler)
            del self._handlers[number]

    def _call_noted(self) -> None:
        while self._noted:
            number, frame = self._noted.pop(0)
            handler = _handler_of(number)
            if callable(handler):
                handler(number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._waiting:
            self._noted.append((number, frame))
        else:
            self._handlers[number](number, frame)


def undisturbed(call: Callable[..., None], *args: Nest) -> None:
    """Calls `call`, which takes a moment, with signals put off."""
    deferral = Deferral()
    try:
        deferral.begin()
        call(*args)
    finally:
        deferral.end()


class Guard(Telltale):
    """Puts off signals if JAX runs Python around a call of a compiled program; an argument of the program.

    Args:
      check: called then, before anything else; may raise. None for a guard that only stands in for another.
    """

    __slots__ = ("_check", "broken", "deferral")

    def __init__(self, check: Callable[[], None] | None) -> None:
        super().__init__()
        self._check = check
        self.broken = False
        """True if the user's own function, called in the last call, has not come to its end."""
        self.deferral: Deferral | None = None
        """The deferral of signals, if JAX has run Python."""

    def tell(self) -> None:
        """Puts off signals until `release`."""
        if self.deferral is None and self._check is not None:
            self._check()
            self.deferral = Deferral()
            self.deferral.begin()

    def release(self) -> None:
        """Ends what `tell` began, when all is bound."""
        deferral, self.deferral = self.deferral, None
        if deferral is not None:
            deferral.end()

    def resumed(self, call: Callable[[], R]) -> R:
        """Returns `call()`, of the user's own function, which signals may interrupt: nothing has been given up yet."""
        if self.deferral is None:
            return call()
        self.broken = True
        self.deferral.end()
        result = call()
        self.deferral.begin()
        self.broken = False
        return result
