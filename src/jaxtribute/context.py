"""The one context stack: which strategy, which replica, and how variables are read, for each thread."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtribute.execution.replica_context import ReplicaContext
    from jaxtribute.strategies.base import Strategy
    from jaxtribute.values.variable import Variable


class Frame(Protocol):
    """How code in a context reaches the variables' arrays.

    A *local* frame sees what one replica sees; any other sees whole values, with all replicas.
    """

    local: bool
    """Whether the arrays are those of one replica."""
    traced: bool
    """Whether the code is being traced into a compiled program."""
    differentiating: bool
    """Whether the code is being differentiated by variables."""

    def get(self, variable: Variable) -> Any:
        """Returns the variable's current array in this frame's view."""
        ...

    def set(self, variable: Variable, value: Any) -> None:
        """Rebinds the variable's array in this frame's view."""
        ...

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """Returns `make` of the variable's array, computed once for each array."""
        ...

    def create(self, make: Callable[[], Variable]) -> Variable:
        """Makes a variable from within this frame."""
        ...


@dataclass(slots=True, frozen=True)
class Context:
    """One entry of the stack."""

    strategy: Strategy
    """The strategy in force."""
    replica: ReplicaContext | None
    """The replica whose code runs, or None in cross-replica context."""
    frame: Frame


class _Stack(threading.local):
    def __init__(self) -> None:
        self.entries: list[Context] = []
        self.base: Context | None = None


_stack = _Stack()


class _Fallback:
    """What holds outside every scope; the package fills it in, so that this module imports nothing above it."""

    make: Callable[[], Context]


fallback = _Fallback()


def current() -> Context:
    """The context of the calling thread."""
    entries = _stack.entries
    if entries:
        return entries[-1]
    return _stack.base or fallback.make()


def depth() -> int:
    """How many contexts the calling thread has entered."""
    return len(_stack.entries)


def entries() -> list[Context]:
    """The contexts that the calling thread has entered, the outermost first."""
    return _stack.entries


def replace_entries(entries: list[Context]) -> None:
    """Replaces the calling thread's stack."""
    _stack.entries = entries


def set_base(context: Context | None) -> None:
    """Replaces what the calling thread falls back to outside every scope."""
    _stack.base = context


def base() -> Context | None:
    """What `set_base` set for the calling thread."""
    return _stack.base


def push(context: Context) -> None:
    """Enters `context`; the caller pops it in a `finally`."""
    _stack.entries.append(context)


def pop() -> None:
    """Leaves the context entered last."""
    _stack.entries.pop()


@contextmanager
def entered(context: Context) -> Generator[Context]:
    """Makes `context` the current one inside a `with` block."""
    _stack.entries.append(context)
    try:
        yield context
    finally:
        _stack.entries.pop()
