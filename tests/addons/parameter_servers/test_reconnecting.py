"""A worker whose connection to the coordinator breaks and is made again loses no function, and runs none twice."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.messaging.transport import Endpoint, Keys, TaskSettings
from jaxtribute._src.addons.parameter_servers.scheduling.cluster import Cluster
from jaxtribute._src.addons.parameter_servers.scheduling.starting import make_task
from jaxtribute._src.addons.parameter_servers.strategy import ParameterServerStrategy
from jaxtribute._src.core.folders import Folder
from jaxtribute.coordinator import ClusterCoordinator
from parameter_servers import clusters
from thread_engine import ThreadEngine

LOOPBACK = "127.0.0.1"


class Cable:
    """A port that leads to another one, until it is cut; what is on its way is lost then."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self.broken = False
        """Whether nothing gets through, though both sides believe that they are connected."""
        self._closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._closed:
            if not select.select([self._listening], [], [], 0.05)[0]:
                continue
            one, _ = self._listening.accept()
            try:
                other = socket.create_connection((LOOPBACK, self._to))
            except OSError:  # the coordinator has ended before
                one.close()
                continue
            with self._lock:
                self._ends += [one, other]
            self._threads.append(threading.Thread(target=self._carry, args=(one, other), daemon=True))
            self._threads[-1].start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        ends = {one: other, other: one}
        with contextlib.suppress(OSError, ValueError), one, other:
            while True:
                for ready in select.select(list(ends), [], [], 0.05)[0]:
                    content = ready.recv(1 << 16)
                    if not content:
                        return
                    if not self.broken:
                        ends[ready].sendall(content)

    def cut(self) -> None:
        """Ends all connections, as a router does that is started again."""
        with self._lock:
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._ends.clear()

    def close(self) -> None:
        self._closed = True
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listening.close()


class CabledEngine(ThreadEngine):
    """Threads whose workers reach the coordinator over a cable."""

    host: str | None = LOOPBACK
    cable: Cable | None = None

    def launch(self, role: str, index: int, *arguments: Any) -> None:
        if role == "worker" and arguments[0].tcp:
            endpoint: Endpoint = arguments[0]
            if self.cable is None:
                self.cable = Cable(int(endpoint.tcp.rpartition(":")[2]))
            arguments = (replace(endpoint, path="", tcp=f"tcp://{LOOPBACK}:{self.cable.port}"), *arguments[1:])
        super().launch(role, index, *arguments)


@contextlib.contextmanager
def cabled(workers: int = 1) -> Generator[tuple[ClusterCoordinator, Cable]]:
    folder = Folder()
    settings = TaskSettings(folder.path, Keys.make())
    engine = CabledEngine(make_task, settings)
    cluster = Cluster(engine, folder, settings, servers=1, workers=workers, timeout_s=30.0)
    assert engine.cable is not None
    with contextlib.closing(engine.cable), ParameterServerStrategy.of_cluster(cluster) as strategy:
        yield ClusterCoordinator(strategy), engine.cable


class FarEngine(ThreadEngine):
    """Threads whose servers are reached as those of other machines are: over TCP, with keys."""

    host: str | None = LOOPBACK

    def endpoint(self, role: str, index: int, timeout_s: float) -> Endpoint:
        return replace(super().endpoint(role, index, timeout_s), path="")


def far_task(role: str, index: int, settings: TaskSettings, _: str | None, *arguments: Any) -> Any:
    return make_task(role, index, settings, LOOPBACK, *arguments)


def test_servers_on_other_machines_are_asked_with_keys() -> None:
    folder = Folder()
    settings = TaskSettings(folder.path, Keys.make())
    cluster = Cluster(FarEngine(far_task, settings), folder, settings, servers=2, workers=1, timeout_s=20.0)
    with ParameterServerStrategy.of_cluster(cluster) as strategy:
        with strategy.scope():
            count = jd.Variable(0)
        coordinator = ClusterCoordinator(strategy)
        coordinator.schedule(jd.function(lambda: count.assign_add(1)))
        coordinator.join()
        assert int(count) == 1


def fetched(remote: Any) -> Any:
    """The result of a function, or an error after a while; a hang would be the end of the test."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(remote.fetch()), daemon=True)
    thread.start()
    thread.join(25)
    assert found, "the function hangs"
    return found[0]


def wait(name: str) -> str:
    clusters.SHARED[f"{name} begun"].set()
    assert clusters.SHARED[f"{name} go"].wait(20)
    clusters.SHARED[f"{name} times"] += 1
    return name


@pytest.mark.parametrize("broken", [False, True])
def test_a_connection_that_breaks_while_a_function_runs(broken: bool) -> None:
    """Also where the result was sent, and lost on the way."""
    clusters.SHARED.update({"f begun": threading.Event(), "f go": threading.Event(), "f times": 0})
    with cabled() as (coordinator, cable):
        remote = coordinator.schedule(wait, ("f",))
        assert clusters.SHARED["f begun"].wait(20)
        if broken:
            cable.broken = True
            clusters.SHARED["f go"].set()
            end = time.monotonic() + 20
            while not clusters.SHARED["f times"] or not _replied(coordinator):
                assert time.monotonic() < end
                time.sleep(0.01)
            cable.broken = False
            cable.cut()
        else:
            cable.cut()
            clusters.SHARED["f go"].set()
        assert fetched(remote) == "f"
        assert clusters.SHARED["f times"] == 1
        assert fetched(coordinator.schedule(lambda: 5)) == 5


def _replied(coordinator: ClusterCoordinator) -> bool:
    strategy: Any = coordinator.strategy
    return bool(strategy.cluster.engine.task("worker", 0)._line._replies)


def test_a_connection_that_breaks_while_nothing_runs() -> None:
    with cabled() as (coordinator, cable):
        assert fetched(coordinator.schedule(lambda: 1)) == 1
        cable.cut()
        assert fetched(coordinator.schedule(lambda: 2)) == 2  # sent to where the worker was
        cable.broken = True
        remote = coordinator.schedule(lambda: 3)
        time.sleep(0.2)  # the message is lost, whenever it leaves
        cable.broken = False
        cable.cut()
        assert fetched(remote) == 3


@pytest.mark.slow
def test_many_breaks_and_exact_counters() -> None:
    rng = random.Random(0)
    with cabled(workers=2) as (coordinator, cable):
        with coordinator.strategy.scope():
            count = jd.Variable(0, name="count")
            table = jd.Variable(np.zeros((50, 4), np.float32), name="table")

        @jd.function
        def step(x: Any) -> Any:
            count.assign_add(1)
            table.assign_add(x)
            return x.sum()

        total = 0
        for _ in range(6):
            remotes = [coordinator.schedule(step, (np.ones((50, 4), np.float32),)) for _ in range(10)]
            time.sleep(rng.uniform(0, 0.05))
            cable.cut()
            assert [float(fetched(remote)) for remote in remotes] == [200.0] * 10
            total += 10
        coordinator.join()
        assert int(count) == total
        assert (table.numpy() == total).all()
