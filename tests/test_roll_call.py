"""The roll call before JAX starts: everybody goes on once all are there; who is missing or does not fit is named."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute._src import roll_call
from jaxtribute._src.core.cluster import runtime
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute.errors import ClusterError, DeadlineError
from processes import free_ports

DEADLINE_S = 60.0


def addresses(workers: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(workers)]


class Calls:
    """A roll call of workers in threads, each of which comes after a time of its own; None never comes."""

    def __init__(self, delays: Sequence[float | None], timeout_s: float = DEADLINE_S) -> None:
        self.tasks = addresses(len(delays))
        self.port = int(self.tasks[0].rpartition(":")[2])
        self.results: dict[int, BaseException | None] = {}
        self._timeout_s = timeout_s
        self._threads = [
            threading.Thread(target=self._call, args=(rank, delay), daemon=True)
            for rank, delay in enumerate(delays)
            if delay is not None
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, rank: int, delay: float) -> None:
        time.sleep(delay)
        roster = Roster.of({"worker": self.tasks}, "worker", rank)
        try:
            roll_call.call(roster, self.tasks[0], self._timeout_s)
        except BaseException as error:  # noqa: BLE001 (told by the test)
            self.results[rank] = error
            return
        self.results[rank] = None
        if rank == 0:  # as JAX's service does, which takes the address over
            self.service = socket.create_server(("127.0.0.1", self.port))

    def hear(self, line: bytes) -> None:
        """Says a line to the first worker, once it listens, and is gone."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", self.port), 5.0) as connection:
                    connection.sendall(line)
                return
            time.sleep(0.01)
        pytest.fail("the first worker does not listen")

    def ended(self) -> dict[int, BaseException | None]:
        end = time.monotonic() + DEADLINE_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
            assert not thread.is_alive(), f"a roll call hangs; ended have {self.results}"
        if hasattr(self, "service"):
            self.service.close()
        return self.results


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.0, 0.3), min_size=2, max_size=5))
def test_all_go_on_once_all_are_there(delays: list[float]) -> None:
    start = time.monotonic()
    assert Calls(delays).ended() == dict.fromkeys(range(len(delays)))
    assert time.monotonic() - start >= max(delays)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_who_is_missing_is_named_by_all_others(missing: int) -> None:
    calls = Calls([None if rank == missing else 0.0 for rank in range(3)], timeout_s=1.5)
    results = calls.ended()
    assert len(results) == 2
    for rank, error in results.items():
        assert isinstance(error, DeadlineError), error
        # The first worker ends first, and then is missing itself.
        named = f"worker {missing} ({calls.tasks[missing]})"
        assert named in str(error) or (rank != 0 and "worker 0" in str(error))
        assert "for the start of the cluster" in str(error)
    if missing:
        assert f"worker {missing}" in str(results[0])


def test_a_worker_that_dies_before_the_others_come_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "_PRESENT_S", 0.2)
    calls = Calls([0.0, None, 0.0], timeout_s=2.0)
    # It calls, hears that somebody is missing, or waits to be told, and is gone.
    roster = Roster.of({"worker": calls.tasks}, "worker", 1)
    calls.hear(json.dumps({"rank": 1, "foundation": roll_call.foundation(roster)}).encode() + b"\n")
    error = calls.ended()[0]
    assert isinstance(error, DeadlineError)
    assert "for worker 1" in str(error)


@pytest.mark.parametrize("name", ["jax", "jaxlib", "TLS", "workers"])
def test_who_does_not_fit_is_told_and_so_is_the_first(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = roll_call.foundation
    monkeypatch.setattr(
        roll_call, "foundation", lambda roster: {**known(roster), **({name: "another"} if roster.rank == 1 else {})}
    )
    results = Calls([0.0, 0.0], timeout_s=1.0).ended()
    # The first waits on: who has called may be a stranger.
    assert isinstance(results[0], DeadlineError)
    assert isinstance(results[1], ClusterError)
    for error in results.values():
        assert f"  {name}: " in str(error)
        assert "'another' on worker 1" in str(error)
        assert "HINT" in str(error)
    assert capsys.readouterr().err.count("'another' on worker 1") == 1


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[" * 50_000 + b"\n",
        b"\xff" * 70_000,
        b'{"rank": true}\n',
        b'{"rank": 1, "foundation": {"jax": "9"}}\n',
    ],
)
def test_strangers_change_nothing(line: bytes) -> None:
    calls = Calls([0.0, 0.5, 0.5])
    calls.hear(line)
    assert calls.ended() == dict.fromkeys(range(3))


