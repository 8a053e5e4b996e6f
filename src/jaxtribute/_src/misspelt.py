"""Environment variables whose names are nearly those of settings: nobody would read them."""

from __future__ import annotations

import os

_PREFIX = "JAXTRIBUTE_"
SETTINGS = frozenset(
    _PREFIX + name
    for name in (
        "BIND_ADDRESS CPU_DEVICES DEBUG FAULTS INCARNATION LAST_CALL LAUNCHER LOCAL_CLUSTER MEMORY PJRT_NPROC "
        "PREEMPTION_REPORT RAY_TASK RESTART RUN RUN_TASK SEARCHING SILENCE_S SLURM_GPUS SPARE STRAGGLERS_S TIMEOUT_S "
        "TRACK TUNE_ALLOCATOR"
    ).split()
)
"""All that are read, those too that the library sets for its own processes."""


def misspelt() -> dict[str, str]:
    """Environment variables whose names are nearly those of settings; each with the setting."""
    meant: dict[str, str] = {}
    for name in os.environ.keys() - SETTINGS:
        if name.startswith(_PREFIX):
            import difflib  # few programs have one

            own = [setting.removeprefix(_PREFIX) for setting in SETTINGS]
            for near in difflib.get_close_matches(name.removeprefix(_PREFIX), own, 1, 0.8):
                meant[name] = _PREFIX + near
    return meant


def check_names() -> None:
    """Warns of environment variables whose names are nearly those of settings."""
    for name, meant in misspelt().items():
        from jaxtribute._src.core.callers import warn

        warn(f"{name} is not read. HINT: set {meant}, if that is meant.")
