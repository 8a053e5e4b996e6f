"""Compares the devices that JAX finds with those that this machine and its settings promise."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import jax

from jaxtribute._src.backend import POOL
from jaxtribute._src.cluster.accelerators import VISIBLE, visible_gpus
from jaxtribute._src.tools.doctor.findings import Finding, Level
from jaxtribute._src.tools.doctor.situation import Situation

_PLATFORMS = "JAX_PLATFORMS"


def check(situation: Situation) -> Iterator[Finding]:
    """Starts JAX and counts."""
    try:
        devices = jax.local_devices()
    except RuntimeError as error:
        yield Finding(
            Level.ERROR,
            "devices",
            f"JAX does not start: {error}",
            f"unset {_PLATFORMS}={situation.environ[_PLATFORMS]!r}, or install JAX for that platform."
            if situation.environ.get(_PLATFORMS)
            else "install JAX for this machine's accelerators: https://docs.jax.dev/en/latest/installation.html",
        )
        return
    kinds = Counter(f"{device.platform.upper()} ({device.device_kind})" for device in devices)
    yield Finding(Level.FACT, "devices", ", ".join(f"{count} x {kind}" for kind, count in kinds.items()))
    yield from _gpus(situation, sum(device.platform in ("gpu", "cuda", "rocm") for device in devices))
    cpus = sum(device.platform == "cpu" for device in devices)
    if cpus > 1:
        yield from _pool(situation, cpus)


def _gpus(situation: Situation, found: int) -> Iterator[Finding]:
    promised = len(visible_gpus(situation.environ))
    if promised == found:
        return
    listed = situation.environ.get(VISIBLE)
    source = f"{VISIBLE}={listed!r} names" if listed is not None else "this machine has"
    platforms = situation.environ.get(_PLATFORMS, "")
    if found == 0 and platforms and not {"cuda", "gpu", "rocm"} & set(platforms.split(",")):
        yield Finding(Level.FACT, "GPUs", f"{source} {promised}, and {_PLATFORMS}={platforms!r} leaves them out")
    elif found == 0:
        fix = (
            "pip install 'jax[cuda12]', or see the driver with nvidia-smi; JAX_PLATFORMS=cpu says that none is wanted."
        )
        yield Finding(Level.ERROR, "GPUs", f"{source} {promised}, JAX finds none", fix)
    else:
        fix = f"let {VISIBLE} name GPUs that nvidia-smi lists, once each, before Python starts."
        yield Finding(Level.ERROR, "GPUs", f"{source} {promised}, JAX finds {found}", fix)


def _pool(situation: Situation, devices: int) -> Iterator[Finding]:
    size = situation.environ.get(POOL, os.environ.get(POOL, ""))
    if size.isdecimal() and int(size) < 2 * devices:
        yield Finding(
            Level.WARNING,
            "thread pool",
            f"{POOL}={size} for {devices} CPU devices, which can wait for each other for ever",
            f"unset {POOL}: jaxtribute chooses {2 * devices}.",
        )
