"""The agreement of islands that all know nothing, in simulated histories: no two beginnings have living members."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxtribute._src.addons.elastic.joining import Newcomer, answer
from jaxtribute._src.addons.elastic.journal import Journal
from jaxtribute._src.addons.elastic.membership import Island, View

HISTORIES = 300


class Process:
    """An island's process, without connections."""

    def __init__(self, me: Island, count: int) -> None:
        self.me, self.others, self.far, self.timeout_s = me, count - 1, True, 30.0
        self.lock = threading.Condition()
        self.journal = Journal()
        self.membership = SimpleNamespace(view=None)
        self.newcomer: Newcomer | None = Newcomer(self, 20.0)  # pyright: ignore[reportArgumentType]

    @property
    def view(self) -> View | None:
        return self.membership.view

    def begin(self) -> None:
        if self.newcomer is not None and self.newcomer.first is not None:
            self.membership.view, self.newcomer = self.newcomer.first, None

    @property
    def joins(self) -> bool:
        """True if it has found others that train without it."""
        return self.newcomer is not None and self.newcomer.view is not None


class History:
    """Processes that ask each other, late or in vain, and die."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.count = int(self.chance.choice([2, 3, 3, 4]))
        self.processes = [Process(Island(rank, 1), self.count) for rank in range(self.count)]
        self.under_way: list[tuple[Island, Island, Any, bytearray]] = []

    def ask(self) -> None:
        """One asks another, whose answer is under way from here on, or is lost."""
        asking, asked = self.chance.choice(self.count, 2, replace=False)
        if self.processes[asking].newcomer is not None and self.chance.random() < 0.9:
            head, data = answer(self.processes[asked], 0)  # pyright: ignore[reportArgumentType]
            self.under_way.append((self.processes[asking].me, self.processes[asked].me, head, bytearray(data)))

    def deliver(self) -> None:
        """An answer arrives, unless the one that has asked has died; the order is any."""
        if self.under_way:
            to, sender, head, data = self.under_way.pop(int(self.chance.integers(len(self.under_way))))
            process = self.processes[to.rank]
            if process.me == to and process.newcomer is not None:
                process.newcomer.heard(sender, head, data)

    def unreached(self) -> None:
        """One cannot reach another, which may be there: a cable that was out."""
        one, other = (int(each) for each in self.chance.choice(self.count, 2, replace=False))
        newcomer = self.processes[one].newcomer
        if newcomer is not None:
            newcomer.asked(other)
            newcomer.unreached(other, listens=False)

    def begin(self) -> None:
        self.processes[int(self.chance.integers(self.count))].begin()

    def die(self) -> None:
        rank = int(self.chance.integers(self.count))
        self.processes[rank] = Process(Island(rank, self.processes[rank].me.incarnation + 1), self.count)

    def check(self) -> None:
        begun = {process.view for process in self.processes if process.view is not None}
        assert len(begun) <= 1, begun
        for process in self.processes:
            assert process.view is None or process.me in process.view.members

    def run(self) -> None:
        for _ in range(int(self.chance.integers(20, 400))):
            event = self.chance.choice(
                [self.ask, self.deliver, self.begin, self.unreached, self.die], p=[0.42, 0.4, 0.12, 0.03, 0.03]
            )
            event()
            self.check()

    def settle(self) -> None:
        """Nobody dies any more, and all that is said arrives: in the end all are together, or join those that are."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for _ in range(200):
                self.chance.choice([self.ask, self.deliver, self.deliver, self.begin])()
                self.check()
            trained = any(process.view is not None for process in self.processes)
            if trained and all(process.view is not None or process.joins for process in self.processes):
                return
            for rank, process in enumerate(self.processes):
                if process.joins and not trained:  # whom it has found has died: it ends, and is started again
                    self.processes[rank] = Process(Island(rank, process.me.incarnation + 1), self.count)
        raise AssertionError([(process.me, process.view) for process in self.processes])


@pytest.mark.parametrize("share", range(3))
def test_histories(share: int) -> None:
    begun = 0
    for seed in range(share, HISTORIES, 3):
        history = History(seed)
        history.run()
        begun += any(process.view is not None for process in history.processes)
        history.settle()
    assert begun > HISTORIES / 30  # not only once all is quiet
