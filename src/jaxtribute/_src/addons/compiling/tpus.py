"""TPU slices by name, such as `v5e:2x4`, as the compiler in `libtpu` describes them."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental import topologies

from jaxtribute._src.addons.planning.kinds import DEVICES, Device
from jaxtribute.errors import ArgumentError, MissingLibraryError

_NAME = re.compile(r"(?P<chip>v\d+[a-z]*):(?P<shape>\d+x\d+(?:x\d+)?)")
ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Environment for `libtpu` if there is no TPU: it does not ask a server who the host is, which takes minutes, says
less, and shares the machine with other processes that compile."""
_CORES = {"v4": {"chip_config_name": "megacore"}}
"""Of chips of two cores the compiler describes each core as a device, unless it is told not to; JAX has one a chip."""
OPTIONS: dict[str, Any] = {}
LINK = None
"""Medium between hosts; None as the chips' own reaches all of them."""
CHIPS = {kind.removeprefix("tpu-"): device for kind, device in DEVICES.items() if kind.startswith("tpu-")}
"""Kinds of chips by the first part of a slice's name."""
_FLAT = ("1x1", "2x2", "4x4", "8x8", "16x16")
_CUBES = ("2x2x1", "2x2x4", "4x4x4", "4x8x8", "8x8x16", "16x16x16")


def described(name: str) -> Any:
    """JAX's description of that slice.

    Raises:
      ArgumentError: the compiler knows no such slice.
    """
    try:
        options = _CORES.get(name.partition(":")[0], {})
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
        raise ArgumentError(
            f"the TPU compiler knows no slice {name!r}: {error}. HINT: give a size that is sold, such as v5e:4x4 or "
            "v5p:4x4x4."
        ) from error


def chip(name: str) -> Device | None:
    """The kind of chip of a slice of that name; None if the name is no slice's."""
    match = _NAME.fullmatch(name)
    return None if match is None else CHIPS.get(match["chip"])


def check_compiler(name: str) -> None:
    """Refuses to go on if there is no compiler for TPUs; loads nothing.

    Raises:
      MissingLibraryError: `libtpu` is not installed.
    """
    if find_spec("libtpu") is None:
        raise MissingLibraryError(
            f"compiling for {name} needs the TPU compiler, which is not installed; it needs no TPU. "
            "HINT: pip install -e '.[tpu-compiler]' in a clone, or pip install libtpu."
        )


def sizes(name: str) -> list[str]:
    """Slices of the same chips from the smallest on, about four times as large each."""
    kind, _, shape = name.partition(":")
    return [f"{kind}:{one}" for one in (_FLAT if shape.count("x") == 1 else _CUBES)]
