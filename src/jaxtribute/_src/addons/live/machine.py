"""This process and its devices, for the records of a run."""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import jax

from jaxtribute.typing import Device, Json

_STATM = Path("/proc/self/statm")


def description() -> dict[str, Json]:
    """The program and where it runs."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxtribute": version("jaxtribute"),
        "program": " ".join(sys.argv)[:500],
    }


def usage(devices: Sequence[Device]) -> dict[str, Json]:
    """Memory of the process and of each device in bytes, and seconds of all its cores."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, Json] = {"rss": _resident(used.ru_maxrss), "cpu": round(used.ru_utime + used.ru_stime, 2)}
    # Devices of the CPU do not tell: their memory is that of the process.
    memory = [stats for stats in map(_memory, devices) if stats is not None]
    if memory:
        found["mem"] = memory
    return found


def _resident(most_kb: int) -> int:
    """Bytes of this process in memory; where the system does not tell, the most that it had."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return most_kb * 1024


def _memory(device: Device) -> list[int] | None:
    """Bytes in use, and all bytes, of a device that tells."""
    stats = device.memory_stats()
    if not stats or "bytes_in_use" not in stats:
        return None
    return [int(stats["bytes_in_use"]), int(stats.get("bytes_limit", 0))]
