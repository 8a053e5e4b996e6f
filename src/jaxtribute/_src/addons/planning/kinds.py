"""Devices and links by name, with what their makers say of them.

Devices: NVIDIA's data sheets of A100 (80 GB SXM), H100, H200 and B200 (HGX), without sparsity, products of 32 bits as
TF32, as JAX computes them by default; Google Cloud's pages on TPU v4, v5e, v5p and v6e. The clock of a TPU is its
16-bit rate by the operations of a cycle: 131,072 in v5e, whose four units have 128 x 128 places, twice as many in v4
and v5p, four times as many in v6e. The cycles that the compiler tells for a product of 4,096 x 4,096 x 4,096 then come
to more than 80 % of the rate. To and from hosts 16 GB/s are taken for TPUs and 32 for v6e, as the JAX scaling book has
them, and half of PCIe's line rate for GPUs. Links: the line rates of InfiniBand HDR and NDR, one port a device, and of
Ethernet, one port a host. Latencies are typical, not promised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from jaxtribute.errors import ArgumentError

_LINK = re.compile(
    r"(?P<rate>[\d.]+)\s*(?P<unit>[GM](?:B|bit))/s(?:,\s*(?P<latency>[\d.]+)\s*(?P<time>[um])s)?(?P<shared>/host)?"
)
_UNITS = {"GB": 1e9, "MB": 1e6, "Gbit": 1.25e8, "Mbit": 1.25e5}


@dataclass(frozen=True, slots=True)
class Link:
    """Medium over which devices exchange data.

    Attributes:
      name: what it is called.
      rate: bytes a second that one device can send, while it receives as many.
      latency: seconds for a message of no length.
      shared: whether all devices of a host share `rate`.
    """

    name: str
    rate: float
    latency: float
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of device.

    Attributes:
      name: what it is called.
      half: products of 16-bit numbers, operations a second.
      single: those of 32-bit numbers.
      bandwidth: bytes of memory a second.
      memory: bytes of memory.
      link: what the devices of one host exchange data over.
      launch: seconds that a step costs at least, whatever it computes.
      clock: cycles a second, where the devices' compiler tells how many cycles a program takes.
      host: bytes a second to or from the memory of its host.
    """

    name: str
    half: float
    single: float
    bandwidth: float
    memory: float
    link: Link
    launch: float = 50e-6
    clock: float | None = None
    host: float = 1.6e10


Kind = TypeVar("Kind", Device, Link)


def _nvlink(rate: float) -> Link:
    return Link("nvlink", rate, 5e-6)


def _ici(rate: float) -> Link:
    return Link("ici", rate, 2e-6)


def _by_name(*kinds: Kind) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


DEVICES = _by_name(
    Device("a100", 312e12, 156e12, 2.039e12, 80e9, _nvlink(300e9), host=16e9),
    Device("h100", 989e12, 494e12, 3.35e12, 80e9, _nvlink(450e9), host=32e9),
    Device("h200", 989e12, 494e12, 4.8e12, 141e9, _nvlink(450e9), host=32e9),
    Device("b200", 2250e12, 1125e12, 8e12, 180e9, _nvlink(900e9), host=32e9),
    Device("tpu-v4", 275e12, 137e12, 1.228e12, 32e9, _ici(150e9), clock=1.05e9),
    Device("tpu-v5e", 197e12, 98e12, 0.819e12, 16e9, _ici(100e9), clock=1.5e9),
    Device("tpu-v5p", 459e12, 229e12, 2.765e12, 95e9, _ici(300e9), clock=1.75e9),
    Device("tpu-v6e", 918e12, 459e12, 1.64e12, 32e9, _ici(200e9), clock=1.75e9, host=3.2e10),
)
"""Devices by the name that `--device-kind` takes."""

LINKS = _by_name(
    Link("infiniband-ndr", 50e9, 8e-6),
    Link("infiniband-hdr", 25e9, 8e-6),
    # One port of a host, which all of its devices share.
    Link("ethernet-1g", 0.125e9, 50e-6, shared=True),
    Link("ethernet-10g", 1.25e9, 30e-6, shared=True),
    Link("ethernet-25g", 3.125e9, 30e-6, shared=True),
    Link("ethernet-100g", 12.5e9, 20e-6, shared=True),
    Link("ethernet-400g", 50e9, 15e-6, shared=True),
    # For hosts whose devices are linked by the chips' own network throughout.
    _ici(100e9),
    _nvlink(450e9),
)
"""Links between hosts by the name that `--link` takes."""


def device_named(name: str) -> Device:
    """The device of that name.

    Raises:
      ArgumentError: there is none in the table.
    """
    if name.lower() not in DEVICES:
        raise ArgumentError(f"no device is called {name!r}. HINT: choose one of {', '.join(DEVICES)}.")
    return DEVICES[name.lower()]


def link_named(text: str) -> Link:
    """The link of that name, or one described as `50GB/s,5us` (for each device) or `20Mbit/s,10ms/host`.

    Raises:
      ArgumentError: the text is neither.
    """
    if text.lower() in LINKS:
        return LINKS[text.lower()]
    match = _LINK.fullmatch(text.strip())
    if match is None or not float(match["rate"]):
        raise ArgumentError(
            f"no link is called {text!r}. HINT: choose one of {', '.join(LINKS)}, or write 50GB/s,5us (what one device "
            "can send), or 20Mbit/s,10ms/host (what all devices of a host share)."
        )
    rate, latency = float(match["rate"]) * _UNITS[match["unit"]], float(match["latency"] or 10)
    return Link(text.strip(), rate, latency * (1e-3 if match["time"] == "m" else 1e-6), bool(match["shared"]))
