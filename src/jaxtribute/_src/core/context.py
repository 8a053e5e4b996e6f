"""The one context stack: which strategy is in force, which replica's code runs, and how it runs, for each thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, NamedTuple

from jaxtribute._src.core.points import LIBRARIES
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute.errors import ContextError, StrategyMixError

if TYPE_CHECKING:
    from jaxtribute._src.core.execution.executor import Executor
    from jaxtribute._src.core.execution.replica_context import ReplicaContext
    from jaxtribute._src.core.strategies.base import Strategy


class Context(NamedTuple):
    """One entry of the stack."""

    strategy: Strategy
    """The strategy in force."""
    replica: ReplicaContext | None
    """The replica whose code runs, or None in cross-replica context."""
    executor: Executor
    """The way in which the code runs: what it reads, where its writes go, how it reaches other replicas."""

    @staticmethod
    def current() -> Context:
        """The context of the calling thread."""
        return current()

    @staticmethod
    def outside() -> Context:
        """The context outside every scope."""
        return fallback.context or fallback.make()

    @staticmethod
    def announce() -> None:
        """Calls what must be done before a strategy takes force, as entering a scope does."""
        announce()

    def entered(self) -> entered:
        """Makes the context the current one inside a `with` block."""
        return entered(self)


class Entries(list[Context]):
    """The contexts that a thread has entered, the outermost first."""

    base: Context | None = None
    """The context that the thread falls back to outside every scope, if it has one."""


class _Stack(threading.local):
    def __init__(self) -> None:
        # One attribute: to look one up for the thread takes longer than for an object, and every step does.
        self.entries = Entries()


stack = _Stack()
"""The calling thread's own; `current` and the others below are how to ask it."""


class _Fallback:
    """The context outside every scope; the package fills it in, so that this module imports nothing above it."""

    make: Callable[[], Context]
    context: Context | None = None
    """The context that `make` returns; None if it raises."""


fallback = _Fallback()


entering: list[Callable[[], None]] = [lambda: entering.extend(library.find for library in LIBRARIES.entries())]
"""Functions called once, before a strategy takes force or a function is traced, for libraries that must know first."""


def announce() -> None:
    """Calls what is in `entering`, which may add more."""
    while entering:
        entering.pop(0)()


def current() -> Context:
    """The context of the calling thread."""
    entries = stack.entries
    if entries:
        return entries[-1]
    return entries.base or Context.outside()


def of(strategy: Strategy) -> Context:
    """The context in force; outside every scope, the cross-replica context of `strategy`."""
    context = current()
    if context.strategy.is_default and strategy is not context.strategy:
        # Code outside every scope belongs to no strategy: what it does with a variable is meant for all its copies.
        return Context(strategy, None, context.executor)
    return context


def depth() -> int:
    """Number of contexts that the calling thread has entered."""
    return len(stack.entries)


def replace_entries(entries: Entries) -> None:
    """Replaces the calling thread's stack."""
    stack.entries = entries


def set_base(context: Context | None) -> None:
    """Replaces what the calling thread falls back to outside every scope."""
    stack.entries.base = context
    if traced_reads.contexts:
        show()


def base() -> Context | None:
    """The calling thread's base context, as `set_base` left it."""
    return stack.entries.base


def entries() -> list[Context]:
    """The contexts that the calling thread has entered, the outermost first.

    To leave contexts again whatever happens, cut the list back in a `finally`: `del entries[depth:]` is one operation,
    while the handler of a signal may raise at the start of any function, an `__exit__` too.
    """
    return stack.entries


def push(context: Context) -> None:
    """Enters `context`; the caller pops it in a `finally`."""
    stack.entries.append(context)
    if traced_reads.contexts:
        show()


def pop() -> None:
    """Leaves the context entered last."""
    stack.entries.pop()
    if traced_reads.contexts:
        show()


def show() -> bool:
    """Tells JAX's caches of traced functions what they depend on in the calling thread's context; True if it is new."""
    context = current()
    view: Hashable = context.executor.view
    if traced_reads.contexts:
        view = view, weakref.ref(context.strategy), context.replica is None
    return traced_reads.show(view)


class entered:  # noqa: N801
    """Makes `context` the current one inside a `with` block; what is entered inside and not left is left with it."""

    __slots__ = ("_context", "_depth", "_entries", "_told")

    def __init__(self, context: Context) -> None:
        self._context, self._entries = context, stack.entries
        self._depth = len(self._entries)
        # A step's executor is mostly the same, and then there is nothing to tell.
        same = bool(self._entries) and self._entries[-1].executor is context.executor
        self._told = same and not traced_reads.contexts

    def __enter__(self) -> Context:
        self._entries.append(self._context)
        if not self._told:
            show()
        return self._context

    def __exit__(self, *_: object) -> None:
        del self._entries[self._depth :]
        if not self._told or traced_reads.contexts:
            show()


def check_enterable(strategy: Strategy, what: str) -> None:
    """Checks that `strategy` may be entered here.

    Raises:
      ContextError: inside a replica function, whichever the strategy.
      StrategyMixError: inside another strategy's scope.
    """
    context = current()
    now = context.strategy
    # Outside every scope the default strategy's only replica is in force, in which everything may be entered.
    if context.replica is not None and context.replica is not Context.outside().replica:
        raise ContextError(
            f"{what} was called inside a function that strategy.run executes on each replica "
            f"({type(now).__name__}). HINT: call it outside, or inside ctx.merge_call(fn)."
        )
    if now.is_default or now is strategy:
        return
    if strategy.is_default:
        raise StrategyMixError(
            f"{what}: the default strategy must not nest inside the scope of {type(now).__name__}. "
            "HINT: make its jd.Model or optimizer in that scope, or leave the scope first."
        )
    raise StrategyMixError(
        f"{what}: mixing {type(strategy).__name__} with {type(now).__name__}, whose scope is active. HINT: leave "
        "that scope first, or use one strategy throughout (jd.get_strategy() returns the active one)."
    )


def require_cross_replica(strategy: Strategy, method: str) -> Context:
    """Checks that a method that works on all replicas' values is not called by one replica. Returns the context.

    Raises:
      ContextError: inside a replica function.
      StrategyMixError: inside another strategy's scope.
    """
    check_enterable(strategy, f"{type(strategy).__name__}.{method}")
    return current()
