"""`Newcomer`: how an island that was started again comes to where the others are.

It runs its program from the start. Each step that the others have committed gives it what their journal says, in place
of being computed. At the journal's end it asks to be taken in. The islands of the new view settle what they have
committed; one of them sends the values of all variables; and the newcomer takes its next step with them. They wait for
it from the view on, not before.

If all islands are newcomers that know nothing, as where a scheduler has started every machine again, none can join the
others: they begin again together. Each tells the others which process of each island it knows of; an island begins once
all have told it the same as it tells itself, and tells whoever asks then. No two such beginnings have living members:
what an island tells changes only if a later process of another one is there, and one that has begun tells nothing else.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxtribute._src.addons.elastic.journal import Entry, entries_in
from jaxtribute._src.addons.elastic.links import Lane
from jaxtribute._src.addons.elastic.membership import Island, Kind, Message, View
from jaxtribute._src.addons.elastic.showing import shown_short
from jaxtribute._src.addons.elastic.traffic import Head
from jaxtribute.errors import ClusterError, DeadlineError

if TYPE_CHECKING:
    from jaxtribute._src.addons.elastic.exchange import Islands

_ASK_S = 0.02
_AGAIN_S = 0.5
"""Seconds after which an island that does not answer is asked again: what it has said may be lost with a connection."""
_JOIN_S = 0.2
_START_S = 30.0
"""Seconds in which islands of other hosts, that may have been started with this one, may begin to listen."""
_NEAR_START_S = 1.0
"""The same for those of this host: whoever trains there has listened since long before this one was started."""
ASKS, ANSWERS, REFUSES, STATE = range(4)
"""Kinds of messages between a newcomer and the others: the third number of its head."""
_UNKNOWN = -1
"""The number of a process that an island has not heard of."""


class Newcomer:
    """The part of an island that joins, until it has.

    Args:
      islands: this island.
      limit_s: seconds that the others wait for it once they have sent the state.
    """

    def __init__(self, islands: Islands, limit_s: float) -> None:
        self._islands, self._limit_s = islands, limit_s
        self.position = 0
        """The number of steps that the program has been given."""
        self.view: View | None = None
        """The view of the last step that is known."""
        self._reads: dict[int, Any] = {}
        self._end = -1
        """The number of steps that the others had committed when they last answered."""
        self._whom = 0 if islands.me.rank else 1
        """The rank of the island that is asked."""
        self._waiting_since: float | None = None
        self._asked_at = 0.0
        self._asked_to_join = 0.0
        self._refusals: dict[int, str] = {}
        self._blank: dict[int, tuple[Island, tuple[int, ...]]] = {}
        """Islands that know nothing either, and the processes of all islands that they know of; by rank."""
        self.first: View | None = None
        """The view in which all islands begin again, once they know that none of them knows anything."""
        self._has_met: set[int] = set()
        """The ranks that have been reached, and have ended if nobody listens there any more."""
        self._began = time.monotonic()
        self._state: tuple[int, int, bytearray] | None = None
        self._waited_for_since: float | None = None
        """The time at which an island had sent the state: it does so when it begins the step in which it waits."""
        self._rehearsed: set[str] = set()

    # What the program asks.

    def begin(self) -> None:
        """Waits until another island has told what it has done, or all are to begin again.

        Raises:
          ClusterError: no other island trains.
          DeadlineError: none answers.
        """
        with self._islands.lock:
            self._until(lambda: self._end >= 0 or self.first is not None, "tell what they have done")

    def next(self, signature: str, rehearse: Callable[[View], Any] | None) -> Entry | None:
        """Returns what the next step has given; None once this island takes it itself, with the others.

        Args:
          signature: says what step it is.
          rehearse: compiles the step for a view.

        Raises:
          ClusterError: the others have taken another step, or their journal does not have its result.
          DeadlineError: they do not take this island in.
        """
        islands = self._islands
        with islands.lock:

            def known() -> bool:
                at_end = self.position == self._end
                if at_end and signature in self._rehearsed:
                    self._join()
                    at_end = False
                return self._is_known() or self._is_due() or at_end

            self._until(known, f"take this island in at step {self.position}")
            if self._is_known():
                return self._entry(signature)
            due = self._state if self._is_due() else None
        if due is not None:
            step, _, state = due
            # Without the lock: for a large state it takes long, and the others must hear of this island meanwhile.
            islands.bind(state)
            with islands.lock:
                if self._state is due and self._is_due():  # and not another view's
                    islands.joined(step)
                    return None
            return self.next(signature, rehearse)
        # Without the lock: the others must hear of this island meanwhile. They are ahead afterwards.
        self._rehearsed.add(signature)
        if rehearse is not None:
            islands.rehearse(self.position, self._next_view(), rehearse)
        return self.next(signature, None)

    def read(self, variable: int, name: str) -> Any:
        """Returns what the program reads of a variable at this position.

        Raises:
          ClusterError: the others have not read it there, or it was too large to be kept.
        """
        islands = self._islands
        with islands.lock:

            def known() -> bool:
                return variable in self._read_here() or self._is_known()

            self._until(known, f"read {name} as this island does")
            value = self._read_here().get(variable)
        if value is None:
            raise ClusterError(
                f"{name} is read between steps {self.position - 1} and {self.position}, by an island that joins and "
                "has not computed it. HINT: return the value from the jd.function of the step (at most 64 KiB), and "
                "let all islands read it alike; save checkpoints on an island that has not joined."
            )
        return value

    # Under the lock.

    def _is_known(self) -> bool:
        return self.position < len(self._islands.journal)

    def _read_here(self) -> dict[int, Any]:
        return self._islands.journal.entries[self.position].reads if self._is_known() else self._reads

    def _entry(self, signature: str) -> Entry:
        islands = self._islands
        entry = islands.journal.entries[self.position]
        if entry.problem:
            raise ClusterError(
                f"island {islands.me.rank} cannot join: {entry.problem}. HINT: return small values from steps, and let "
                "the other islands go on without this one, or start the job anew from a checkpoint."
            )
        if entry.signature != signature:
            raise ClusterError(
                f"island {islands.me.rank} joins, and its program takes step {self.position} as {signature!r}, and the "
                f"others took it as {entry.signature!r}. HINT: all islands must run the same program, with the same "
                "data; look for a branch that depends on the rank or on time."
            )
        self.position += 1
        islands.journal.reads = {}
        self.view = entry.view
        return entry

    def _until(self, ready: Callable[[], bool], what: str) -> None:
        """Waits until `ready()`, and asks the others meanwhile for what comes next."""
        islands = self._islands
        end, asked = time.monotonic() + islands.timeout_s, 0.0
        while not ready():
            islands.check_part()
            if len(self._refusals) == islands.others and len(self._blank) < islands.others:
                alone = ClusterError(
                    f"island {islands.me.rank} was started again, and no other island trains: "
                    f"{'; '.join(self._refusals.values())}. HINT: if they have not finished, start the job anew, from "
                    "its last checkpoint."
                )
                raise shown_short(alone)
            if time.monotonic() > end:
                raise DeadlineError(
                    f"island {islands.me.rank}, which was started again, has waited {islands.timeout_s:g} s for the "
                    f"others to {what}. HINT: look at what they print; give more time with timeout_s=."
                )
            # An answer ends the wait: to ask again at once, though nothing is new, would keep the other one busy.
            if len(islands.journal) < self._end or time.monotonic() - asked > _ASK_S:
                asked = time.monotonic()
                self._ask()
            islands.lock.wait(_ASK_S)

    def _ask(self) -> None:
        """Asks an island for the steps after those that are known; the next one if it does not answer for long."""
        islands, now = self._islands, time.monotonic()
        if self._waiting_since is not None and now - self._waiting_since > islands.silent_s:
            self.refused(self._whom, f"island {self._whom} does not answer")
        if self._waiting_since is None:
            self._waiting_since = now
        elif now - self._asked_at < _AGAIN_S:
            return
        self._asked_at = now
        islands.later(self._whom, Lane.JOURNAL, (len(islands.journal), 0, ASKS))

    def _join(self) -> None:
        """Asks to be taken in."""
        islands, now = self._islands, time.monotonic()
        if islands.membership.view is None and now - self._asked_to_join > _JOIN_S:
            self._asked_to_join = now
            for member in self._next_view().members:
                if member != islands.me:
                    islands.say(member, Message(Kind.JOIN, 0))

    def _next_view(self) -> View:
        """The view that this island may be taken into."""
        assert self.view is not None
        others = [member for member in self.view.members if member.rank != self._islands.me.rank]
        return View(self.view.number + 1, tuple(sorted([*others, self._islands.me])))

    def _is_due(self) -> bool:
        """True if an island has sent the state before the next step, of the present view."""
        view, state = self._islands.membership.view, self._state
        return view is not None and state is not None and state[:2] == (self.position, view.number)

    # What the other threads tell.

    def heard(self, island: Island, head: Head, data: bytearray) -> None:
        """Takes what an island answers."""
        first, second, kind = head
        if kind == STATE:
            self._state = first, second, data
            return
        if kind == REFUSES:
            self.refused(island.rank, f"island {island.rank} was started again as well")
            if data and self._end < 0 and self.first is None:
                self._compare(island, struct.unpack(f"!{len(data) // 8}q", data))
            return
        self._refusals.pop(island.rank, None)
        self._blank.pop(island.rank, None)
        self._waiting_since = None
        if second < self._end:  # asked again, an island's earlier answer may come later
            return
        journal = self._islands.journal
        for number, entry in enumerate(entries_in(data), first):
            if not entry.signature:
                if self._end < 0 and self._islands.me in entry.view.members:
                    self.first = entry.view
                    return
                self._reads, self.view = entry.reads, entry.view
            elif number == len(journal):
                journal.add(entry)
        self._end = second

    def processes(self) -> tuple[int, ...]:
        """The processes that this island knows of, by rank, while it knows nothing else; empty once it does."""
        if self._end >= 0 or not self._islands.far:
            return ()
        known = {rank: island.incarnation for rank, (island, _) in self._blank.items()}
        known[self._islands.me.rank] = self._islands.me.incarnation
        return tuple(known.get(rank, _UNKNOWN) for rank in range(self._islands.others + 1))

    def _compare(self, island: Island, told: tuple[int, ...]) -> None:
        """Takes note of the processes that another island knows of; if all know the same ones, they begin again."""
        before = self._blank.get(island.rank)
        if before is None or before[0] <= island:
            self._blank[island.rank] = island, told
        own = self.processes()
        if _UNKNOWN not in own and all(told == own for _, told in self._blank.values()):
            self.first = View(0, tuple(Island(*each) for each in enumerate(own)))

    def asked(self, rank: int) -> None:
        """Takes note that an island was reached."""
        self._has_met.add(rank)

    def unreached(self, rank: int, *, listens: bool) -> None:
        """Takes note that an island could not be asked; if nobody listens there, it has ended, or has yet to begin."""
        grace_s = min(_START_S if self._islands.far else _NEAR_START_S, self._islands.timeout_s / 2)
        has_ended = not listens and (rank in self._has_met or time.monotonic() - self._began > grace_s)
        if has_ended and self.first is None:
            self._blank.pop(rank, None)
        self.refused(rank, f"island {rank} has ended" if has_ended else "")

    def refused(self, rank: int, why: str) -> None:
        """Takes note that an island does not answer, and why if it never will; another one will be asked."""
        if why:
            self._refusals[rank] = why
        if rank == self._whom:
            self._waiting_since = None
            ranks = [each for each in range(self._islands.others + 1) if each != self._islands.me.rank]
            self._whom = next((each for each in ranks if each > rank), ranks[0])

    def is_late(self, now: float) -> bool:
        """True if the others have waited for this island for too long."""
        if self._islands.membership.view is None or self._state is None:
            self._waited_for_since = None
        elif self._waited_for_since is None:
            self._waited_for_since = now
        return self._waited_for_since is not None and now - self._waited_for_since > self._limit_s


def answer(islands: Islands, first: int) -> tuple[Head, bytes]:
    """Answers a newcomer that asks for the steps from a number on."""
    with islands.lock:
        newcomer = islands.newcomer
        view = islands.membership.view if newcomer is None else None
        processes = () if newcomer is None else newcomer.processes()
    if view is None:
        return (0, 0, REFUSES), struct.pack(f"!{len(processes)}q", *processes)
    # Without the lock: what was computed last may take a while, and steps go on meanwhile.
    count, entries = islands.journal.answer(first, view)
    return (first, count, ANSWERS), entries
