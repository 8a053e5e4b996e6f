"""Accelerators that programs can be compiled for without having them, by name: slices of TPUs and hosts of GPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from types import ModuleType
from typing import Any

from jaxtribute._src.addons.compiling import gpus, tpus
from jaxtribute._src.addons.planning.kinds import Device, Link
from jaxtribute._src.addons.planning.prediction import Cluster
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Device as JaxDevice

ENVIRONMENT = tpus.ENVIRONMENT | gpus.ENVIRONMENT
"""Environment for the compilers, if there are no such devices."""


@dataclass(frozen=True)
class Topology:
    """Accelerators that programs can be compiled for.

    Attributes:
      name: such as `v5e:2x4` or `h100:2x8`.
      chip: what one device can do.
      devices: the devices that their compiler knows, in its order.
      link: what devices of several hosts exchange data over.
      options: options of the compiler.
    """

    name: str
    chip: Device
    devices: tuple[JaxDevice, ...]
    link: Link
    options: Mapping[str, Any]

    @property
    def hosts(self) -> int:
        """The number of machines that the devices are attached to."""
        return len(set(map(attrgetter("process_index"), self.devices)))

    def among(self, collective: Collective, devices: Sequence[JaxDevice]) -> Cluster:
        """The devices that exchange data in a collective, as a model of their links takes them.

        Args:
          collective: one of a program.
          devices: those that the program runs on, in its order.
        """
        size = collective.among(len(devices))
        if self.link is self.chip.link:  # the same within hosts and between them
            return Cluster(self.chip, 1, size, self.link)
        groups = collective.groups or (tuple(range(len(devices))),)
        # The group over the most hosts is the slowest, and the others wait for it.
        hosts = 0
        for group in groups:
            hosts = max(hosts, len({devices[place].process_index for place in group}))
        return Cluster(self.chip, hosts, -(-size // hosts), self.link)


def topology_named(name: str) -> Topology:
    """The accelerators of that name.

    Args:
      name: a TPU chip and how many there are along each axis: `v5e:2x4`, `v6e:16x16`, `v5p:16x16x16`; or a GPU, hosts,
        and GPUs of each: `h100:2x8`.

    Raises:
      ArgumentError: there is no such chip, or its compiler knows no such slice.
      MissingLibraryError: the compiler is not installed.
    """
    kind = check_topology(name)
    name = name.strip().lower()
    family = _family(name)
    # The compilers read it as they are loaded.
    with _environment(family.ENVIRONMENT):
        devices = tuple(family.described(name).devices)
    return Topology(name, kind, devices, family.LINK or kind.link, family.OPTIONS)


def check_topology(name: str) -> Device:
    """Returns the kind of device of that name, once it is known that there is a compiler; loads nothing.

    Raises:
      ArgumentError: there is no such device.
      MissingLibraryError: the compiler is not installed.
    """
    family = _family(name.strip().lower())
    family.check_compiler(name)
    return family.chip(name.strip().lower())


def ladder(topology: Topology, most: int) -> list[str]:
    """Names of accelerators of the same kind from the smallest to `most`; that of `topology` is one.

    Each has about four times as many as the one before it.
    """
    own = len(topology.devices)
    counts: dict[str, int] = {}
    for name in _family(topology.name).sizes(topology.name):
        count = _count(name)
        if count <= max(most, own):
            counts[name] = count
    # The one that was asked for need not be one of the usual sizes.
    counts[topology.name] = own
    return sorted(counts, key=counts.__getitem__)


def _family(name: str) -> ModuleType:
    for family in (tpus, gpus):
        if family.chip(name) is not None:
            return family
    raise ArgumentError(
        f"no topology is called {name!r}. HINT: write a TPU chip ({', '.join(tpus.CHIPS)}) and the slice's shape, such "
        f"as v5e:4x4, v6e:16x16 or v5p:4x4x8; or a GPU ({', '.join(gpus.KINDS)}), hosts and GPUs of each, such as "
        "h100:2x8. Logical CPU devices, such as cpu:8, are for --fit alone."
    )


def _count(name: str) -> int:
    return math.prod(map(int, name.partition(":")[2].split("x")))


@contextmanager
def _environment(settings: Mapping[str, str]) -> Generator[None]:
    """Sets what a compiler reads from the environment, where the user has not, and takes it back."""
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)
