"""GPUs of a machine, divided over the workers that start there."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib.util import find_spec

from jaxtribute._src.addons.launcher.environment import PLATFORMS
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import visible_gpus

_VISIBLE, _MEMORY = "CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION"
_GPU_PLATFORMS = frozenset({"cuda", "gpu", "rocm"})
_DEFAULT_MEMORY = 0.75
"""Part of a GPU's memory that JAX takes, if nothing else is said."""


def gpu_settings(options: Options, index: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Settings that give a worker its GPUs; empty if it sees what it finds.

    NCCL refuses two workers on one GPU, so several workers divide the GPUs unless the options or the environment say
    that they use others, or none.

    Args:
      options: of the launch.
      index: the worker among those of this machine.
      environment: the one that its environment is made from.

    Raises:
      ArgumentError: the GPUs that this machine shows cannot be divided so.
    """
    each, workers = options.gpus, options.workers
    if each is None:
        found = visible_gpus(environment)
        if workers == 1 or not found or options.devices is not None or not _uses_gpus(environment):
            return {}
        if options.shares_gpus:
            return _shared(found, index, workers, environment)
        each, rest = divmod(len(found), workers)
        if rest or not each:
            if not _has_plugin():  # JAX computes on CPUs here, whatever the machine has
                return {}
            raise ArgumentError(_indivisible(len(found), options))
        if options.spares:
            raise ArgumentError(
                f"--spares {options.spares} on a machine with {len(found)} GPU(s), and none has GPUs before it has a "
                "place. HINT: leave --spares out, or give --devices-per-worker N for the CPU."
            )
    return {_VISIBLE: ",".join(gpus_of(index, each, workers, environment))}


def gpus_of(index: int, each: int, workers: int, environment: Mapping[str, str]) -> list[str]:
    """The ids of the GPUs of one worker: its share of those that this machine has, or lets this process see.

    Args:
      index: the worker among those of this machine.
      each: GPUs a worker.
      workers: workers of this machine.
      environment: where `CUDA_VISIBLE_DEVICES` may stand.

    Raises:
      ArgumentError: there are not so many.
    """
    found = visible_gpus(environment)
    if each * workers > len(found):
        raise ArgumentError(
            f"{workers} workers of {each} GPU(s) each need {each * workers}, and this machine shows {len(found)} "
            f"({_VISIBLE}={environment.get(_VISIBLE)!r}). HINT: ask for fewer, or see `jaxtribute doctor`."
        )
    return found[index * each : (index + 1) * each]


def _shared(found: list[str], index: int, workers: int, environment: Mapping[str, str]) -> dict[str, str]:
    """One GPU for each island, and a part of its memory if others have it too."""
    together = -(-workers // len(found))
    part = float(environment.get(_MEMORY) or _DEFAULT_MEMORY) / together
    return {_VISIBLE: found[index % len(found)], _MEMORY: f"{part:.4g}"}


def _indivisible(found: int, options: Options) -> str:
    fewer = f"--workers {max(n for n in range(1, found + 1) if found % n == 0 and n <= options.workers)}"
    ways = [f"fewer workers ({fewer})", "--devices-per-worker N for the CPU"]
    if found > options.workers:
        ways.insert(0, f"--gpus-per-worker {found // options.workers}, which leaves {found % options.workers} idle")
    if options.min_islands is not None:
        ways.append("--share-gpus, so that islands share a GPU and its memory")
    return (
        f"{options.workers} workers cannot divide the {found} GPU(s) that this machine shows, and two workers cannot "
        f"sum their gradients on one. HINT: give {', or '.join(ways)}."
    )


def _uses_gpus(environment: Mapping[str, str]) -> bool:
    """True unless `JAX_PLATFORMS` names other platforms than those of GPUs, or another one first."""
    first = environment.get(PLATFORMS, "").split(",")[0].strip().lower()
    return not first or first in _GPU_PLATFORMS


def _has_plugin() -> bool:
    """True if the JAX of this Python has a plugin for GPUs."""
    plugins = find_spec("jax_plugins")
    places = [] if plugins is None else list(plugins.submodule_search_locations or ())
    return any(kind in each.name for each in pkgutil.iter_modules(places) for kind in ("cuda", "rocm"))
