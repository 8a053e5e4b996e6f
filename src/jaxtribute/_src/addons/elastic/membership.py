"""Agreement on who trains together: one state machine for each island, without sockets and without a clock of its own.

Islands agree on *views*. A view has a number, its members, and its *exiles*: members of earlier views that were left
out without proof that they are dead. The members of a view are the acceptors of the next number (Paxos): a proposal is
decided once a quorum of them has accepted it, so that no number has two views with living members. A quorum is more
than half of the members, or half of them with the lowest, or all that are not proved dead. The last makes the two ends
meet: of islands that die one after the other, the last one goes on alone, while an island that is merely silent is
never overtaken by fewer than half.

Two rules keep the last kind of quorum safe. A view with exiles takes in nobody: if all its members die, no newcomer is
left who would go on while the exiles, who have proof that all others are dead, go on as well. And a process that has
left a view never acts under its old name again: it joins as another incarnation, which proves the old one dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple


class Island(NamedTuple):
    """An island's name: its rank, and how often its process had been started before."""

    rank: int
    incarnation: int = 0


class Ballot(NamedTuple):
    """Number of a proposal: no two islands share one."""

    round: int
    by: Island


_NO_BALLOT = Ballot(-1, Island(-1, -1))


@dataclass(frozen=True)
class View:
    """Islands that train together.

    Attributes:
      number: one more than that of the view before.
      members: in the order of their ranks.
      exiles: members of earlier views, left out without proof that they are dead.
    """

    number: int
    members: tuple[Island, ...]
    exiles: tuple[Island, ...] = ()


class State(Enum):
    """States of an island: what it may do."""

    OUTSIDE = "in no view yet: it follows the others until it is taken in"
    STEADY = "in a view whose members are all thought to be alive"
    CHANGING = "in a view that is about to be replaced"
    FENCED = "left out of a view: it must stop, and may join as another incarnation"


class Kind(Enum):
    """Kinds of messages."""

    PREPARE = "prepare"
    PROMISE = "promise"
    ACCEPT = "accept"
    ACCEPTED = "accepted"
    DECIDED = "decided"
    JOIN = "join"
    ALIVE = "alive"


@dataclass(frozen=True)
class Message:
    """A message between two machines.

    Attributes:
      kind: what it says.
      number: of the view that it is about; of `DECIDED` and `JOIN` the view's own.
      ballot: the proposal's.
      view: the proposal, what was accepted before, or what was decided.
      earlier: the ballot under which a promise's `view` was accepted.
    """

    kind: Kind
    number: int
    ballot: Ballot = _NO_BALLOT
    view: View | None = None
    earlier: Ballot = _NO_BALLOT


@dataclass
class _Proposal:
    """A ballot of this island's own."""

    ballot: Ballot
    expires: float
    promises: dict[Island, Message] = field(default_factory=dict[Island, Message])
    value: View | None = None
    accepted: set[Island] = field(default_factory=set[Island])


Send = tuple[Island, Message]


