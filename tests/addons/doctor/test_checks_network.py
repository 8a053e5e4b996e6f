"""Ports and addresses as the workers would meet them."""

import json
import socket

import pytest

from jaxtribute._src.addons.doctor import checks
from jaxtribute._src.addons.doctor.report import Finding, Level, look
from jaxtribute._src.addons.launcher.node import ReservedPorts


def findings(addresses: list[str], index: int, **environ: str) -> dict[str, Finding]:
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {found.title: found for found in checks.check_network(look({"TF_CONFIG": json.dumps(config), **environ}))}


def free_address() -> str:
    with ReservedPorts(1) as ports:
        return f"127.0.0.1:{ports.numbers[0]}"


def test_one_worker_has_nobody_to_reach() -> None:
    assert findings(["127.0.0.1:1"], 0) == {}


def test_the_coordinator_can_listen() -> None:
    found = findings([free_address(), "127.0.0.1:1"], 0)
    assert found["coordinator"].level is Level.GOOD
    with ReservedPorts(1) as ports:  # as under the launcher
        reserved = findings([f"127.0.0.1:{ports.numbers[0]}", "127.0.0.1:1"], 0)
    assert reserved["coordinator"].level is Level.GOOD


def test_the_coordinator_cannot_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = findings([address, "127.0.0.1:1"], 0)["coordinator"]
        assert found.level is Level.ERROR
        assert "in use" in found.text
        elsewhere = findings([address, "127.0.0.1:1"], 0, JAXTRIBUTE_BIND_ADDRESS=free_address())
    assert elsewhere["coordinator"].level is Level.GOOD
    # The check of settings tells of it.
    assert findings([address, "127.0.0.1:1"], 0, JAXTRIBUTE_BIND_ADDRESS="nowhere") == {}


def test_a_coordinator_that_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        found = findings([f"127.0.0.1:{service.getsockname()[1]}", "127.0.0.1:1"], 1)
    assert found["coordinator"].level is Level.GOOD
    assert list(found) == ["coordinator"]


def test_a_coordinator_that_is_not_there_yet() -> None:
    found = findings([free_address(), "127.0.0.1:1"], 1)["coordinator"]
    assert found.level is Level.WARNING
    assert "nothing listens" in found.text


def test_a_coordinator_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    found = findings(["192.0.2.1:1", "127.0.0.1:1"], 1)
    assert found["coordinator"].level is Level.ERROR
    assert "firewall" in found["coordinator"].fix
    monkeypatch.setattr(socket, "create_connection", unknown)
    found = findings(["192.0.2.1:1", "127.0.0.1:1"], 1)
    assert "'192.0.2.1' of worker 0 (192.0.2.1:1) is not known" in found["coordinator"].text


def test_an_address_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "TIMEOUT_S", 0.05)
    found = findings([free_address(), "192.0.2.1:1"], 1)["own address"]
    assert found.level is Level.ERROR
    assert "'192.0.2.1' is none of this machine" in found.text
