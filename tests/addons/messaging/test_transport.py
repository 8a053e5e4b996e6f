"""Hubs and links: within a machine, over TCP with keys, and who is not let in."""

import threading
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxtribute._src.addons.messaging.transport import Endpoint, Hub, Keys, Link, TaskSettings, end_idle_threads
from jaxtribute._src.addons.messaging.wire import pack, unpack
from jaxtribute._src.addons.parameter_servers.server import server_task
from jaxtribute._src.addons.parameter_servers.server.client import Client, ServerLostError
from jaxtribute._src.addons.parameter_servers.server.server_task import ServerTask
from jaxtribute._src.core.folders import Folder
from jaxtribute.errors import ClusterError, DeadlineError


@pytest.fixture
def folder() -> Generator[str]:
    made = Folder()
    assert Path(made.path).stat().st_mode & 0o077 == 0, "others can reach the sockets"
    yield made.path
    made.close()
    end_idle_threads()
    assert not Path(made.path).exists()


def echo(hub: Hub, count: int) -> threading.Thread:
    def serve() -> None:
        for _ in range(count):
            for route, frames in hub.receive(20) or hub.receive(20):
                hub.send(route, [bytes(frame) for frame in frames])

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def asked(link: Link) -> Any:
    link.send(pack({"n": 1}, [np.arange(1000)]))
    frames = link.receive(20)
    assert frames is not None
    return unpack(frames)[1][0]


def test_a_message_and_its_answer_within_a_machine(folder: str) -> None:
    hub = Hub(folder)
    thread, link = echo(hub, 1), Link(hub.endpoint)
    np.testing.assert_array_equal(asked(link), np.arange(1000))
    thread.join()
    hub.wake()
    assert hub.receive(20) == []
    link.close()
    hub.close()
    assert not Path(hub.endpoint.path).exists()


def test_a_link_may_give_up_when_the_other_side_has_ended(folder: str) -> None:
    hub = Hub(folder)
    thread, link = echo(hub, 1), Link(hub.endpoint, once=True)
    np.testing.assert_array_equal(asked(link), np.arange(1000))
    thread.join()
    hub.close()
    begun = time.monotonic()
    assert link.receive(60) is None
    assert time.monotonic() - begun < 30
    link.close()


def test_over_tcp_with_keys_and_without(folder: str) -> None:
    keys = Keys.make()
    hub = Hub(folder, keys, "127.0.0.1")
    assert hub.endpoint.tcp.startswith("tcp://127.0.0.1:")
    elsewhere = Endpoint("", hub.endpoint.tcp)
    thread, link = echo(hub, 1), Link(elsewhere, keys)
    np.testing.assert_array_equal(asked(link), np.arange(1000))
    thread.join()
    other = Keys.make()
    # Neither without keys, nor with those of another cluster, nor with the right server's and one's own.
    mixed = Keys(keys.called_public, b"", other.caller_public, other.caller_secret)
    for wrong in (None, other, mixed):
        stranger = Link(elsewhere, wrong)
        stranger.send([b"x"])
        assert hub.receive(0.3) == []
        assert stranger.receive(0) is None
        stranger.send([b"x"])  # it does not wait for a hub that has refused it
        stranger.close()
    link.close()
    hub.close()


@pytest.mark.slow
def test_a_folder_that_two_machines_see(folder: str) -> None:
    keys = Keys.make()
    hub = Hub(folder, keys, "127.0.0.1")
    there = replace(hub.endpoint, machine="another")
    assert Path(there.path).exists()
    for endpoint, local in ((there, False), (hub.endpoint, True)):
        thread, link = echo(hub, 1), Link(endpoint, keys)
        assert link.local == local
        np.testing.assert_array_equal(asked(link), np.arange(1000))
        thread.join()
        link.close()
    hub.close()


def test_requests_that_a_server_cannot_answer(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_task, "_MIRROR_DEADLINE_S", 0.05)
    nobody = {"path": f"{folder}/nobody", "tcp": ""}
    task = ServerTask(0, TaskSettings(folder))
    thread = threading.Thread(target=task.run)
    thread.start()
    client = Client(None, 3.0)
    client.connect([task.endpoint], 1)
    with pytest.raises(ServerLostError, match="parameter server 0 has lost its variables"):
        client.call({0: ({"t": "exchange"}, [])})
    client.call({0: ({"t": "activate", "epoch": 1}, [])})
    with pytest.raises(ClusterError, match="could not do what was asked: AttributeError"):
        client.call({0: ({"t": "nonsense"}, [])})
    with pytest.raises(ClusterError, match="mirror of server 0 does not answer"):
        client.call({0: ({"t": "activate", "epoch": 1, "recover": True, "mirror": nobody}, [])})
    task.define(5, __import__("cloudpickle").dumps(lambda shape, start: np.zeros(3)))
    wrong = {"t": "initialize", "id": 5, "key": 1, "start": 0, "shape": [2], "dtype": "float32"}
    with pytest.raises(ClusterError, match="initial value has shape"):
        client.call({0: (wrong, [])})
    client.call({0: ({"t": "create", "keys": [1]}, [np.ones(2)])})
    client.call({0: ({"t": "delete", "keys": [1]}, [])})
    task.stop()
    thread.join()
    with pytest.raises(DeadlineError, match=r"parameter server 0 has not answered for 3\.0 s"):
        client.call({0: ({"t": "exchange"}, [])})
    client.close()
