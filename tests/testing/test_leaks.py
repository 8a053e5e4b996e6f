"""The listings show what a test leaves, and nothing that it does not."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from jaxtribute.testing import leaks


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "DEADLINE_S", 0.0)


def test_a_thread_is_seen_until_it_ends(impatient: None) -> None:
    before, stop = leaks.list_threads(), threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    (extra,) = leaks.left_behind(leaks.list_threads, before)
    assert extra.startswith("forgotten")
    stop.set()
    thread.join()
    assert leaks.left_behind(leaks.list_threads, before) == []


def test_a_thread_that_is_about_to_end_is_waited_for() -> None:
    before = leaks.list_threads()
    thread = threading.Timer(0.05, lambda: None)
    thread.start()
    assert leaks.left_behind(leaks.list_threads, before) == []
    thread.join()


def test_a_child_process_is_seen_until_it_ends(impatient: None) -> None:
    before = leaks.list_children()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert leaks.left_behind(leaks.list_children, before) == [f"process {child.pid}"]
        child.communicate(b"\n")
    assert leaks.left_behind(leaks.list_children, before) == []


def test_a_listening_port_is_seen_until_it_closes(impatient: None) -> None:
    before = leaks.list_ports()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert leaks.left_behind(leaks.list_ports, before) == [f"port {server.getsockname()[1]}"]
    assert leaks.left_behind(leaks.list_ports, before) == []


def test_an_environment_variable_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leaks.list_environment()
    monkeypatch.setenv("JAXTRIBUTE_NEW", "1")
    assert leaks.list_environment().items() - before.items() == {("JAXTRIBUTE_NEW", "1")}
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert "PYTEST_CURRENT_TEST" not in before
