"""`Islands`: steps that the islands take together, each of which all commit or none.

An island *holds* a step once it has all sums of it and the values made of them. It tells the others, and *commits* the
step once all members of the view have told it the same. If a member dies in between, the survivors agree on a new view,
and each tells what it has committed and what it holds. If anybody has committed the step, all survivors hold it, and
commit it too. If nobody has and all hold it, they commit it as well. Otherwise all do the step again in the new view.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxtribute._src.addons.elastic.links import Head, Lane, Links
from jaxtribute._src.addons.elastic.membership import Ballot, Island, Kind, Membership, Message, Send, State, View
from jaxtribute._src.addons.elastic.packing import Parcel
from jaxtribute.errors import ClusterError, DeadlineError, JaxtributeError
from jaxtribute.typing import HostArray

R = TypeVar("R")

_TICK_S = 0.05
_CONTROL_S = 0.2
_CONFIRM = -1
"""The place in a step of the message that an island holds it."""


class Status(NamedTuple):
    """What an island had when it came into a view.

    Attributes:
      committed: the number of steps that it has committed.
      held: the view in which it holds the next one; -1 if it does not.
    """

    committed: int
    held: int = -1


@dataclass
class Attempt:
    """One try of a step.

    Attributes:
      step: the step's number.
      view: the view that it is tried in.
      place: the number of exchanges so far.
      held: True once this island has all of it.
      failed: True if it can never be committed in this view.
      error: what is to be raised in its place.
    """

    step: int
    view: View
    place: int = 0
    held: bool = False
    failed: bool = False
    error: JaxtributeError | None = None


class Islands:
    """This island among the others.

    Args:
      me: this island.
      addresses: of all islands, by rank.
      silent_s: seconds after which an island that says nothing is left out.
      timeout_s: seconds that a wait for islands that are alive may take.
      min_islands: the fewest islands that go on.
    """

    def __init__(
        self, me: Island, addresses: Sequence[str], silent_s: float, timeout_s: float, min_islands: int = 1
    ) -> None:
        self.me, self._silent_s, self._timeout_s, self._min_islands = me, silent_s, timeout_s, min_islands
        first = View(0, tuple(Island(rank) for rank in range(len(addresses))))
        self._membership = Membership(me, first, patience_s=min(0.5, silent_s / 4))
        self._changed = threading.Condition()
        self._committed = 0
        self._attempt: Attempt | None = None
        self._inbox: dict[Head, dict[Island, bytearray]] = {}
        self._status = Status(0)
        self._told: dict[int, dict[Island, Status]] = {}
        self._entered: View = first
        """The view that `_status` is of."""
        self._heard_at: dict[Island, float] = {}
        self._broken: set[Island] = set()
        self._sends: queue.SimpleQueue[Send | None] = queue.SimpleQueue()
        self._closed = False
        self._links = Links(me, addresses, self._heard, self._lost)
        threading.Thread(target=self._speak, name="islands: speaking", daemon=True).start()
        try:
            self._links.await_all(timeout_s)
        except DeadlineError:
            self.close()
            raise
        self._told.setdefault(0, {})[me] = self._status
        threading.Thread(target=self._watch, name="islands: watching", daemon=True).start()

    @property
    def view(self) -> View:
        """The view that this island is in."""
        view = self._membership.view
        assert view is not None
        return view

    @property
    def committed(self) -> int:
        """The number of steps that have been committed."""
        return self._committed

    def close(self) -> None:
        """Leaves the others, who take this process for dead."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._sends.put(None)
        self._links.close()

    # Steps.

    def step(self, body: Callable[[View], R]) -> R:
        """Takes a step with the others: calls `body` with a view until what it gives is committed.

        Raises:
          ClusterError: this island was left out, or too few are left.
          DeadlineError: living islands did not come in time; it names them.
        """
        while True:
            attempt = self._begin()
            result = body(attempt.view)
            if attempt.error is not None:
                self._attempt = None
                raise attempt.error
            if not attempt.failed and (self._confirmed(attempt) or self._resolved(attempt)):
                return result

    def _begin(self) -> Attempt:
        with self._changed:
            self._await(self._is_settled, "come to an agreement on who goes on")
            self._settle()
            if len(self.view.members) < self._min_islands:
                raise ClusterError(
                    f"{len(self.view.members)} of the islands are left, and min_islands is {self._min_islands}. "
                    "HINT: start the job anew, or allow fewer."
                )
            self._attempt = Attempt(self._committed, self.view)
            return self._attempt

    def _is_settled(self) -> bool:
        """True if all members of the view have told what they had when they came into it."""
        view = self.view
        return self._membership.state is State.STEADY and set(view.members) <= self._told.get(view.number, {}).keys()

    def _settle(self) -> bool:
        """Commits the step that this island holds if the others do, as they have told; returns whether it did."""
        told = [self._told[self.view.number][member] for member in self.view.members]
        attempt, self._attempt = self._attempt, None
        if attempt is None or not attempt.held or attempt.view == self.view:
            return False
        most = max(status.committed for status in told)
        if self._committed < most or (len(set(told)) == 1 and told[0].held >= 0):
            self._commit()
            return True
        return False

    def _resolved(self, attempt: Attempt) -> bool:
        """Finds out what became of a step that this island holds, after a change of views."""
        with self._changed:
            if attempt.error is not None:
                self._attempt = None
                raise attempt.error
            self._await(lambda: self._is_settled() and self.view != attempt.view, "tell what became of a step")
            return self._settle()

    def _confirmed(self, attempt: Attempt) -> bool:
        """Tells the others that this island holds the step, and waits for them; False if the view has changed."""
        head = (attempt.view.number, attempt.step, _CONFIRM)
        with self._changed:
            if self.view != attempt.view:
                return False
            attempt.held = True
        got = self._gathered(attempt, head, [])
        with self._changed:
            if got is None or self.view != attempt.view:
                return False
            self._attempt = None
            self._commit()
            return True

    def _commit(self) -> None:
        self._committed += 1
        old = [head for head in self._inbox if head[1] < self._committed or head[0] < self.view.number]
        for head in old:
            del self._inbox[head]

    # Exchanges.

    def sum(self, arrays: Sequence[HostArray], what: str) -> list[HostArray]:
        """The sums of all islands' arrays; zeros if the step has failed, which the program finds out at its end."""
        attempt = self._attempt
        assert attempt is not None
        parcel = Parcel(arrays, what)
        got = self._exchanged(attempt, parcel)
        if got is not None:
            try:
                return parcel.total(attempt.view.members, self.me, got)
            except ClusterError as error:
                attempt.error = error
        return [np.zeros_like(array) for array in arrays]

    def _exchanged(self, attempt: Attempt, parcel: Parcel) -> dict[Island, bytearray] | None:
        if attempt.failed or attempt.error is not None:
            return None
        head = (attempt.view.number, attempt.step, attempt.place)
        attempt.place += 1
        got = self._gathered(attempt, head, parcel.frames)
        if got is None:
            attempt.failed = True
        return got

    def _gathered(
        self, attempt: Attempt, head: Head, frames: Sequence[bytes | memoryview]
    ) -> dict[Island, bytearray] | None:
        """What the others have sent under a head, this island having sent its own; None if the view has changed."""
        others = [member for member in attempt.view.members if member != self.me]
        for other in others:
            if self.view != attempt.view:
                return None
            # To whom nothing can be sent is dead, or says nothing for long: the watch will tell.
            self._links.send(other.rank, Lane.DATA, head, frames, self._silent_s)
        with self._changed:

            def complete() -> bool:
                return self.view != attempt.view or len(self._inbox.get(head, ())) == len(others)

            try:
                self._await(complete, f"take part in step {attempt.step}", lambda: self._missing(head, others))
            except JaxtributeError as error:
                attempt.error = error
                return None
            return None if self.view != attempt.view else self._inbox.pop(head, {})

    def _missing(self, head: Head, others: Sequence[Island]) -> list[Island]:
        return [other for other in others if other not in self._inbox.get(head, {})]

    def _await(self, ready: Callable[[], bool], what: str, whom: Callable[[], list[Island]] | None = None) -> None:
        """Waits until `ready()`, under the lock.

        Raises:
          ClusterError: this island was left out of a view.
          DeadlineError: the others take too long.
        """
        end = time.monotonic() + self._timeout_s
        while not ready():
            if self._membership.state is State.FENCED:
                raise ClusterError(
                    f"island {self.me.rank} was silent for more than {self._silent_s:g} s, and the others go on without "
                    "it. HINT: end this process; if islands are often as slow as this, give more time with silent_s=."
                )
            if self._closed:
                raise ClusterError(f"island {self.me.rank} has left the others. HINT: make a new strategy.")
            if time.monotonic() > end:
                told = self._told.get(self.view.number, {})
                late = whom() if whom else [member for member in self.view.members if member not in told]
                names = ", ".join(f"island {island.rank}" for island in late) or "the others"
                doubted = self._membership.suspected & set(self.view.members)
                silent = f" Silent: {sorted(island.rank for island in doubted)}." if doubted else ""
                raise DeadlineError(
                    f"island {self.me.rank} has waited {self._timeout_s:g} s for {names} to {what}.{silent} HINT: look "
                    "at what they print; give more time with timeout_s=."
                )
            self._changed.wait(min(_TICK_S, max(end - time.monotonic(), 0.001)))
        if self._membership.state is State.FENCED:
            raise ClusterError(
                f"island {self.me.rank} was left out of view {self.view.number} by the others. HINT: end this process."
            )

    # The other threads.

    def _heard(self, island: Island, lane: Lane, head: Head, data: bytearray) -> None:
        with self._changed:
            self._heard_at[island] = time.monotonic()
            self._broken.discard(island)
            if lane is Lane.DATA:
                if head[0] >= self.view.number:
                    self._inbox.setdefault(head, {})[island] = data
                    self._changed.notify_all()
                return
            message, status = _decoded(data)
            if status is not None:
                self._told.setdefault(message.number, {})[island] = status
            self._after(self._membership.receive(island, message, time.monotonic()))

    def _lost(self, island: Island, proved: bool) -> None:
        with self._changed:
            if proved:
                self._after(self._membership.proved_dead(island, time.monotonic()))
            else:
                self._broken.add(island)

    def _after(self, sends: Sequence[Send]) -> None:
        """Takes note of what the state machine has decided, and sends what it says."""
        for send in sends:
            self._sends.put(send)
        view = self.view
        if view is not self._entered:
            self._entered = view
            attempt = self._attempt
            held = attempt.view.number if attempt is not None and attempt.held else -1
            self._status = Status(self._committed, held)
            self._told = {number: told for number, told in self._told.items() if number >= view.number}
            self._told.setdefault(view.number, {})[self.me] = self._status
            for send in self._membership.signs():
                self._sends.put(send)
        self._changed.notify_all()

    def _watch(self) -> None:
        """Tells the others that this island lives, and notices who does not."""
        while not self._closed:
            with self._changed:
                now = time.monotonic()
                sends = [*self._membership.signs(), *self._membership.tick(now)]
                for member in self.view.members:
                    last = self._heard_at.setdefault(member, now)
                    if member != self.me and now - last > self._silent_s:
                        sends += self._membership.suspect(member, now)
                self._after(sends)
                broken = [island for island in self._broken if island in self.view.members]
            for island in broken:
                if self._links.proves_dead(island):
                    self._broken.discard(island)
                    self._lost(island, proved=True)
            time.sleep(_TICK_S)

    def _speak(self) -> None:
        """Sends what the state machine says; a thread of its own, as an island that is stopped takes nothing."""
        while (send := self._sends.get()) is not None:
            island, message = send
            with self._changed:
                status = self._status if message.number == self._entered.number else None
            data = _encoded(message, status if message.kind is Kind.ALIVE else None)
            self._links.send(island.rank, Lane.CONTROL, (0, 0, 0), [data], _CONTROL_S)


def _encoded(message: Message, status: Status | None) -> bytes:
    view = message.view
    plain: list[Any] = [
        message.kind.value,
        message.number,
        message.ballot,
        message.earlier,
        None if view is None else [view.number, view.members, view.exiles],
        status,
    ]
    return json.dumps(plain).encode()


def _decoded(data: bytearray) -> tuple[Message, Status | None]:
    kind, number, ballot, earlier, view, status = json.loads(data)
    seen = None
    if view is not None:
        seen = View(view[0], *(tuple(Island(*island) for island in islands) for islands in view[1:]))
    message = Message(Kind(kind), number, _ballot(ballot), seen, _ballot(earlier))
    return message, None if status is None else Status(*status)


def _ballot(plain: Sequence[Any]) -> Ballot:
    return Ballot(plain[0], Island(*plain[1]))
