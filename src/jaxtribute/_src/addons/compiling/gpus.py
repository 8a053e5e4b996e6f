"""Hosts of GPUs by name, such as `h100:2x8`, as XLA's compiler for CUDA describes them.

The compiler asks a GPU for the figures below. If there is none, it takes them from a text. They are those of
NVIDIA's data sheets and of the descriptions that XLA keeps of the same GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import jax
from jax.experimental import topologies

from jaxtribute._src.addons.planning.kinds import DEVICES, Device, link_named
from jaxtribute.errors import ArgumentError, MissingLibraryError

ENVIRONMENT = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
"""Environment for the compiler if there is no GPU: nothing asks a driver for its version."""
OPTIONS = {"xla_gpu_autotune_level": 0}
"""The compiler measures no candidates for a product, for which it would need the GPU."""
LINK = link_named("infiniband-ndr")
"""Medium between hosts."""
_NAME = re.compile(r"(?P<kind>[a-z]+\d+):(?P<hosts>[1-9]\d*)x(?P<each>[1-9]\d*)")
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_HOSTS = (1, 2, 8, 32, 128, 512)


@dataclass(frozen=True)
class Figures:
    """Figures of a GPU as its compiler asks for them.

    Attributes:
      name: what the driver calls the GPU.
      capability: the first number of its compute capability.
      cores: streaming multiprocessors.
      units: 32-bit units of each.
      clock: GHz.
      bandwidth: bytes a second of its memory.
      memory: bytes of memory.
      cache: bytes of the second-level cache.
      shared: bytes of shared memory of a core.
    """

    name: str
    capability: int
    cores: int
    units: int
    clock: float
    bandwidth: int
    memory: int
    cache: int
    shared: int


FIGURES = {
    "a100": Figures("NVIDIA A100-SXM4-80GB", 8, 108, 64, 1.41, 2_039_040_000_000, 85_100_068_864, 40 << 20, 164 << 10),
    "h100": Figures("NVIDIA H100 80GB HBM3", 9, 132, 128, 1.98, 3_352_320_000_000, 84_942_979_072, 50 << 20, 228 << 10),
    "h200": Figures("NVIDIA H200", 9, 132, 128, 1.98, 4_800_000_000_000, 151_397_597_184, 50 << 20, 228 << 10),
    "b200": Figures("NVIDIA B200", 10, 148, 128, 1.965, 7_672_320_000_000, 191_514_411_008, 132_644_864, 228 << 10),
}
KINDS = tuple(FIGURES)
"""Kinds of GPUs that can be compiled for."""


def described(name: str) -> Any:
    """JAX's description of those hosts.

    Raises:
      ArgumentError: the compiler refuses them.
    """
    match = _NAME.fullmatch(name)
    assert match is not None
    try:
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name=match["kind"],
            target_config=_text(FIGURES[match["kind"]]),
            # Partitions, hosts of each, devices of each.
            topology=f"1x{match['hosts']}x{match['each']}",
        )
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
        raise ArgumentError(
            f"the compiler for CUDA takes no {name!r}: {error}. HINT: write hosts and GPUs of each, such as h100:2x8."
        ) from error


def chip(name: str) -> Device | None:
    """The kind of GPU of hosts of that name; None if the name is no such hosts'."""
    match = _NAME.fullmatch(name)
    return None if match is None or match["kind"] not in FIGURES else DEVICES[match["kind"]]


def check_compiler(name: str) -> None:
    """Refuses to go on if there is no compiler for CUDA; loads nothing.

    Raises:
      MissingLibraryError: JAX's plugin for CUDA is not installed.
    """
    if not any(map(find_spec, _PLUGINS)):
        parts = _NAME.fullmatch(name)
        kind, hosts, each = parts.group("kind", "hosts", "each") if parts else ("h100", "1", "8")
        raise MissingLibraryError(
            f"compiling for {name} needs JAX's plugin for CUDA, which is not installed; it needs neither GPU nor "
            "driver. HINT: pip install -e '.[gpu-compiler]' in a clone, or pip install 'jax[cuda12]' (5 GB). Without, "
            f"jaxtribute plan --device-kind {kind} --hosts {hosts} --devices {each} predicts from the program alone, "
            "as --fit does."
        )


def sizes(name: str) -> list[str]:
    """Hosts of as many of the same GPUs each: one, two, and then four times as many each."""
    kind, _, shape = name.partition(":")
    each = shape.partition("x")[2]
    return [f"{kind}:{hosts}x{each}" for hosts in _HOSTS]


def _text(figures: Figures) -> str:
    """The figures as the compiler reads them: fields of a protocol buffer, as text."""
    device: dict[str, int | float] = {
        "core_count": figures.cores,
        "fpus_per_core": figures.units,
        "clock_rate_ghz": figures.clock,
        "memory_bandwidth": figures.bandwidth,
        "device_memory_size": figures.memory,
        "l2_cache_size": figures.cache,
        "shared_memory_per_core": figures.shared,
        # A kilobyte of each core's shared memory is the system's; a block gets 48 without asking.
        "shared_memory_per_block_optin": figures.shared - (1 << 10),
        "shared_memory_per_block": 48 << 10,
        # The same in all of these, as CUDA's programming guide has them for each compute capability.
        "threads_per_warp": 32,
        "threads_per_block_limit": 1024,
        "threads_per_core_limit": 2048,
        "registers_per_core_limit": 1 << 16,
        "registers_per_block_limit": 1 << 16,
        "block_dim_limit_x": (1 << 31) - 1,
        "block_dim_limit_y": (1 << 16) - 1,
        "block_dim_limit_z": (1 << 16) - 1,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
    }
    fields = "\n".join(f"  {key}: {value}" for key, value in device.items())
    capability = f"  cuda_compute_capability {{ major: {figures.capability} }}"
    rest = (
        f'platform_name: "CUDA"\ndnn_version_info {{ major: 9 minor: 10 }}\ndevice_description_str: "{figures.name}"\n'
    )
    return f"gpu_device_info {{\n{fields}\n{capability}\n}}\n{rest}"
