"""Reserved ports are nobody else's, and free afterwards."""

import socket

import pytest

from jaxtribute._src.launcher.ports import ReservedPorts


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
