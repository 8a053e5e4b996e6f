"""Finds the accelerators that this process may use, without starting JAX: a cluster is joined before JAX starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """The ids of the NVIDIA GPUs that `CUDA_VISIBLE_DEVICES` names; without it, those that the machine has.

    Args:
      environ: the environment.
      devices: the folder of device files.
    """
    listed = environ.get(VISIBLE)
    if listed is None:
        # One file per GPU: nvidia0, nvidia1. The others (nvidiactl, nvidia-uvm) are not GPUs.
        return sorted(filter(str.isdecimal, (path.name[6:] for path in devices.glob("nvidia[0-9]*"))), key=int)
    # CUDA stops reading at the first id that is not a GPU's, such as -1 or NoDevFiles.
    names = map(str.strip, listed.split(","))
    return list(takewhile(lambda name: name[:1].isdigit() or name.startswith(("GPU-", "MIG-")), names))


def local_accelerators(environ: Mapping[str, str]) -> dict[str, int]:
    """The number of this process's accelerators by type, such as `{"GPU": 8}`; empty if there is only a CPU."""
    # The launcher looks for GPUs too, and needs no JAX.
    import jax

    from jaxtribute._src.core.backend import backend_started

    if backend_started():
        kinds = Counter(device.platform.upper() for device in jax.local_devices())
        return {kind: count for kind, count in kinds.items() if kind != "CPU"}
    gpus = visible_gpus(environ)
    return {"GPU": len(gpus)} if gpus else {}
