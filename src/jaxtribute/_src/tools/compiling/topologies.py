"""TPU slices by name, such as `v5e:2x4`, as the compiler in `libtpu` describes them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental import topologies

from jaxtribute._src.tools.planning.kinds import DEVICES, Device
from jaxtribute.errors import ArgumentError, MissingLibraryError

_NAME = re.compile(r"(?P<chip>v\d+[a-z]*):(?P<shape>\d+x\d+(?:x\d+)?)")
QUIET = {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Environment for `libtpu` where there is no TPU: it does not ask a server who the host is, which takes minutes, says
less, and shares the machine with other processes that compile."""
_FLAT = ("1x1", "2x2", "4x4", "8x8", "16x16")
_CUBES = ("2x2x1", "2x2x4", "4x4x4", "4x8x8", "8x8x16", "16x16x16")


@dataclass(frozen=True)
class Topology:
    """A slice of TPU chips that programs can be compiled for.

    Attributes:
      name: such as `v5e:2x4`.
      chip: what one chip can do.
      devices: the devices that its compiler knows, in its order.
    """

    name: str
    chip: Device
    devices: tuple[jax.Device, ...]

    @property
    def hosts(self) -> int:
        """The number of machines that the devices are attached to."""
        return len({device.process_index for device in self.devices})


def topology_named(name: str) -> Topology:
    """The slice of that name.

    Args:
      name: a chip and how many there are along each axis: `v5e:2x4`, `v6e:16x16`, `v4:2x2x4`, `v5p:16x16x16`.

    Raises:
      ArgumentError: there is no such chip, or the compiler knows no such slice.
      MissingLibraryError: `libtpu` is not installed.
    """
    chip = check_topology(name)
    with _quiet():
        try:
            found: Any = topologies.get_topology_desc(platform="tpu", topology_name=name.lower())
        except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
            raise ArgumentError(
                f"the TPU compiler knows no slice {name!r}: {error}. HINT: give a size that is sold, such as v5e:4x4 "
                "or v5p:4x4x4."
            ) from error
    return Topology(name.lower(), chip, tuple(found.devices))


def check_topology(name: str) -> Device:
    """Returns the kind of chip of that slice, once it is known that there is a compiler; loads nothing.

    Raises:
      ArgumentError: there is no such chip.
      MissingLibraryError: `libtpu` is not installed.
    """
    chip, _ = _parsed(name)
    if find_spec("libtpu") is None:
        raise MissingLibraryError(
            f"compiling for {name} needs the TPU compiler, which is not installed; it needs no TPU. "
            "HINT: pip install 'jaxtribute[tpu-compiler]', or pip install libtpu."
        )
    return chip


def ladder(name: str, most: int) -> list[str]:
    """Slices of the same chips from the smallest to `most` chips, about four times as large each; `name` is one."""
    chip, shape = _parsed(name)
    prefix = name.lower().partition(":")[0]
    kinds = _FLAT if len(shape) == 2 else _CUBES
    del chip
    counts = {f"{prefix}:{kind}": math.prod(map(int, kind.split("x"))) for kind in kinds}
    counts[name.lower()] = math.prod(shape)
    chosen = [kind for kind, count in counts.items() if count <= max(most, math.prod(shape))]
    return sorted(chosen, key=lambda kind: counts[kind])


def _parsed(name: str) -> tuple[Device, tuple[int, ...]]:
    match = _NAME.fullmatch(name.strip().lower())
    chips = {kind.removeprefix("tpu-"): device for kind, device in DEVICES.items() if kind.startswith("tpu-")}
    if match is None or match["chip"] not in chips:
        raise ArgumentError(
            f"no topology is called {name!r}. HINT: write the chip ({', '.join(chips)}) and the slice's shape, such as "
            "v5e:4x4, v6e:16x16 or v5p:4x4x8."
        )
    return chips[match["chip"]], tuple(int(size) for size in match["shape"].split("x"))


@contextmanager
def _quiet() -> Generator[None]:
    """Sets what `libtpu` reads from the environment, where the user has not, and takes it back."""
    added = {name: value for name, value in QUIET.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)