class Membership:
    """One island's part in the agreement.

    Every method returns the messages to send. `view` and `state` tell the decisions.

    Args:
      me: this island.
      view: the first view; None for an island that joins.
      patience_s: seconds after which a proposal is made anew.
    """

    def __init__(self, me: Island, view: View | None, patience_s: float = 0.5) -> None:
        self.me, self.view, self._patience_s = me, view, patience_s
        self.fenced = False
        self.dead: set[Island] = set()
        self.suspected: set[Island] = set()
        self._joining: set[Island] = set()
        self._promised = _NO_BALLOT
        self._accepted: tuple[Ballot, View] | None = None
        self._proposal: _Proposal | None = None
        self._round = 0

    def begin(self, first: View) -> None:
        """Takes a first view, which all its members know of by other means."""
        self.view = first

    @property
    def state(self) -> State:
        """State of this island: what it may do."""
        if self.fenced:
            return State.FENCED
        if self.view is None:
            return State.OUTSIDE
        changing = self._promised != _NO_BALLOT or not self._doubted.isdisjoint(self.view.members)
        return State.CHANGING if changing else State.STEADY

    @property
    def _doubted(self) -> set[Island]:
        return self.dead | self.suspected

    def proved_dead(self, island: Island, now: float) -> list[Send]:
        """Takes note of a proof that an island will never act again."""
        self.dead.add(island)
        self._joining.discard(island)
        return self.tick(now)

    def suspect(self, island: Island, now: float) -> list[Send]:
        """Takes note that an island is silent."""
        self.suspected.add(island)
        return self.tick(now)

    def heard(self, island: Island) -> None:
        """Takes note of a sign of life."""
        self.suspected.discard(island)

    def signs(self) -> list[Send]:
        """Signs of life for the other members, who answer with a newer view if there is one."""
        if self.view is None or self.fenced:
            return []
        alive = Message(Kind.ALIVE, self.view.number)
        return [(member, alive) for member in self.view.members if member != self.me]

    def tick(self, now: float) -> list[Send]:
        """Proposes a new view if one is wanted and it falls to this island; to be called from time to time."""
        view = self.view
        if view is None or self.fenced or not self._wants_change(view):
            return []
        # The lowest that nobody doubts proposes. Where they disagree on who that is, ballots decide.
        candidates = [member for member in view.members if member not in self._doubted]
        if not candidates or candidates[0] != self.me:
            return []
        if self._proposal is not None and now < self._proposal.expires:
            return []
        self._round = max(self._round, self._promised.round) + 1
        ballot = Ballot(self._round, self.me)
        # Others wait in the order of their ranks before they try again, so that they do not outbid each other for ever.
        patience = self._patience_s * (1 + view.members.index(self.me))
        self._proposal = _Proposal(ballot, now + patience)
        prepare = Message(Kind.PREPARE, view.number + 1, ballot)
        return self._to(view.members, prepare, now)

    def receive(self, sender: Island, message: Message, now: float) -> list[Send]:
        """Takes a message."""
        if self.fenced or sender in self.dead:
            return []
        self.suspected.discard(sender)
        if message.kind is Kind.DECIDED:
            assert message.view is not None
            return self._install(message.view, now)
        if message.kind is Kind.JOIN:
            return self._asked_to_join(sender, now)
        view = self.view
        if view is None or message.number > view.number + 1:
            return []
        if message.kind is Kind.ALIVE:
            late = message.number < view.number
            return [(sender, Message(Kind.DECIDED, view.number, view=view))] if late else []
        if message.number <= view.number:
            # Whoever proposes what is decided already has missed it.
            if message.kind in (Kind.PREPARE, Kind.ACCEPT):
                return [(sender, Message(Kind.DECIDED, view.number, view=view))]
            return []
        if message.kind is Kind.PREPARE:
            return self._prepare(sender, message, now)
        if message.kind is Kind.PROMISE:
            return self._promise(sender, message, now)
        if message.kind is Kind.ACCEPT:
            return self._accept(sender, message, now)
        return self._count(sender, message, now)

    def _asked_to_join(self, sender: Island, now: float) -> list[Send]:
        view = self.view
        if view is None:
            return []
        if sender in view.members or sender in view.exiles:
            return [(sender, Message(Kind.DECIDED, view.number, view=view))]
        # Nobody starts a process anew before the old one has ended.
        known = (*view.members, *view.exiles, *self._joining)
        older = [island for island in known if island.rank == sender.rank and island < sender]
        self.dead.update(older)
        self._joining.difference_update(older)
        self._joining.add(sender)
        return self.tick(now)

    def _prepare(self, sender: Island, message: Message, now: float) -> list[Send]:
        if message.ballot < self._promised:
            return []
        self._promised = message.ballot
        earlier, value = self._accepted or (_NO_BALLOT, None)
        return self._to([sender], Message(Kind.PROMISE, message.number, message.ballot, value, earlier), now)

    def _promise(self, sender: Island, message: Message, now: float) -> list[Send]:
        proposal, view = self._proposal, self.view
        assert view is not None
        if proposal is None or proposal.ballot != message.ballot or proposal.value is not None:
            return []
        proposal.promises[sender] = message
        # Whoever is thought to be alive is waited for: a bare quorum would leave out the slower ones.
        awaited = set(view.members) - self._doubted
        if not awaited <= proposal.promises.keys() or not self.is_quorum(proposal.promises):
            return []
        proposal.value = self._bound_to(proposal) or self._wanted(view, proposal.promises)
        accept = Message(Kind.ACCEPT, message.number, proposal.ballot, proposal.value)
        return self._to(list(proposal.promises), accept, now)

    def _bound_to(self, proposal: _Proposal) -> View | None:
        """The view that may have been decided already, and must be proposed again."""
        before = max(proposal.promises.values(), key=lambda promise: promise.earlier)
        value = before.view
        if value is None or not self._takes_in(value):
            return value
        # Every member that goes on has to accept such a view: if one has not, it is not decided, nor will be.
        accepted = {member for member, promise in proposal.promises.items() if promise.view == value}
        return value if proposal.promises.keys() & set(value.members) <= accepted else None

    def _takes_in(self, value: View) -> bool:
        """True if a proposal has members that the view before has not."""
        assert self.view is not None
        return not set(value.members) <= set(self.view.members)

    def _wanted(self, view: View, promised: Iterable[Island]) -> View:
        """The view after `view`, as this island proposes it."""
        members = set(promised) - self._doubted
        left = set(view.members) - members - self.dead
        exiles = (set(view.exiles) - self.dead) | left
        if not exiles:
            members |= self._joining - self._doubted
        return View(view.number + 1, tuple(sorted(members)), tuple(sorted(exiles)))

    def _accept(self, sender: Island, message: Message, now: float) -> list[Send]:
        if message.ballot < self._promised:
            return []
        assert message.view is not None
        self._promised = message.ballot
        self._accepted = message.ballot, message.view
        return self._to([sender], replace(message, kind=Kind.ACCEPTED, view=None), now)

    def _count(self, sender: Island, message: Message, now: float) -> list[Send]:
        proposal, view = self._proposal, self.view
        assert view is not None
        if proposal is None or proposal.ballot != message.ballot or proposal.value is None:
            return []
        proposal.accepted.add(sender)
        decided = proposal.value
        if not self.is_quorum(proposal.accepted):
            return []
        # Newcomers hear of the decision from the proposer alone. If a member that goes on had not accepted, and all
        # others died, it would decide on this number again, without them.
        going_on = set(view.members).intersection(decided.members) - self.dead
        if self._takes_in(decided) and not going_on <= proposal.accepted:
            return []
        everyone = dict.fromkeys((*view.members, *decided.members))
        sends = self._to([other for other in everyone if other != self.me], _decision(decided), now)
        return [*sends, *self._install(decided, now)]

    def is_quorum(self, islands: Iterable[Island]) -> bool:
        """True if these members of the view suffice to decide what comes after it."""
        assert self.view is not None
        members = set(self.view.members)
        have = members.intersection(islands)
        if 2 * len(have) > len(members) or members - self.dead <= have:
            return True
        return 2 * len(have) == len(members) and min(members) in have

    def _install(self, view: View, now: float) -> list[Send]:
        if self.view is not None and view.number <= self.view.number:
            return []
        if self.view is None and self.me not in view.members:
            # Decided before this island had asked; or it was taken in and left out again before it heard of it.
            self.fenced = self.me in view.exiles
            return []
        self.view, self._proposal = view, None
        self._promised, self._accepted = _NO_BALLOT, None
        self._joining.difference_update(view.members)
        self.fenced = self.me not in view.members
        return self.tick(now)

    def _wants_change(self, view: View) -> bool:
        if self._promised != _NO_BALLOT or not self._doubted.isdisjoint(view.members):
            return True
        # Exiles that have been proved dead since are let go, so that others can be taken in again.
        return bool(self._joining - self._doubted) and not set(view.exiles) - self.dead

    def _to(self, receivers: Sequence[Island], message: Message, now: float) -> list[Send]:
        """Messages to others; what goes to this island itself is dealt with at once."""
        sends = [(receiver, message) for receiver in receivers if receiver != self.me]
        if self.me in receivers:
            sends += self.receive(self.me, message, now)
        return sends


def _decision(view: View) -> Message:
    return Message(Kind.DECIDED, view.number, view=view)
