"""A machine's part of a job: its ports and its ranks."""

import asyncio
import socket
from pathlib import Path

import pytest

from jaxtribute._src.addons.launcher.attempt import Kind
from jaxtribute._src.addons.launcher.node import LocalNode, ReservedPorts, Start
from jaxtribute._src.addons.launcher.options import Options


def test_ports_are_new_for_each_start() -> None:
    node = LocalNode(Options(command=("true",), workers=2), "127.0.0.1")
    first = node.reserve()
    assert len(set(first)) == 2
    assert all(address.startswith("127.0.0.1:") for address in first)
    second = node.reserve()
    node.workers = 1
    assert len(node.reserve()) == 1
    assert len(second) == 2
    node.close()
    node.close()


def test_a_start_travels() -> None:
    start = Start(["a:1", "b:2"], 1, 1, 3)
    assert Start.from_json(start.as_json()) == start


@pytest.mark.slow
def test_ranks_know_their_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    script = 'echo "$CUDA_VISIBLE_DEVICES $JAXTRIBUTE_RESTART $JAXTRIBUTE_CPU_DEVICES"; echo "$TF_CONFIG"'
    node = LocalNode(
        Options(command=("sh", "-c", script), workers=2, devices=3, gpus=2, log_dir=tmp_path, split=True), "10.0.0.1"
    )
    outcome = asyncio.run(node.run(Start(["a:1", "b:2", "c:3"], 1, 2, 1)))
    node.stop()
    node.resize()
    assert outcome.kind is Kind.DONE
    assert capfd.readouterr().out == ""  # neither is rank 0
    first, second = ((tmp_path / f"rank-{rank}.log").read_text() for rank in (1, 2))
    assert "4,5 1 3" in first
    assert "6,7 1 3" in second
    assert '"cluster": {"worker": ["a:1", "b:2", "c:3"]}, "task": {"type": "worker", "index": 2}' in second


def test_nobody_else_can_take_a_reserved_port() -> None:
    with ReservedPorts(3) as ports:
        assert len(set(ports.numbers)) == 3
        for number in ports.numbers:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", number))
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports.numbers[0]))
    ports.close()


def test_a_process_of_the_job_can_listen_there() -> None:
    with ReservedPorts(1) as ports, socket.socket() as service:
        service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        service.bind(("127.0.0.1", ports.numbers[0]))
        service.listen()
        with socket.create_connection(("127.0.0.1", ports.numbers[0]), timeout=5):
            service.accept()[0].close()


def test_ports_of_the_newer_protocol() -> None:
    try:
        with ReservedPorts(1, "::1") as ports:
            assert ports.numbers[0] > 0
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
