"""Settings of the process, made before JAX starts: logical CPU devices, their allocator, and device aliases for tests.

| environment variable | read | meaning |
|---|---|---|
| `JAXTRIBUTE_CPU_DEVICES` | when `jaxtribute` is imported | as `set_logical_cpu_devices(n)` |
| `JAXTRIBUTE_TUNE_ALLOCATOR` | when CPU devices are set up | `0` leaves the C allocator alone |
| `JAXTRIBUTE_DEBUG` | at the first program over several workers | `collectives` is `debug_collectives(True)` |
"""

import operator
from functools import partial
from typing import SupportsIndex

from jaxtribute._src.core import allocator, backend, devices
from jaxtribute._src.core.backend import prepare_cpu_backend
from jaxtribute._src.core.environment import CPU_DEVICES, count, reader, shown
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ConfigError

MOST_DEVICES = 1 << 14
_cpu_devices_told = reader(CPU_DEVICES, partial(count, CPU_DEVICES, 0, 1, MOST_DEVICES))
"""Logical CPU devices of a process; with each come two threads."""


def set_logical_cpu_devices(n: SupportsIndex, *, tune_allocator: bool = True) -> None:
    """Splits the CPU into `n` logical devices, on which every strategy runs as on `n` accelerators.

    Call it before JAX starts: before anything that asks for a device or makes an array. It sets `jax_num_cpu_devices`,
    and `PJRT_NPROC` so that XLA's thread pool fits the devices: with a smaller pool collectives can hang for ever.
    Where an accelerator is present it stays the default; name the CPU devices (`"CPU:0"`, ...) to use them.

    Args:
        n: The number of devices of this process, at least 1. The same number again is always allowed.
        tune_allocator: Whether glibc may keep freed memory for the next step, which makes large models up to twice as
            fast on CPU and leaves the memory of the process at its highest mark. `JAXTRIBUTE_TUNE_ALLOCATOR=0` says no
            too.

    Raises:
        ArgumentTypeError: `n` is no integer.
        ArgumentError: `n` is less than 1, or more than 16,384.
        ConfigError: JAX has already started with another number of devices.

    Source: `tf.config.set_logical_device_configuration` for a CPU.
    """
    number = _device_count(n)
    if devices.are_described():
        return  # strategies take none of these
    backend.request_cpu_devices(number)
    if tune_allocator:
        allocator.tune_allocator()
    else:
        # Said once, it holds: strategies would tune the allocator later on.
        allocator.leave_allocator_alone()


def apply_environment() -> None:
    """Applies the environment variables; `import jaxtribute` calls it once, and it starts no backend.

    Without `JAXTRIBUTE_CPU_DEVICES`, CPU devices that were configured by JAX's own means still get a thread pool that
    fits them, so that code which compiles by itself is safe too.

    Raises:
        ConfigError: A variable has an invalid value, or JAX has already started with another number of devices.
    """
    wanted = _cpu_devices_told()
    if not wanted:
        prepare_cpu_backend()
        return
    try:
        set_logical_cpu_devices(wanted)
    except ConfigError as error:
        present = backend.configured_cpu_devices()
        # Another error, or one that is not about the time: it says itself what is wrong.
        if not backend.backend_started() or present == wanted:
            raise
        raise ConfigError(
            f"{CPU_DEVICES}={wanted} comes too late: JAX had started, with {present} CPU devices, before "
            "jaxtribute was imported. HINT: move `import jaxtribute` above the first line that makes a JAX array or "
            "asks for devices."
        ) from error


def _device_count(n: SupportsIndex) -> int:
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise ArgumentTypeError(
            f"the number of logical CPU devices must be an int, not {n!r} of type {type(n).__name__}. "
            "HINT: write jd.config.set_logical_cpu_devices(4)."
        )
    number = operator.index(n)
    if not 1 <= number <= MOST_DEVICES:
        raise ArgumentError(f"{shown(number)} logical CPU devices cannot be made. HINT: ask for 1 to {MOST_DEVICES}.")
    return number
