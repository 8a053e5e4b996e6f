"""`Islands`: steps that the islands take together, each of which all commit or none.

An island *holds* a step once it has all sums of it and the values made of them. It tells the others, and *commits* the
step once all members of the view have told it the same. If a member dies in between, the survivors agree on a new view,
and each tells what it has committed and what it holds. If anybody has committed the step, all survivors hold it, and
commit it too. If nobody has and all hold it, they commit it as well. Otherwise all do the step again in the new view.
"""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxtribute._src.addons.elastic.attempt import Attempt
from jaxtribute._src.addons.elastic.courier import AHEAD, Ahead, Courier
from jaxtribute._src.addons.elastic.exchanges import Exchanges
from jaxtribute._src.addons.elastic.joining import ASKS, STATE, Newcomer, answer
from jaxtribute._src.addons.elastic.journal import Journal
from jaxtribute._src.addons.elastic.links import Lane, Links
from jaxtribute._src.addons.elastic.mail import Mail
from jaxtribute._src.addons.elastic.membership import Island, Kind, Membership, Message, Send, State, View
from jaxtribute._src.addons.elastic.messages import Status, decoded, encoded
from jaxtribute._src.addons.elastic.packing import Parcel
from jaxtribute._src.addons.elastic.presence import Presence
from jaxtribute._src.addons.elastic.progress import Progress
from jaxtribute._src.addons.elastic.traffic import Head
from jaxtribute.errors import ClusterError, DeadlineError, JaxtributeError
from jaxtribute.typing import HostArray

R = TypeVar("R")

_TICK_S = 0.05
_SIGN_S = 0.25
"""Seconds between two signs of life while nobody comes or goes: each wakes a thread of theirs, within steps."""
_CONTROL_S = 0.2
_JOIN_LIMIT_S = 20.0
"""Seconds that the others wait for an island that they have taken in."""
_CONFIRM = -1
"""The place in a step of the message that an island holds it."""


