"""Membership over a network and a clock that are simulated: kills, delays, losses, partitions, returns."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from jaxtribute._src.addons.elastic.membership import Ballot, Island, Kind, Membership, Message, Send, State, View

TICK_S = 0.25
SILENT_S = 1.0


class Network:
    """Islands on a simulated network.

    Args:
      seed: of all chances.
      islands: how many there are at first.
    """

    def __init__(self, seed: int, islands: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        first = View(0, tuple(Island(rank) for rank in range(islands)))
        self.alive = {island: Membership(island, first) for island in first.members}
        self.next_incarnation = dict.fromkeys(range(islands), 1)
        self.events: list[tuple[float, int, object]] = []
        self.numbers = itertools.count()
        self.cut: set[frozenset[int]] = set()
        self.paused: set[Island] = set()
        self.heard: dict[tuple[Island, Island], float] = {}
        self.loss = 0.0
        self.slowest_s = 0.05
        self.ever: dict[int, dict[View, None]] = {0: {first: None}}
        """The views that anybody has installed, by their numbers."""

    def kill(self, island: Island) -> None:
        """Ends a process; the others see its connections close, each in its own time."""
        if self.alive.pop(island, None) is None:
            return
        self.paused.discard(island)
        for other in self.alive:
            self.at(self.delay(), ("closed", other, island))

    def start(self, rank: int) -> None:
        """Starts a rank anew if its process has ended."""
        if all(island.rank != rank for island in self.alive):
            island = Island(rank, self.next_incarnation[rank])
            self.next_incarnation[rank] += 1
            self.alive[island] = Membership(island, None)

    def delay(self) -> float:
        return self.chance.uniform(0.001, self.slowest_s)

    def at(self, delay: float, event: object) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.numbers), event))

    def send(self, sender: Island, sends: list[Send]) -> None:
        for receiver, message in sends:
            if self.chance.random() >= self.loss:
                self.at(self.delay(), ("message", sender, receiver, message))

    def reachable(self, one: Island, other: Island) -> bool:
        return frozenset((one.rank, other.rank)) not in self.cut

    def run(self, seconds: float) -> None:
        """Lets time pass, and checks after each event what must always hold."""
        end = self.now + seconds
        while self.now < end:
            until = min(end, self.now + TICK_S)
            while self.events and self.events[0][0] <= until:
                self.now, _, event = heapq.heappop(self.events)
                self.deal_with(event)
                self.check()
            self.now = until
            for island in sorted(self.alive.keys() - self.paused):
                self.turn(island)
                self.check()

    def deal_with(self, event: object) -> None:
        match event:
            case ("closed", Island() as island, Island() as other):
                if island not in self.alive:
                    return
                if island in self.paused or not self.reachable(island, other):
                    self.at(TICK_S, event)  # it is seen once it can be
                else:
                    self.send(island, self.alive[island].proved_dead(other, self.now))
            case ("message", Island() as sender, Island() as receiver, Message() as message):
                if receiver not in self.alive or not self.reachable(sender, receiver):
                    return
                if receiver in self.paused:
                    self.at(TICK_S, event)
                    return
                self.heard[receiver, sender] = self.now
                self.send(receiver, self.alive[receiver].receive(sender, message, self.now))
            case _:
                raise AssertionError(event)

    def turn(self, island: Island) -> None:
        """What an island's own loop does from time to time."""
        membership = self.alive[island]
        if membership.state is State.OUTSIDE:
            join = Message(Kind.JOIN, -1)
            self.send(island, [(other, join) for other in self.alive if other != island])
            return
        if membership.state is State.FENCED or membership.view is None:
            return
        self.send(island, membership.signs())
        for other in membership.view.members:
            if other != island and self.now - self.heard.setdefault((island, other), self.now) > SILENT_S:
                self.send(island, membership.suspect(other, self.now))
        self.send(island, membership.tick(self.now))

    def check(self) -> None:
        """What must hold at any time: views of one number with living members are equal."""
        views: dict[int, View] = {}
        for island, membership in self.alive.items():
            view = membership.view
            if view is None:
                continue
            if membership.state is not State.FENCED:
                assert island in view.members
            assert views.setdefault(view.number, view) == view, f"{island}: {view} and {views[view.number]}"
            self.ever.setdefault(view.number, {})[view] = None
        committed = self.committing()
        assert len(set(committed)) <= 1, committed

    def committing(self) -> list[View]:
        """The views in which a step can be committed now: those that all of their members are in, and may act in."""
        ready: list[View] = []
        for membership in self.alive.values():
            view = membership.view
            if view is None or membership.state is State.FENCED:
                continue
            others = [self.alive.get(member) for member in view.members]
            if all(other is not None and other.view == view and not other.fenced for other in others):
                ready.append(view)
        return ready

    def agreed(self) -> bool:
        """True if all that live and are not fenced are steady in one view, which is theirs."""
        acting = {island: one for island, one in self.alive.items() if one.state is not State.FENCED}
        views = {one.view for one in acting.values()}
        (view,) = views if len(views) == 1 else (None,)
        return view is not None and set(view.members) == set(acting)


def disturb(network: Network, what: str, ranks: list[int]) -> None:
    """One disturbance."""
    by_rank = {island.rank: island for island in network.alive}
    present = [by_rank[rank] for rank in ranks if rank in by_rank]
    match what:
        case "kill":
            for island in present[: max(1, len(network.alive) - 1)]:
                network.kill(island)
        case "start":
            for rank in ranks:
                network.start(rank)
        case "pause":
            network.paused.update(present)
        case "resume":
            network.paused.difference_update(present)
        case "cut":
            inside = set(ranks)
            pairs = itertools.combinations(network.next_incarnation, 2)
            network.cut = {frozenset(pair) for pair in pairs if len(inside.intersection(pair)) == 1}
        case "heal":
            network.cut = set()
        case "lossy":
            network.loss = 0.2
        case "slow":
            network.slowest_s = 0.4
        case _:
            raise AssertionError(what)


