"""Addresses of tasks, taken apart."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.core.cluster.addresses import Address, all_loopback, can_connect
from jaxtribute.errors import ClusterSpecError

hosts = st.one_of(
    st.ip_addresses().map(str), st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z]{2,4})?", fullmatch=True)
)


@pytest.mark.slow
@given(hosts, st.integers(0, 65535), st.sampled_from(["", "grpc://", "ssl://"]))
def test_an_address_is_its_host_and_its_port(host: str, port: int, protocol: str) -> None:
    address = Address(host, port)
    assert Address.parse(f"{protocol}{address}") == address
    assert str(address).count("[") == (":" in host)


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:-1", "host:65536", "host:²", "[]:1"])
def test_what_is_no_address_is_quoted(text: str) -> None:
    with pytest.raises(ClusterSpecError, match=r"is no address of a task\. HINT: write host:port") as error:
        Address.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback_is_what_no_other_machine_reaches(host: str, local: bool) -> None:
    assert Address(host, 1).is_loopback() == local
    assert all_loopback([f"localhost:{1}", str(Address(host, 1))]) == local


def test_whether_something_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert not can_connect(address, 1.0)
        server.listen()
        assert can_connect(address, 5.0)