class Islands(Exchanges):
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
        self._links = Links(me, addresses, self._heard, self._lost, self._received)
        super().__init__(me, Mail(me, self._links.traffic))
        self.silent_s, self.timeout_s, self.min_islands = silent_s, timeout_s, min_islands
        first = View(0, tuple(Island(rank) for rank in range(len(addresses))))
        self.others = len(addresses) - 1
        if not self.others:
            first = View(0, (me,))
        joins = me not in first.members
        self.membership = Membership(me, None if joins else first, patience_s=min(0.5, silent_s / 4))
        self.lock = threading.Condition()
        self.journal = Journal()
        self.newcomer = Newcomer(self, min(timeout_s / 2, _JOIN_LIMIT_S)) if joins else None
        """Part of this island until it has joined; None once it has, and for those that were there at first."""
        self.state: Callable[[], bytes] = bytes
        self.bind: Callable[[bytearray], object] = len
        """Functions that make and take the values of all variables; of whoever has them."""
        self._committed = 0
        self.again = 0
        """Number of steps that this island has computed in vain, as another one had died."""
        self._progress = Progress(me, None if joins else first)
        self._told: View | None = None
        """The view of the last step, of which a line has told if it is not the first."""
        self._presence = Presence()
        self._courier = Courier(self._mail.traffic)
        self._sends: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._links.begin()
        threading.Thread(target=self._speak, name="islands: speaking", daemon=True).start()
        try:
            if self.newcomer is not None:
                self._links.greet()
                self.newcomer.begin()
                self._begin_again(self.newcomer.first)
            else:
                self._links.await_all(timeout_s)
        except JaxtributeError:
            self.close()
            raise
        threading.Thread(target=self._watch, name="islands: watching", daemon=True).start()

    @property
    def view(self) -> View:
        """The view that this island is in."""
        view = self.membership.view
        assert view is not None
        return view

    @property
    def closed(self) -> bool:
        """True once this island has left the others."""
        return self._closed

    @property
    def far(self) -> bool:
        """True if islands are on several hosts: what is sent between them takes more time than processors."""
        return self._links.far

    @property
    def seen_view(self) -> View:
        """The view that the program is to see: while it replays steps, that of the last of them."""
        if self.newcomer is None:
            return self.view
        assert self.newcomer.view is not None
        return self.newcomer.view

    @property
    def committed(self) -> int:
        """The number of steps that have been committed."""
        return self._committed if self.newcomer is None else self.newcomer.position

    def close(self) -> None:
        """Leaves the others, who take this process for dead."""
        with self.lock:
            self._closed = True
            self._courier.end()
            self._notify()
        self._sends.put(None)
        self._links.close()

    # Steps.

    def step(self, body: Callable[[View], R]) -> R:
        """Takes a step with the others: calls `body` with a view until what it gives is committed.

        Raises:
          ClusterError: this island was left out, or too few are left.
          DeadlineError: living islands did not come in time; it names them.
        """
        self._courier.stop()
        while True:
            attempt = self._begin()
            self._feed(attempt)
            try:
                result = body(attempt.view)
                if attempt.error is not None:
                    self._attempt = None
                    raise attempt.error
                if not attempt.failed and (self._confirmed(attempt) or self._resolved(attempt)):
                    return result
            except BaseException:
                if attempt.held:
                    # The others may commit what this island has told them that it holds, and it never will.
                    self.close()
                raise
            self.again += 1

    def send_ahead(self, arrays: Sequence[HostArray], what: str) -> Ahead:
        """Begins to give arrays to all before the step in which they are asked for: `collect` there.

        They travel while the program goes on. Who is in another view by then, or at another step, has to send anew.
        """
        view, parcel = self.view, Parcel(arrays, what)
        head = (view.number, self._committed, AHEAD)
        self._mail.post(dict.fromkeys(self._others(view), parcel), head)
        self._courier.start()
        return Ahead(head, parcel)

    def _begin(self) -> Attempt:
        with self.lock:
            self._await(self._is_settled, "come to an agreement on who goes on")
            self._settle()
            if len(self.view.members) < self.min_islands:
                raise ClusterError(
                    f"{len(self.view.members)} of the islands are left, and min_islands is {self.min_islands}. "
                    "HINT: start the job anew, or allow fewer."
                )
            self._attempt = Attempt(self._committed, self.view)
            before, self._told = self._told, self.view
        if before is not None and before != self._told and self.me == teller(before, self._told):
            _tell(change(before, self._told))
        self._mail.traffic.keep([member.rank for member in self._attempt.view.members])
        return self._attempt

    def _is_settled(self) -> bool:
        """True if all members of the view have told what they had when they came into it."""
        return self.membership.state is State.STEADY and self._progress.is_known(self.view)

    def _settle(self) -> bool:
        """Commits the step that this island holds if the others do, as they have told; returns whether it did."""
        everybody = self._progress.of(self.view)
        told = [everybody[member] for member in self.view.members if everybody[member].committed >= 0]
        attempt, self._attempt = self._attempt, None
        if attempt is None or not attempt.held or attempt.view == self.view:
            return False
        most = max(status.committed for status in told)
        if self._committed < most or (len(set(told)) == 1 and told[0].held >= 0):
            self._commit()
            return True
        return False

    def _feed(self, attempt: Attempt) -> None:
        """Sends the state to newcomers that have been taken in, if that is this island's part."""
        if attempt.view is self._progress.fed:
            return
        with self.lock:
            told = self._progress.of(attempt.view)
            newcomers = [member for member, status in told.items() if status.committed < 0]
        self._progress.fed = attempt.view
        if newcomers and self.me == min(set(attempt.view.members) - set(newcomers)):
            state, head = [self.state()], (attempt.step, attempt.view.number, STATE)
            wanted = lambda: self.view is attempt.view  # noqa: E731
            for newcomer in newcomers:  # which would be waited for in vain without it
                self._links.deliver(newcomer.rank, Lane.JOURNAL, head, state, _JOIN_LIMIT_S, wanted)

    # For a newcomer.

    def _begin_again(self, first: View | None) -> None:
        """Is in the first view from here on, if all islands are newcomers that know nothing."""
        if first is not None:
            with self.lock:
                self.membership.begin(first)
                self._progress.enter(first, Status(0))
                self.newcomer = None
            if self.me == min(first.members):
                _tell(change(View(first.number, ()), first))

    def joined(self, step: int) -> None:
        """Takes note that this island has the others' state before a step: it takes that one with them."""
        self._committed, self.newcomer = step, None

    def rehearse(self, step: int, view: View, call: Callable[[View], Any]) -> None:
        """Calls what takes a step, to compile it; sums are zeros, and nothing comes of it."""
        self._attempt = Attempt(step, view, failed=True)
        call(view)
        self._attempt = None

    def say(self, island: Island, message: Message) -> None:
        """Sends a message between the state machines, in another thread."""
        self._sends.put(lambda: self._tell(island, message))

    def later(self, rank: int, lane: Lane, head: Head) -> None:
        """Asks an island for something, in another thread; the newcomer is told if it cannot be asked."""

        def send() -> None:
            reached = self._links.send(rank, lane, head, [], self.silent_s)
            listens = reached or not self._links.refuses(rank)
            with self.lock:
                newcomer = self.newcomer
                if newcomer is not None and reached:
                    newcomer.asked(rank)
                elif newcomer is not None:
                    newcomer.unreached(rank, listens=listens)

        self._sends.put(send)

    def _resolved(self, attempt: Attempt) -> bool:
        """Finds out what became of a step that this island holds, after a change of views."""
        with self.lock:
            if attempt.error is not None:
                self._attempt = None
                raise attempt.error
            self._await(lambda: self._is_settled() and self.view != attempt.view, "tell what became of a step")
            return self._settle()

    def hold(self) -> None:
        """Tells the others that this island has all that the step needs of them: what is left it computes alone.

        So the news travels while that is computed.
        """
        attempt = self._attempt
        assert attempt is not None
        with self.lock:
            if attempt.failed or attempt.held or attempt.error is not None or self.view is not attempt.view:
                return
            attempt.held = True
        head = (attempt.view.number, attempt.step, _CONFIRM)
        self._mail.traffic.post([other.rank for other in self._others(attempt.view)], head, [])

    def _confirmed(self, attempt: Attempt) -> bool:
        """Waits until all tell that they hold the step; False if the view has changed."""
        self.hold()
        if not attempt.held:
            return False
        got = self._awaited(attempt, (attempt.view.number, attempt.step, _CONFIRM))
        with self.lock:
            if got is None or self.view is not attempt.view:
                return False
            self._attempt = None
            self._commit()
            return True

    def _commit(self) -> None:
        self._committed += 1
        self._mail.forget(self.view.number, self._committed)

    def _await(
        self,
        ready: Callable[[], bool],
        what: str,
        whom: Callable[[], list[Island]] | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """Waits until `ready()`: under the lock, or by `wait` without it.

        Raises:
          ClusterError: this island was left out of a view.
          DeadlineError: the others take too long.
        """
        end = time.monotonic() + self.timeout_s
        while not ready():
            self.check_part()
            if time.monotonic() > end:
                told = self._progress.of(self.view)
                late = whom() if whom else [member for member in self.view.members if member not in told]
                names = ", ".join(f"island {island.rank}" for island in late) or "the others"
                doubted = self.membership.suspected & set(self.view.members)
                silent = f" Silent: {sorted(island.rank for island in doubted)}." if doubted else ""
                raise DeadlineError(
                    f"island {self.me.rank} has waited {self.timeout_s:g} s for {names} to {what}.{silent} HINT: look "
                    "at what they print; give more time with timeout_s=."
                )
            (wait or self.lock.wait)(min(_TICK_S, max(end - time.monotonic(), 0.001)))
        if self.membership.state is State.FENCED:
            raise ClusterError(
                f"island {self.me.rank} was left out of view {self.view.number} by the others. HINT: end this process."
            )

    def check_part(self) -> None:
        """Checks that this island may still take part.

        Raises:
          ClusterError: it was left out, or has left.
        """
        if self.membership.state is State.FENCED:
            raise ClusterError(
                f"island {self.me.rank} was silent for more than {self.silent_s:g} s, and the others go on without "
                "it. HINT: end this process; if islands are often as slow as this, give more time with silent_s=."
            )
        if self._closed:
            raise ClusterError(f"island {self.me.rank} has left the others. HINT: make a new strategy.")

    # The other threads.

    def _heard(self, island: Island, lane: Lane, head: Head, data: bytearray) -> None:
        if lane is Lane.JOURNAL:
            self._heard_of_journal(island, head, data)
            return
        with self.lock:
            self._presence.found(island)
            message, status = decoded(data)
            was_settled = self._is_settled()
            if status is not None:
                self._progress.hear(message.number, island, status)
            sends = self.membership.receive(island, message, time.monotonic())
            # A mere sign of life wakes nobody.
            if sends or not (was_settled and self._is_settled()):
                self._after(sends)

    def _received(self, island: Island, head: Head, data: memoryview) -> None:
        """Takes what an island gives to a step, or holds of it; in the thread that waits for that."""
        self._presence.heard(island)
        entered = self._progress.entered
        if entered is None or head[0] >= entered.number:
            self._mail.take(island, head, data)

    def _heard_of_journal(self, island: Island, head: Head, data: bytearray) -> None:
        if head[2] == ASKS:
            told, parts = answer(self, head[0])
            # In the thread of this newcomer's connection: nothing else waits for it.
            self._links.send(island.rank, Lane.JOURNAL, told, [parts], self.silent_s)
            return
        with self.lock:
            if self.newcomer is not None:
                self.newcomer.heard(island, head, data)
                self.lock.notify_all()

    def _lost(self, island: Island, proved: bool) -> None:
        with self.lock:
            if proved:
                self._after(self.membership.proved_dead(island, time.monotonic()))
            else:
                self._presence.lose(island)

    def _after(self, sends: Sequence[Send]) -> None:
        """Takes note of what the state machine has decided, and sends what it says."""
        for send in sends:
            self.say(*send)
        view = self.membership.view
        if view is not None and view is not self._progress.entered:
            attempt = self._attempt
            held = attempt.view.number if attempt is not None and attempt.held else -1
            own = Status(self._committed, held) if self.newcomer is None else Status(-1)
            self._progress.enter(view, own)
            for send in self.membership.signs():
                self.say(*send)
        self._notify()

    def _notify(self) -> None:
        self.lock.notify_all()
        self._mail.traffic.wake()

    def _watch(self) -> None:
        """Tells the others that this island lives, and notices who does not."""
        every_s, signed = min(_SIGN_S, self.silent_s / 8), -math.inf
        while not self._closed:
            with self.lock:
                now = time.monotonic()
                sends = self.membership.tick(now)
                if now - signed > every_s or not self._is_settled():
                    signed = now
                    for send in self.membership.signs():
                        self.say(*send)
                members = self.membership.view.members if self.membership.view is not None else ()
                for member in self._presence.silent([m for m in members if m != self.me], now, self.silent_s):
                    sends += self.membership.suspect(member, now)
                if sends or not self._is_settled():
                    self._after(sends)
                broken = self._presence.broken(members)
                late = self.newcomer is not None and self.newcomer.is_late(now)
            for island in broken:
                if self._links.proves_dead(island):
                    self._presence.end(island)
                    self._lost(island, proved=True)
            if late:
                # The others wait for it: they go on at once when it is gone.
                self.close()
            time.sleep(_TICK_S)

    def _speak(self) -> None:
        """Sends what the state machine says; a thread of its own, as an island that is stopped takes nothing."""
        while (send := self._sends.get()) is not None:
            send()

    def _tell(self, island: Island, message: Message) -> None:
        with self.lock:
            status = self._progress.own(message.number) if message.kind is Kind.ALIVE else None
        self._links.send(island.rank, Lane.CONTROL, (0, 0, 0), [encoded(message, status)], _CONTROL_S)


def teller(before: View, view: View) -> Island | None:
    """The island that tells of a change, once for all: the first of those that know of both views."""
    return min(set(before.members) & set(view.members), default=None)


def change(before: View, view: View) -> str:
    """Says who is gone, who has come, and who goes on.

    Args:
      before: the view before, or one without members.
      view: the new one.
    """
    gone = [member for member in before.members if member not in view.members]
    came = [member for member in view.members if before.members and member not in before.members]
    changes = [f"{_names(gone)} gone"] if gone else []
    changes += [f"{_names(came)} there"] if came else []
    names, _, verb = _names(view.members).rpartition(" ")
    goes_on = f"{names} train{'s on alone' if verb == 'is' else ' together from here on'} (view {view.number})"
    return "; ".join([*changes, goes_on])


def _names(members: Sequence[Island]) -> str:
    ranks = ", ".join(str(member.rank) for member in members)
    return f"islands {ranks} are" if len(members) > 1 else f"island {ranks} is"


def _tell(text: str) -> None:
    sys.stderr.write(f"jaxtribute: {text}\n")