KINDS = ("kill", "kill", "start", "start", "pause", "resume", "cut", "heal", "lossy", "slow")


def settle(network: Network, seconds: float = 30.0) -> None:
    """Ends all disturbances, ends fenced processes and starts the killed again, until all agree."""
    network.cut, network.paused, network.loss, network.slowest_s = set(), set(), 0.0, 0.05
    end = network.now + seconds
    while network.now < end:
        network.run(0.5)
        for island in [island for island, one in network.alive.items() if one.state is State.FENCED]:
            network.kill(island)
        for rank in network.next_incarnation:
            network.start(rank)
        if not insider(network):
            # All of the newest view have died, and those that it left out have heard of it: nobody has the state.
            newest = network.ever[max(network.ever)]
            assert not any(member in network.alive for view in newest for member in view.members)
            return
        if network.agreed() and len(network.alive) == len(network.next_incarnation):
            return
    raise AssertionError({island: (one.state, one.view, one.dead) for island, one in network.alive.items()})


def history(seed: int) -> Network:
    """A network that some disturbances came over, at random moments."""
    chance = random.Random(seed)
    islands = chance.choice((1, 2, 3, 3, 4, 5))
    network = Network(seed, islands)
    for _ in range(chance.randint(1, 12)):
        ranks = chance.sample(range(islands), chance.randint(1, max(1, (islands + 1) // 2)))
        disturb(network, chance.choice(KINDS), ranks)
        # Mostly in the middle of what the disturbance before has set off.
        network.run(chance.choice((0.02, 0.05, 0.05, 0.1, 0.2, 0.5, 1.5)))
    return network


def insider(network: Network) -> bool:
    """True if somebody lives who may still act."""
    return any(one.view is not None and not one.fenced for one in network.alive.values())


@pytest.mark.parametrize("block", range(4))
def test_random_histories(block: int) -> None:
    for seed in range(500 * block, 500 * (block + 1)):
        try:
            network = history(seed)
            if insider(network):
                settle(network)
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error


def views(network: Network) -> dict[int, tuple[int, ...]]:
    """The ranks in the view of each island that may act, by its rank."""
    acting = {island.rank: one.view for island, one in network.alive.items() if one.state is not State.FENCED}
    return {rank: tuple(member.rank for member in view.members) for rank, view in acting.items() if view is not None}


@pytest.mark.parametrize("killed", [(0,), (2,), (0, 1), (0, 1, 2)])
def test_those_that_live_go_on_in_tenths_of_a_second(killed: tuple[int, ...]) -> None:
    network = Network(1, 4)
    network.run(1.0)
    for rank in killed:
        network.kill(Island(rank))
    network.run(0.6)
    left = tuple(sorted({0, 1, 2, 3} - set(killed)))
    assert views(network) == dict.fromkeys(left, left)


def test_one_after_the_other_the_last_goes_on_alone() -> None:
    network = Network(2, 4)
    for rank in range(3):
        network.kill(Island(rank))
        network.run(1.0)
    assert views(network) == {3: (3,)}


def test_a_process_that_is_started_anew_is_taken_in() -> None:
    network = Network(3, 3)
    network.kill(Island(0))
    network.run(1.0)
    network.start(0)
    network.run(2.0)
    assert views(network) == dict.fromkeys(range(3), (0, 1, 2))
    assert Island(0, 1) in network.alive


def test_who_was_silent_too_long_is_left_out_and_must_stop() -> None:
    network = Network(4, 3)
    network.paused.add(Island(0))
    network.run(4.0)
    assert network.alive[Island(1)].view == View(1, (Island(1), Island(2)), (Island(0),))
    network.paused.clear()
    network.run(1.0)
    assert network.alive[Island(0)].state is State.FENCED


def test_fewer_than_half_never_go_on_without_the_others() -> None:
    network = Network(5, 5)
    disturb(network, "cut", [0, 1])
    network.run(10.0)
    assert views(network) == {0: (0, 1, 2, 3, 4), 1: (0, 1, 2, 3, 4), 2: (2, 3, 4), 3: (2, 3, 4), 4: (2, 3, 4)}
    disturb(network, "heal", [])
    network.run(1.0)
    assert views(network) == dict.fromkeys((2, 3, 4), (2, 3, 4))


def test_of_two_halves_that_with_the_first_island_goes_on() -> None:
    network = Network(6, 2)
    disturb(network, "cut", [0])
    network.run(4.0)
    assert views(network) == {0: (0,), 1: (0, 1)}


def test_what_may_have_been_decided_is_proposed_again() -> None:
    islands = tuple(Island(rank) for rank in range(3))
    membership = Membership(islands[0], View(0, islands))
    ((receiver, prepare),) = [send for send in membership.suspect(islands[2], 0.0) if send[0] != islands[2]]
    assert receiver == islands[1]
    assert prepare.kind is Kind.PREPARE
    before = View(1, islands[1:], (islands[0],))
    promise = Message(Kind.PROMISE, 1, prepare.ballot, before, Ballot(0, islands[1]))
    accepts = [message for _, message in membership.receive(islands[1], promise, 0.1)]
    assert {message.view for message in accepts} == {before}
