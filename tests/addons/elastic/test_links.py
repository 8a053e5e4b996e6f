"""Connections between islands: what their end proves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from jaxtribute._src.addons.elastic.links import _GREETING, _HEAD, _MAGIC, Lane, Links
from jaxtribute._src.addons.elastic.membership import Island
from processes import free_ports


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_process_is_dead_when_all_that_it_has_said_is_heard() -> None:
    own, other = free_ports(2)
    events: list[object] = []
    may_hear = threading.Event()

    def heard(island: Island, lane: Lane, head: object, data: bytearray) -> None:
        may_hear.wait(30)
        events.append(bytes(data))

    links = Links(
        Island(0),
        [f"127.0.0.1:{own}", f"127.0.0.1:{other}"],
        heard,
        lambda island, proved: events.append((island, proved)),
    )
    try:
        lanes: dict[Lane, socket.socket] = {}
        for lane in Lane:
            lanes[lane] = socket.create_connection(("127.0.0.1", own))
            lanes[lane].sendall(_GREETING.pack(_MAGIC, 1, 0, lane))
        until(lambda: len(links._incoming) == len(Lane))
        lanes[Lane.CONTROL].sendall(_HEAD.pack(0, 0, 0, 5) + b"adieu")
        # The process ends: all connections do, and the one with its last words is read late.
        for connection in lanes.values():
            connection.close()
        others = len(Lane) - 1
        until(lambda: len(events) == others)
        assert events == [(Island(1), False)] * others
        may_hear.set()
        until(lambda: len(events) == others + 2)
        assert events[others:] == [b"adieu", (Island(1), True)]
    finally:
        links.close()
