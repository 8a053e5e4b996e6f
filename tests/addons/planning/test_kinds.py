"""Devices and links by name."""

import pytest

from jaxtribute._src.addons.planning.kinds import DEVICES, LINKS, Link, device_named, link_named
from jaxtribute.errors import ArgumentError


def test_names() -> None:
    assert device_named("H200") is DEVICES["h200"]
    assert link_named("Infiniband-NDR") is LINKS["infiniband-ndr"]


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)
def test_rates_make_sense(device: object) -> None:
    found = DEVICES[getattr(device, "name", "")]
    assert found.half == pytest.approx(2 * found.single, rel=0.02)
    assert found.half > found.bandwidth > found.link.rate > 0
    assert 1e10 < found.memory < 1e12


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50GB/s,5us", (50e9, 5e-6, False)),
        ("12.5GB/s, 20us/host", (12.5e9, 20e-6, True)),
        ("1GB/s", (1e9, 10e-6, False)),
    ],
)
def test_links_described(text: str, expected: tuple[float, float, bool]) -> None:
    link = link_named(text)
    assert (link.rate, pytest.approx(link.latency), link.shared) == expected
    assert isinstance(link, Link)


@pytest.mark.parametrize("text", ["carrier-pigeon", "0GB/s", "50GB", ""])
def test_unknown_links(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"HINT: choose one of .*50GB/s,5us"):
        link_named(text)


def test_unknown_devices() -> None:
    with pytest.raises(ArgumentError, match=r"'abacus'. HINT: choose one of a100"):
        device_named("abacus")
