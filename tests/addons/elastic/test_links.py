"""Connections between islands: what their end proves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from jaxtribute._src.addons.elastic.links import Lane, Links
from jaxtribute._src.addons.elastic.membership import Island
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
