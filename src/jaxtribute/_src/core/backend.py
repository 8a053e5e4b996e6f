"""The CPU backend of JAX before it starts: how many logical devices, and a thread pool that fits them.

XLA runs every logical CPU device on one pool of threads. Devices that meet in a collective each hold a thread while
they wait, and launches of later steps hold more. A pool smaller than twice the number of devices can starve: the
program then hangs or aborts. A pool larger than that only costs time.
"""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import jax

from jaxtribute._src.core.allocator import tune_allocator
from jaxtribute._src.core.environment import whole_number
from jaxtribute.errors import ConfigError

POOL = "PJRT_NPROC"
# Remembers the pool size that this library chose, so that a child process which inherits it can choose again.
POOL_CHOSEN = "JAXTRIBUTE_PJRT_NPROC"
_COUNT = "jax_num_cpu_devices"
_XLA_FLAG = re.compile(r"--xla_force_host_platform_device_count[=\s](\d+)")

_config = cast(Any, jax.config)


def backend_started() -> bool:
    """True if JAX has started a backend; asking does not start one."""
    present: int = _config.jax_num_cpu_devices
    try:
        # JAX refuses another value once a backend runs.
        _config.update(_COUNT, present + 1)
    except RuntimeError:
        return True
    _config.update(_COUNT, present)
    return False


def configured_cpu_devices() -> int:
    """The number of CPU devices that the CPU backend has, or will have when it starts in this process.

    Whoever set it is heard: `jax_num_cpu_devices` (also as `JAX_NUM_CPU_DEVICES`), then
    `--xla_force_host_platform_device_count` in `XLA_FLAGS`, else 1.
    """
    if backend_started():
        try:
            return len(jax.local_devices(backend="cpu"))
        except RuntimeError:
            return 0  # JAX_PLATFORMS leaves the CPU out
    configured: int = _config.jax_num_cpu_devices
    if configured >= 0:
        return configured
    flags = _XLA_FLAG.findall(os.environ.get("XLA_FLAGS", ""))
    return _as_int(flags[-1]) if flags else 1


def request_cpu_devices(count: int) -> None:
    """Sets the number of logical CPU devices and a pool that fits; the same number again changes nothing.

    Raises:
        ConfigError: The backend has already started with another number.
    """
    if backend_started():
        present = configured_cpu_devices()
        if present != count:
            raise ConfigError(
                f"cannot make {count} logical CPU devices: the JAX backend has already started with {present}. "
                "HINT: call jd.config.set_logical_cpu_devices before anything that uses a JAX device or array, "
                f"or start the program with JAXTRIBUTE_CPU_DEVICES={count}."
            )
        return
    _config.update(_COUNT, count)
    fit_thread_pool(count)


def prepare_cpu_backend() -> None:
    """Makes several CPU devices safe to use, whoever configured them; called before anything touches a device.

    It sizes the thread pool (`PJRT_NPROC`) and tunes the allocator. Once the backend runs its pool cannot change any
    more, and nothing happens. Any number of calls is as good as one.

    Raises:
        ConfigError: `JAXTRIBUTE_TUNE_ALLOCATOR` is neither true nor false.
    """
    if backend_started():
        return
    count = configured_cpu_devices()
    fit_thread_pool(count)
    if count > 1:
        tune_allocator()


def fit_thread_pool(devices: int) -> None:
    """Sets `PJRT_NPROC` to twice the number of devices where XLA's own choice, one thread a core, is smaller.

    A larger value that the user has set stays. A single device needs nothing: more threads than cores slow it down.
    """
    current, chosen = os.environ.get(POOL), os.environ.get(POOL_CHOSEN)
    # What this library chose, perhaps in a parent process, may be chosen again; what the user set stays.
    by_user = None if current == chosen else current
    needed = 2 * devices if devices > 1 else 0
    enough = _as_int(by_user) if by_user is not None else _cores()
    if needed > enough:
        os.environ[POOL] = os.environ[POOL_CHOSEN] = str(needed)
    elif by_user is None:
        os.environ.pop(POOL, None)
        os.environ.pop(POOL_CHOSEN, None)


def arithmetic() -> str:
    """Names what the last bits of results on this process's CPU devices depend on: processor, threads, compiler."""
    described = {"machine": platform.machine()}
    # Linux alone tells the features, by which the compiler chooses instructions; the first processor stands for all.
    processors = Path("/proc/cpuinfo")
    lines = processors.read_text("utf-8", "replace").splitlines() if processors.exists() else []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "flags", "Features", "CPU part"):
            described.setdefault(name.strip(), value.strip())
    described["threads"] = os.environ.get(POOL) or str(_cores())
    described["jaxlib"] = version("jaxlib")
    described["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    return repr(described)


def _as_int(text: str) -> int:
    return whole_number(text.strip()) or 0


def _cores() -> int:
    # A container or `taskset` may leave fewer cores than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