@pytest.mark.parametrize("kind", ["silent", "accepts", "drips", "web server"])
def test_a_stranger_at_the_first_workers_address_keeps_nobody_beyond_the_deadline(kind: str) -> None:
    ends, taken = threading.Event(), list[socket.socket]()

    def serve(server: socket.socket) -> None:
        while not ends.is_set():
            with contextlib.suppress(TimeoutError):
                taken.append(server.accept()[0])
            for connection in taken if kind == "drips" else ():
                with contextlib.suppress(OSError):
                    connection.sendall(b"x")
            if kind == "web server" and taken:
                with taken.pop() as connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        thread = threading.Thread(target=serve, args=(server,))
        if kind != "silent":
            thread.start()
        tasks = [f"127.0.0.1:{server.getsockname()[1]}", *addresses(1)]
        result: list[BaseException] = []

        def call() -> None:
            try:
                roll_call.call(Roster.of({"worker": tasks}, "worker", 1), tasks[0], 1.0)
            except BaseException as error:  # noqa: BLE001 (told by the test)
                result.append(error)

        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        caller.join(20)
        ends.set()
        if kind != "silent":
            thread.join()
        for connection in taken:
            connection.close()
    assert not caller.is_alive(), "the roll call hangs"
    assert isinstance(result[0], DeadlineError), result
    assert "worker 0" in str(result[0])


def test_silent_strangers_keep_the_first_worker_not_beyond_the_deadline() -> None:
    calls = Calls([0.0, *[None] * 7], timeout_s=1.0)
    ends, strangers = threading.Event(), list[socket.socket]()

    def come() -> None:
        while not ends.wait(0.1):
            with contextlib.suppress(OSError):
                strangers.append(socket.create_connection(("127.0.0.1", calls.port), 5.0))

    thread = threading.Thread(target=come)
    thread.start()
    end = time.monotonic() + 25
    while 0 not in calls.results and time.monotonic() < end:
        time.sleep(0.05)
    ends.set()
    thread.join()
    for stranger in strangers:
        stranger.close()
    assert isinstance(calls.results.get(0), DeadlineError), calls.results


@pytest.mark.slow
def test_an_address_that_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        tasks = [f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:1"]
        [(code, text)] = outputs([started(tasks, 0)])
    assert code == 1, text
    assert "could not start its part of the cluster: [Errno 98]" in text
    assert f"HINT: {tasks[0]} must be a free address" in text


def test_every_cluster_begins_with_it() -> None:
    assert roll_call.call in runtime.before_start


PROGRAM = "import jaxtribute as jd; jd.MultiWorkerMirroredStrategy(); print('made')"


def started(tasks: Sequence[str], rank: int, **environment: str) -> subprocess.Popen[str]:
    config = {"cluster": {"worker": tasks}, "task": {"type": "worker", "index": rank}}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TF_CONFIG": json.dumps(config), "JAXTRIBUTE_CPU_DEVICES": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    end = time.monotonic() + 120.0
    for process in processes:
        try:
            text, _ = process.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
            text = f"not ended in time\n{text}"
        found.append((process.returncode, text))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_alone_ends_with_a_name(rank: int) -> None:
    tasks = addresses(2)
    [(code, text)] = outputs([started(tasks, rank, JAXTRIBUTE_TIMEOUT_S="2")])
    assert code == 1, text
    assert f"waited 2 s for the start of the cluster for worker {1 - rank} ({tasks[1 - rank]})" in text


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"JAX_MTLS_CERT_FILE": "/nowhere"}])
def test_two_processes(change: dict[str, Any]) -> None:
    tasks, wait = addresses(2), {"JAXTRIBUTE_TIMEOUT_S": "20"}
    (first, said), (second, also) = outputs([started(tasks, 0, **wait), started(tasks, 1, **wait, **change)])
    if change:
        assert min(first, second) > 0, said + also
        for text in (said, also):
            assert "TLS: without certificates on worker 0" in text
            assert "'with certificates' on worker 1" in text
    else:
        assert (first, second) == (0, 0), said + also
        assert said.count("made") == also.count("made") == 1
