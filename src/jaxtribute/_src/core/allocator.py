"""Memory allocation on CPU devices.

glibc returns each large buffer to the kernel when it is freed, and every step of a large model then pays for the page
faults of getting it back. Told to keep freed memory, the same step takes about half the time (README, "CPU devices").
"""

import ctypes
import os
import sys

from jaxtribute._src.core.environment import reader
from jaxtribute.errors import ConfigError

SWITCH = "JAXTRIBUTE_TUNE_ALLOCATOR"

# Parameters of mallopt(3) and their values, which are C ints. Buffers up to 1 GiB come from the heap, the heap is never
# trimmed, and it grows by 256 MiB at a time: smaller steps made the time of a training step vary.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": (_M_MMAP_THRESHOLD, 1 << 30),
    "MALLOC_TRIM_THRESHOLD_": (_M_TRIM_THRESHOLD, (1 << 31) - 1),
    "MALLOC_TOP_PAD_": (_M_TOP_PAD, 1 << 28),
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

_decided: bool | None = None


def wanted_by_environment() -> bool:
    """True if `JAXTRIBUTE_TUNE_ALLOCATOR` allows tuning; true if it is not set.

    Raises:
        ConfigError: The variable is neither true nor false.
    """
    value = os.environ.get(SWITCH, "1").strip().lower()
    if value not in _TRUE + _FALSE:
        raise ConfigError(f"{SWITCH}={os.environ[SWITCH]!r} is neither true nor false. HINT: set it to 0 or 1.")
    return value in _TRUE


reader(SWITCH, wanted_by_environment)


def leave_allocator_alone() -> None:
    """Keeps a later `tune_allocator()` of this process from changing anything."""
    global _decided
    if _decided is None:
        _decided = False


def tune_allocator() -> bool:
    """Makes the C allocator keep freed memory for the next step; the first call of a process decides.

    The memory of the process then stays at its highest mark. Only glibc on Linux is changed. Parameters that the user
    has set through glibc's own environment variables (`MALLOC_TOP_PAD_` and its siblings, or `GLIBC_TUNABLES`) stay.

    Returns:
        Whether the allocator is tuned now; false if it cannot be, or where the user said no.

    Raises:
        ConfigError: `JAXTRIBUTE_TUNE_ALLOCATOR` is neither true nor false.
    """
    global _decided
    if _decided is None:
        _decided = wanted_by_environment() and _apply()
    return _decided


def _apply() -> bool:
    if not _is_glibc() or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    # glibc itself reads these variables as the process starts: what the user set is in force.
    chosen = [setting for variable, setting in _SETTINGS.items() if variable not in os.environ]
    answers = [mallopt(parameter, value) for parameter, value in chosen]
    return all(answer == 1 for answer in answers)  # 1 is mallopt's success


def _is_glibc() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (OSError, ValueError):
        return False  # another C library, such as musl
