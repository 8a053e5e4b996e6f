"""Compiled programs that outlive the process: JAX's persistent compilation cache, switched on by one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from jaxtribute.errors import ArgumentTypeError, ConfigError

DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
"""JAX's own variable for the folder; whoever has set it is heard."""
SHORTEST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
_SHORTEST_S = 0.05
"""Programs that compile faster are not worth a file each: a training has hundreds, of single operations."""


def default_directory() -> Path:
    """Returns the user's own folder for compiled programs: below `XDG_CACHE_HOME`, or `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache"
    return Path(home) / "jaxtribute" / "programs"


def enable_compilation_cache(directory: str | os.PathLike[str] | None = None) -> str:
    """Keeps compiled programs in a folder, where the next start of the same program finds them.

    A restart after a failure or a preemption then loads its programs rather than compile them. JAX finds a program by
    its code, shapes, devices, compiler flags and versions; one that cannot be read is compiled again, with a warning.
    All workers may share the folder. `jaxtribute launch` switches the cache on for the restarts of a job by itself.

    Args:
      directory: the folder, which is made if it is missing. By default that of `JAX_COMPILATION_CACHE_DIR`, else
        `jaxtribute/programs` in the user's folder for caches. Nothing is ever deleted there: JAX's
        `jax_compilation_cache_max_size` limits it, in bytes.

    Returns:
      The folder.

    Raises:
      ArgumentTypeError: `directory` is no path.
      ConfigError: the folder cannot be made or written.

    Source: `jax_compilation_cache_dir` of JAX.
    """
    if directory is not None and not isinstance(directory, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"the folder of compiled programs must be a path, not {directory!r} of type {type(directory).__name__}. "
            "HINT: jd.config.enable_compilation_cache('/scratch/programs')."
        )
    folder = Path(directory or os.environ.get(DIRECTORY, "").strip() or default_directory()).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise ConfigError(f"{folder} cannot keep compiled programs: {error}. HINT: pass another folder.") from error
    if not writable:
        raise ConfigError(f"{folder} cannot be written, so no compiled program is kept. HINT: pass another folder.")
    import jax
    from jax.experimental.compilation_cache import compilation_cache  # starts should be quick

    config = cast("Any", jax.config)
    config.update("jax_compilation_cache_dir", str(folder))
    # Set by the user, it holds, as the folder does.
    if SHORTEST not in os.environ:
        config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_S)
    # Whatever its size: a small program may have taken long to compile.
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX looks for the folder once, at the first program that it compiles, which may have been before this call.
    compilation_cache.reset_cache()
    return str(folder)


def cache_environment(folder: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that switch the cache on in processes that are started; none if the user has set one.

    Args:
      folder: the folder for compiled programs.
      inherited: the variables that the processes have.
    """
    if DIRECTORY in inherited or inherited.get("JAX_ENABLE_COMPILATION_CACHE", "1").lower() in ("0", "false"):
        return {}
    settings = {DIRECTORY: folder, "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    return settings if SHORTEST in inherited else {**settings, SHORTEST: str(_SHORTEST_S)}
