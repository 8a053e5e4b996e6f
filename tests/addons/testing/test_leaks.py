"""The listings show what a test leaves, and nothing that it does not."""

import os
import pathlib
import socket
import subprocess
import sys
import threading

import pytest

from jaxtribute._src.addons.testing import leaks


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


@pytest.mark.slow
def test_a_child_process_is_seen_until_it_ends(impatient: None) -> None:
    before = leaks.list_children()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert leaks.left_behind(leaks.list_children, before) == [f"process {child.pid}"]
        child.communicate(b"\n")
    assert leaks.left_behind(leaks.list_children, before) == []


@pytest.mark.slow
@pytest.mark.parametrize("by_threads", [True, False])
def test_children_of_children_are_seen_unless_they_are_to_be_ignored(
    by_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_threads:  # a kernel that does not list the children of a thread
        monkeypatch.setattr(pathlib.Path, "exists", lambda _: False)
    code = "import subprocess, sys; p = subprocess.Popen(['cat']); print(p.pid, flush=True); p.wait()"
    before = leaks.list_children()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        extra = set(leaks.list_children()) - set(before)
        assert extra == {f"process {child.pid}", f"process {grandchild}"}
        assert f"process {child.pid}" not in leaks.list_children(ignored=[child.pid])
        child.communicate()
    assert set(leaks.list_children()) <= set(before)


@pytest.mark.slow
def test_a_process_that_has_just_ended_has_no_children() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert list(leaks._descendants(child.pid, ())) == []  # pyright: ignore[reportPrivateUsage]


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
