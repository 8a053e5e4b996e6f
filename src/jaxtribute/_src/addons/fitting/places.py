"""The devices that a script is to fit: as their own compiler knows them, or as this machine's compiler would."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace

import jax

from jaxtribute._src.addons.compiling.topologies import Topology, check_topology, topology_named
from jaxtribute._src.addons.planning.kinds import DEVICES, Device, Link
from jaxtribute.errors import ArgumentError, MissingLibraryError

_NAME = re.compile(r"(?P<chip>[a-z]+\d*[a-z]*):(?P<shape>\d+(?:x\d+){0,2})")
_CPU = Device("cpu", 1e11, 1e11, 2e10, 0.0, Link("memory", 5e9, 20e-6), launch=2e-4)
"""Rates of a logical CPU device, of the right size; what it has of the machine's memory depends on their number."""


def devices_in(name: str) -> int:
    """The number of devices of a topology.

    Raises:
      ArgumentError: it is none's name.
    """
    match = _NAME.fullmatch(name.strip().lower())
    if match is None:
        raise ArgumentError(f"no topology is called {name!r}. HINT: write v5e:4x4, h100:1x8 or cpu:8.")
    return math.prod(map(int, match["shape"].split("x")))


def missing_compiler(name: str) -> str:
    """The reason why the devices' own compiler cannot be asked; empty if it can.

    Raises:
      ArgumentError: there are no such devices, or what is known of them does not suffice without their compiler.
    """
    devices_in(name)
    if name.startswith("cpu:"):
        return "these are this machine's processors"
    try:
        check_topology(name)
    except MissingLibraryError as error:
        if name.partition(":")[0] in DEVICES and not re.search(r":1x\d+$", name):
            raise
        return str(error)
    return ""


def place(name: str, budget: int | None, *, asked: bool) -> Topology:
    """The devices of that name.

    Args:
      name: such as `v5e:4x4`, `h100:1x8` or `cpu:8`.
      budget: bytes of each that may be used; None for all.
      asked: whether their own compiler is asked. If not, this process must have as many CPU devices.
    """
    if asked:
        found = topology_named(name)
    else:
        count = devices_in(name)
        chip = _chip(name, count)
        found = Topology(name, chip, tuple(jax.devices("cpu")[:count]), chip.link, {})
    memory = found.chip.memory if budget is None else min(found.chip.memory, budget)
    return replace(found, chip=replace(found.chip, memory=memory))


def _chip(name: str, count: int) -> Device:
    kind = name.partition(":")[0]
    if kind == "cpu":
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return replace(_CPU, memory=whole / count, half=_CPU.half / count, bandwidth=_CPU.bandwidth / count)
    # The cycles in a program's text are those of its own compiler.
    return replace(DEVICES.get(kind) or DEVICES[f"tpu-{kind}"], clock=None)
