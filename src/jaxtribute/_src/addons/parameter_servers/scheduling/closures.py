"""Calls of functions on workers: what is known of each, how long it may run, and their numbers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import cloudpickle

from jaxtribute._src.addons.messaging.encoding import decode
from jaxtribute._src.addons.messaging.errors import add_note, told, unpack_error
from jaxtribute._src.addons.messaging.transport import Route
from jaxtribute._src.addons.messaging.wire import Frames, Header, pack
from jaxtribute._src.addons.parameter_servers.scheduling.remote_value import RemoteValue
from jaxtribute.errors import ArgumentError, ClusterError, DeadlineError
from jaxtribute.typing import HostArray, Leaf

_LOG = logging.getLogger(__name__)
MAX_ATTEMPTS = 3
"""Number of processes that a function may end before it is not run again."""
WARN_S = 60.0
"""Age at which a function is told of for the first time, in seconds; then whenever its age has doubled."""
_USUAL = 10
"""A function that has run before is late when it takes so many times as long as usual."""
_SHORT_S = 0.02
AHEAD = 4
"""Number of closures of a short function that may wait at a worker, so that it never waits for the next."""


@dataclass(slots=True)
class Definition:
    """A function with the structure and the constants of its arguments, as workers know it.

    Attributes:
      key: its number.
      blob: the function and the constants, pickled.
      name: the function's name, for messages.
      seconds: moving average of its run time; None before it has run.
      values: numbers of the workers' own values among the constants.
    """

    key: int
    blob: bytes
    name: str = "a function"
    seconds: float | None = None
    values: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Closure:
    """One call of a function.

    Attributes:
      key: its number.
      definition: the function.
      plain: its arguments, without their arrays.
      arrays: the arrays of the arguments.
      remote: takes the result.
      timeout_s: how many seconds it may run; None for as long as it takes.
      max_attempts: how many processes may end while they run it.
      started: when its worker began to run it, by `time.monotonic`; None before.
      warned_s: its age when its being late was last told, in seconds.
      sent: how often it was sent to a worker.
      ended: the processes that ended, or lost its result, while it was theirs.
      begun: True if its worker has said that it runs; asked for once a process has ended with it.
    """

    key: int
    definition: Definition
    plain: Sequence[Leaf]
    arrays: Sequence[HostArray]
    remote: RemoteValue
    timeout_s: float | None = None
    max_attempts: int = MAX_ATTEMPTS
    started: float | None = None
    warned_s: float = 0.0
    sent: int = 0
    ended: set[str | int] = field(default_factory=set[str | int])
    begun: bool = False

    def age_s(self) -> float:
        """Returns for how many seconds it has been running."""
        return 0.0 if self.started is None else time.monotonic() - self.started

    def left_s(self) -> float:
        """Returns how many seconds it may run yet, at least 0."""
        return float("inf") if self.timeout_s is None else max(0.0, self.timeout_s - self.age_s())

    def is_late(self) -> bool:
        """True if it runs for longer than it may, or so long that it is to be told again."""
        age = self.age_s()
        if self.timeout_s is not None:
            return age >= self.timeout_s
        if self.warned_s:
            return age > 2 * self.warned_s
        return age > max(WARN_S, _USUAL * (self.definition.seconds or 0.0))

    def warn_late(self, worker: int, stack: str) -> None:
        """Logs that it is late on `worker`, whose thread is at `stack`."""
        self.warned_s = self.age_s()
        _LOG.warning(
            "worker %d has run %s for %.0f s. HINT: schedule(..., timeout_s=...) ends a function that takes too long. "
            "It is here:\n%s",
            worker,
            self.definition.name,
            self.warned_s,
            stack or "(its process does not answer)",
        )

    def late_error(self, worker: int, stack: str) -> DeadlineError:
        """Returns the error of one that has run for longer than it may, on `worker`, whose thread was at `stack`."""
        error = DeadlineError(
            f"{self.definition.name} has run for {self.age_s():.1f} s on worker {worker}, longer than "
            f"timeout_s={self.timeout_s:g}. HINT: give it more time, or look at where it was, which is noted below."
        )
        error.add_note(f"It was here:\n{stack or '(its process did not answer)'}")
        return error

    def packed(self, floor: int) -> Frames:
        """Returns the message that hands it out.

        Args:
          floor: a number below which all closures have ended.
        """
        header: Header = {"t": "run", "c": self.key, "n": self.sent, "d": self.definition.key, "v": self.plain}
        header["f"] = floor
        # Saying so first costs a message there and back. It is asked for only if the process that ran it before
        # ended, to tell a function that ends processes from one that waited behind it.
        if self.ended:
            header["say"] = 1
        return pack(header, self.arrays)

    def given_up(self, worker: int) -> ClusterError:
        """Returns the error of one during which too many processes have ended, that of `worker` last."""
        return ClusterError(
            f"{self.definition.name} does not run again: {len(self.ended)} processes have ended while they ran it, "
            f"worker {worker}'s last. HINT: look for os._exit, a crash in native code, or too little memory; "
            "ClusterCoordinator(max_attempts=...) tries more often."
        )


def checked_timeout(timeout_s: float | None) -> float | None:
    """Returns the time that a function has, in seconds.

    Raises:
      ArgumentError: it is no positive number.
    """
    number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if timeout_s is None or (number and 0 < timeout_s < float("inf")):
        return timeout_s
    raise ArgumentError(f"timeout_s is {timeout_s!r}. HINT: pass a number of seconds above 0, or None for no end.")


@dataclass(slots=True)
class Worker:
    """A worker as the coordinator knows it.

    Attributes:
      index: its number.
      define: brings a function to it.
      take: fetches a pickled result from it; None if it is gone.
      stack: tells where its thread is.
      renew: ends its process; another takes its place.
      process: the process that it is, which keeps its name where its route changes.
      route: where it is; None while it is not there.
      last_route: where it was last.
      running: what it was sent, in the order in which it runs that.
      knows: the functions that it was sent.
    """

    index: int
    define: Callable[[int, bytes], None]
    take: Callable[[int], bytes | None]
    stack: Callable[[], str]
    renew: Callable[[], None]
    process: str = ""
    route: Route | None = None
    last_route: Route | None = None
    running: dict[int, Closure] = field(default_factory=dict[int, Closure])
    knows: set[int] = field(default_factory=set[int])

    def first(self) -> Closure | None:
        """Returns the closure that it is running; the others wait behind."""
        return next(iter(self.running.values()), None)

    def emptied(self) -> list[Closure]:
        """Takes from it all that it was sent, in order: its process has ended, or is given up."""
        closures = list(self.running.values())
        self.running.clear()
        self.knows.clear()
        return closures

    def has_room(self, closure: Closure) -> bool:
        """True if it is there, and may take another closure: at once, or behind others that will not delay it."""
        if self.route is None:
            return False
        if not self.running:
            return True
        for other in (*self.running.values(), closure):
            if other.timeout_s is not None or other.ended:
                return False  # such a closure may end the process, with what waits behind it
            # Only functions known to be short: what waits behind a long one could run elsewhere meanwhile.
            if other.definition.seconds is None or other.definition.seconds >= _SHORT_S:
                return False
        return len(self.running) < AHEAD


class Numbers:
    """Numbers of closures and of direct pushes, and the least that is still under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1
        self._open: dict[int, None] = {}

    def begin(self) -> int:
        """Returns a new number."""
        with self._lock:
            self._next += 1
            self._open[self._next] = None
            return self._next

    def end(self, number: int) -> None:
        """Notes that whatever had the number has ended."""
        with self._lock:
            self._open.pop(number, None)

    def last(self) -> int:
        """Returns the last number that was given."""
        with self._lock:
            return self._next

    def skip(self, number: int) -> None:
        """Gives no numbers up to this one any more."""
        with self._lock:
            # A program that restores what an earlier run saved counts from the start: servers would take its first
            # pushes for those that the state already has, and drop them.
            self._next = max(self._next, number)

    def floor(self) -> int:
        """Returns a number below which all have ended."""
        with self._lock:
            # Numbers are opened in order, and dictionaries keep it: the first that is open is the lowest.
            return next(iter(self._open), self._next + 1)


def outcome_of(
    worker: Worker, closure: Closure, header: Header, arrays: list[HostArray], blob: bytes | None
) -> tuple[Leaf, BaseException | None]:
    """Returns the value of a closure, or else its error.

    Args:
      worker: where it ran.
      closure: the closure.
      header: what the worker said.
      arrays: the arrays of the value.
      blob: the value, or the error, pickled; None for one that is plain.
    """
    definition = closure.definition
    if "s" in header:
        before = definition.seconds
        # A mean that follows slowly: one slow run makes no function a long one.
        definition.seconds = header["s"] if before is None else 0.8 * before + 0.2 * header["s"]
    if not header["ok"]:
        error = unpack_error(blob, header["error"])
        add_note(error, f"It was raised on worker {worker.index}:\n{header['trace']}")
        return None, error
    try:
        return (decode(header["v"], iter(arrays)) if blob is None else cloudpickle.loads(blob)), None
    except BaseException as raised:  # noqa: BLE001 (unpickling runs code of the user's classes)
        return None, ClusterError(
            f"what {definition.name} returned on worker {worker.index} cannot be read here: {told(raised)}. "
            "HINT: return arrays, numbers, strings, and tuples, lists or dictionaries of them."
        )
