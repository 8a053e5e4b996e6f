"""Connections between islands: what their end proves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from jaxtribute._src.addons.elastic.links import Lane, Links
from jaxtribute._src.addons.elastic.membership import Island
from jaxtribute._src.addons.elastic.traffic import Head, Traffic
from processes import free_ports


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_process_is_dead_when_all_that_it_has_said_is_heard() -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    events: list[object] = []
    may_hear = threading.Event()
    lanes = Lane.CONTROL, Lane.JOURNAL

    def heard(island: Island, lane: Lane, head: object, data: bytearray) -> None:
        if bytes(data) == b"adieu":
            may_hear.wait(30)
        events.append(bytes(data))

    own = Links(Island(0), addresses, heard, lambda island, proved: events.append((island, proved)))
    other = Links(Island(1), addresses, lambda *_: None, lambda *_: None)
    own.begin()
    other.begin()
    try:
        for lane in lanes:
            assert other.send(0, lane, (0, 0, 0), [b"hello"], 10.0)
        until(lambda: len(events) == len(lanes))
        assert other.send(0, Lane.CONTROL, (0, 0, 0), [b"adieu"], 10.0)
        events.clear()
        # The process ends: all connections do, and the one with its last words is read late.
        other.close()
        others = len(lanes) - 1
        until(lambda: len(events) == others)
        assert events == [(Island(1), False)] * others
        may_hear.set()
        until(lambda: len(events) == others + 2)
        assert events[others:] == [b"adieu", (Island(1), True)]
    finally:
        other.close()
        own.close()


def test_a_process_whose_place_another_has_taken_at_once_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spare listens there before anybody can see that nobody did."""
    monkeypatch.setenv("JAXTRIBUTE_LAUNCHER", "1")  # several may listen at an address
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    lost: list[tuple[Island, bool]] = []
    own, old, new = (
        Links(island, addresses, lambda *_: None, lambda island, proved: lost.append((island, proved)))
        for island in (Island(0), Island(1), Island(1, 1))
    )
    has_met = lambda island: (island, Lane.CONTROL) in own._incoming  # pyright: ignore[reportPrivateUsage]  # noqa: E731
    try:
        for links in (own, old, new):
            links.begin()
        old.greet()
        until(lambda: has_met(Island(1)))
        new.greet()
        until(lambda: has_met(Island(1, 1)))
        assert not own.proves_dead(Island(1)), "its last words may be under way"
        old.close()
        until(lambda: (Island(1), True) in lost)
        assert not own.proves_dead(Island(1, 1))
    finally:
        for links in (own, old, new):
            links.close()


def test_the_end_of_a_process_takes_nothing_from_the_one_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be noticed when the new one has just been met, and is being answered."""
    monkeypatch.setenv("JAXTRIBUTE_LAUNCHER", "1")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    lost, heard = list[Island](), list[bytes]()
    own = Links(Island(0), addresses, lambda *_: None, lambda island, _: lost.append(island))
    old = Links(Island(1), addresses, lambda *_: None, lambda *_: None)
    new = Links(Island(1, 1), addresses, lambda *message: heard.append(bytes(message[-1])), lambda *_: None)
    try:
        own.begin()
        old.greet()
        until(lambda: (Island(1), Lane.CONTROL) in own._incoming)  # pyright: ignore[reportPrivateUsage]
        own._meet(Island(1, 1))  # pyright: ignore[reportPrivateUsage]
        old._listener.close()  # pyright: ignore[reportPrivateUsage]  # what is sent now is for the new one
        new.begin()
        assert own.send(1, Lane.JOURNAL, (0, 0, 0), [b"a part"], 1.0)
        before = own._outgoing[1, Lane.JOURNAL]  # pyright: ignore[reportPrivateUsage]
        old.close()
        until(lambda: lost == [Island(1)])
        assert own.send(1, Lane.JOURNAL, (0, 0, 0), [b"of an answer"], 1.0)
        assert own._outgoing[1, Lane.JOURNAL] is before, "the connection was dropped"  # pyright: ignore[reportPrivateUsage]
        until(lambda: heard == [b"a part", b"of an answer"])
    finally:
        for links in (own, old, new):
            links.close()


def test_an_island_whose_machine_has_lost_its_power_is_reached_when_it_is_back() -> None:
    """Its old process has closed nothing: what was sent there now would be taken by nobody."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    greeted, heard = list[Island](), list[tuple[Head, bytes]]()
    silent = socket.create_server(("127.0.0.1", int(addresses[1].rpartition(":")[2])))
    own = Links(Island(0), addresses, lambda island, *_: greeted.append(island), lambda *_: None)
    own.begin()
    assert own.send(1, Lane.JOURNAL, (1, 0, 0), [b"before"], 1.0)
    old, _ = silent.accept()
    silent.close()
    back = Links(Island(1, 1), addresses, lambda _, __, head, data: heard.append((head, bytes(data))), lambda *_: None)
    back.begin()
    try:
        assert back.send(0, Lane.CONTROL, (0, 0, 0), [b"here"], 1.0)
        until(lambda: bool(greeted))
        assert own.send(1, Lane.JOURNAL, (2, 0, 0), [b"after"], 1.0)
        until(lambda: bool(heard))
        assert heard == [((2, 0, 0), b"after")]
    finally:
        own.close()
        back.close()
        old.close()


def test_what_is_left_for_an_island_that_was_left_out_is_never_sent_to_it() -> None:
    """A machine comes back: what it was given before must not go there under a new connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    reachable, heard = False, list[tuple[Head, bytes]]()

    def connect(rank: int) -> socket.socket | None:
        return socket.create_connection(listener.getsockname()) if reachable else None

    sender = Traffic(connect, lambda *_: None, looks=False)
    receiver = Traffic(lambda _: None, lambda _, head, data: heard.append((head, bytes(data))), looks=False)
    try:
        sender.post([1], (0, 5, 0), [b"of an old view"])
        assert not sender.has_sent([1])
        sender.keep([0, 2])
        reachable = True
        sender.post([1], (2, 9, 0), [b"of a new view"])
        until(lambda: bool(sender.move(0.01) or sender.has_sent([1])))
        receiver.add(Island(0), listener.accept()[0])
        until(lambda: bool(receiver.move(0.01) or heard))
        assert heard == [((2, 9, 0), b"of a new view")]
    finally:
        sender.close()
        receiver.close()
        listener.close()
