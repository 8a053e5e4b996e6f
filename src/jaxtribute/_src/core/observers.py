"""Observers: objects that are told what the library does, as it begins and as it ends.

Tracing, injected faults and the report of a worker's time stand on them, and users may add their own. A kind of event
that nobody observes costs one test of an empty tuple.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from jaxtribute.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Event:
    """One thing that the library does, once, in one thread.

    Attributes:
      kind: one of the kinds that `observe` lists.
      name: name of the function (`step`, `trace`, `dispatch`, `run`), of the operation (`reduce`), of the barrier or
        the point; the path (`save`, `write`, `restore`); the place (`wait`); the number of the step (`metrics`) or of
        the start (`attempt`); the task; the function (`closure`); empty for `input` and `flush`.
      start_s: when the event began, in seconds of `time.monotonic`.
      seconds: its length; None until it has ended.
      error: what it raised, if it did.
      subject: the object of the library that does it. It, the arguments and the result are for tools: they may be
        other ones in the next release.
      keywords: arguments of the call by name.
      arguments: positional arguments of the call; for `wait` the names of the workers that have not come yet.
      result: the result of the call; None until it has ended.
    """

    kind: str
    name: str
    start_s: float
    seconds: float | None = None
    error: BaseException | None = None
    subject: object = None
    arguments: tuple[Any, ...] = ()
    result: object = None
    keywords: dict[str, Any] = field(default_factory=dict[str, Any])


class Observer:
    """Base class of observers, whose methods do nothing.

    They are called in the thread of the event, which waits for them; what they raise, the program sees.

    Attributes:
      run_folder: the folder of a run that tasks which this process starts are to record, too; empty for none.
    """

    run_folder = ""

    def on_start(self, event: Event) -> None:
        """Called as an event begins.

        Args:
          event: the event; the same object is given to `on_end`.
        """

    def on_end(self, event: Event) -> None:
        """Called as an event has ended, in whatever way.

        Args:
          event: the event, with its length, and its result or error.
        """


class Kind:
    """One kind of event, and who observes it.

    Attributes:
      name: the name by which users know it.
      observers: empty while nobody observes, which is all that a call of the library then asks.
    """

    __slots__ = ("_inside", "name", "observers")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.observers: tuple[Observer, ...] = ()
        self._inside = threading.local()

    def due(self) -> bool:
        """True if somebody observes, and this thread is in no event of this kind."""
        return bool(self.observers) and not getattr(self._inside, "event", False)

    def around(self, call: Callable[..., R], subject: object, name: str, *args: Any, **kwargs: Any) -> R:
        """Calls `call` as an event.

        Args:
          call: the function to call; it may ask `due` again, or be a method that calls itself: events of one kind do
            not nest.
          subject: the object whose event it is.
          name: the name of the event.
          args: arguments of the call.
          kwargs: likewise.
        """
        # Read once: another thread may replace the tuple, and whoever was told of a start must be told of the end.
        observers = self.observers
        if len(observers) != 1 or not self.due():
            with self.during(subject, name, *args) as event:
                event.keywords = kwargs
                event.result = result = call(*args, **kwargs)
            return result
        # What `Block` does, written out for the usual case: two microseconds of a step.
        (observer,) = observers
        event = Event(self.name, name, time.monotonic(), None, None, subject, args, None, kwargs)
        self._inside.event = True
        try:
            observer.on_start(event)
            event.result = result = call(*args, **kwargs)
        except BaseException as error:
            event.error = error
            raise
        finally:
            event.seconds = time.monotonic() - event.start_s
            try:
                observer.on_end(event)
            finally:
                self._inside.event = False
        return result

    def during(self, subject: object, name: str, *args: Any) -> Block:
        """Makes a block an event, where somebody observes; the block may set its arguments and its result.

        Args:
          subject: the object whose event it is.
          name: the name of the event.
          args: arguments of the event.
        """
        return Block(self, Event(self.name, name, time.monotonic(), subject=subject, arguments=args))

    def mark(self, *, inside: bool) -> None:
        """Notes that this thread is in an event of this kind, or in none."""
        self._inside.event = inside


class Block:
    """A context manager that tells observers of an event: by hand, as a generator would cost a step twice as much.

    Args:
      kind: the kind of event.
      event: the event, which begins as the block does.
    """

    __slots__ = ("_event", "_kind", "_told")

    def __init__(self, kind: Kind, event: Event) -> None:
        self._kind, self._event = kind, event
        self._told: list[Observer] | None = None
        """The observers that know of the start and not of the end; None if the block is no event."""

    def __enter__(self) -> Event:
        if self._kind.due():
            self._told = []
            try:
                self._kind.mark(inside=True)
                for observer in self._kind.observers:
                    # Before it is told: one that raises half-way through learns of the end all the same.
                    self._told.append(observer)
                    observer.on_start(self._event)
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self._event

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._told is not None:
            self._event.seconds, self._event.error = time.monotonic() - self._event.start_s, error
            try:
                self._tell_of_end(self._told)
            finally:
                self._kind.mark(inside=False)

    def _tell_of_end(self, told: list[Observer]) -> None:
        """Tells all, the last first, whatever one of them raises."""
        if told:
            try:
                # By recursion, whose `finally` tells the rest whichever of them raises.
                told.pop().on_end(self._event)
            finally:
                self._tell_of_end(told)


STEP, TRACE, DISPATCH = Kind("step"), Kind("trace"), Kind("dispatch")
RUN, REDUCE, INPUT = Kind("run"), Kind("reduce"), Kind("input")
SAVE, WRITE, FLUSH, RESTORE = Kind("save"), Kind("write"), Kind("flush"), Kind("restore")
BARRIER, WAIT, METRICS, ATTEMPT, POINT = Kind("barrier"), Kind("wait"), Kind("metrics"), Kind("attempt"), Kind("point")
TASK, SCHEDULE, CLOSURE, BUDGET = Kind("task"), Kind("schedule"), Kind("closure"), Kind("budget")


class Kinds:
    """The kinds of events that add-ons observe, or make: `Kinds.WAIT.during(subject, name)`; `observe` describes each.

    A kind has `name`, `due()`, `around(call, ...)` and `during(subject, name, ...)`.
    """

    ATTEMPT = ATTEMPT
    BUDGET = BUDGET
    CLOSURE = CLOSURE
    DISPATCH = DISPATCH
    FLUSH = FLUSH
    INPUT = INPUT
    METRICS = METRICS
    POINT = POINT
    REDUCE = REDUCE
    RESTORE = RESTORE
    RUN = RUN
    SAVE = SAVE
    SCHEDULE = SCHEDULE
    STEP = STEP
    TASK = TASK
    TRACE = TRACE
    WAIT = WAIT
    WRITE = WRITE


KINDS = {kind.name: kind for kind in (BARRIER, *(kind for kind in vars(Kinds).values() if isinstance(kind, Kind)))}

_changes = threading.Lock()


@contextmanager
def observe(observer: Observer, *kinds: str) -> Generator[None]:
    """Tells an observer of events while the block runs, in whichever thread they happen.

    Args:
      observer: the observer.
      kinds: the kinds of events; all by default. `step`: a `jd.function` is called, from outside any other. `trace`:
        its Python function is traced for a new signature. `dispatch`: one of its compiled programs is given to the
        devices, which may compute on when it has ended. `run`, `reduce`: these methods of a strategy. `input`: a
        distributed iterator is asked for its next element. `save`: the program has a checkpoint saved. `write`: it is
        written, in a thread of its own. `flush`: the program waits until that has ended. `restore`: of a checkpoint.
        `barrier`: workers come to a barrier. `wait`: this worker waits for others. `metrics`: scalars of a
        `jd.summary.Writer` go to its trackers. `attempt`: the launcher runs the job, from one start to its end.
        `point`: a call of `jd.testing.point`. `task`: this process is the coordinator of parameter servers, or one of
        the tasks `ps 0`, `worker 0`, and so on, until it ends. `schedule`: a coordinator takes a function. `closure`:
        such a worker runs it. `budget`: what a loss keeps for its gradient is chosen, for a budget of memory.

    Raises:
      ArgumentError: there is no such kind.
    """
    end = subscribe(observer, *kinds)
    try:
        yield
    finally:
        end()


def subscribe(observer: Observer, *kinds: str) -> Callable[[], None]:
    """Does as `observe` until the function that it returns is called, or for the rest of the process.

    Args:
      observer: the observer.
      kinds: as for `observe`.
    """
    unknown = sorted(set(kinds) - KINDS.keys())
    if unknown:
        raise ArgumentError(f"{unknown[0]!r} is no kind of event. HINT: choose among {', '.join(KINDS)}.")
    chosen = [KINDS[kind] for kind in dict.fromkeys(kinds or KINDS)]
    with _changes:
        for kind in chosen:
            kind.observers = (*kind.observers, observer)

    def end() -> None:
        with _changes:
            for kind in chosen:
                kind.observers = _without(kind.observers, observer)

    return end


def observed(kind: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes each call of a method an event. For methods that take microseconds: it adds a call of Python's.

    Args:
      kind: the kind of event.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        unbound = cast("Callable[..., R]", method)

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # The tuple is asked first: while it is empty no other line of this file runs.
            if not kind.observers or not kind.due():
                return method(*args, **kwargs)
            subject, *rest = args
            bound = functools.partial(unbound, subject)
            return kind.around(bound, subject, _name(subject, rest, kwargs), *rest, **kwargs)

        return call

    return decorate


def _without(observers: tuple[Observer, ...], observer: Observer) -> tuple[Observer, ...]:
    """All but the last of those that are `observer`, which may be there more than once."""
    # By identity: an observer may define equality, or be there twice.
    places = [place for place, known in enumerate(observers) if known is observer]
    return (*observers[: places[-1]], *observers[places[-1] + 1 :])


def _name(subject: object, args: Iterable[Any], kwargs: dict[str, Any]) -> str:
    """Name of a `jd.function`, or of the first argument of another method."""
    own = getattr(subject, "__name__", None)
    if own is not None:
        return str(own)
    first = next(iter((*args, *kwargs.values())), "")
    return first.name if isinstance(first, Enum) else str(getattr(first, "__name__", first))
