"""One job at a time records into the folder of a run: the page and `top` would show two as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from jaxtribute._src.addons.live.files import JOB, Tail, worker_file
from jaxtribute.errors import CheckpointError, ConfigError, JaxtributeError
from jaxtribute.extending import Owner

_SPEAK_S = 2.0


def hold(directory: Path, say: Callable[[str], None]) -> Owner:
    """Makes this process the one whose job records into a folder, until it ends or the result is released.

    Waits if it is not known yet whether the process of another job has ended: at most a minute, after a kill on another
    machine.

    Args:
      directory: the run's folder, made if need be.
      say: prints a line, such as whom it waits for. The launcher has its own, and loads no JAX.

    Raises:
      ConfigError: another job records there; its process is named.
      OSError: the folder cannot be written to.
    """

    def refusal(other: object, file: Path) -> JaxtributeError:
        return ConfigError(
            f"{other} records its job in {str(directory)!r}{_since(directory)}; it holds {file}. The page and `top` "
            "would show both jobs as one. HINT: name another folder for this job, or end the other one."
        )

    told = threading.Timer(_SPEAK_S, say, [f"looks whether another job still records in {directory}"])
    told.daemon = True
    told.start()
    owner = Owner(directory, JOB, refusal=refusal)
    try:
        owner.claim()
    except CheckpointError as error:  # its file cannot be read now
        raise ConfigError(str(error)) from error
    finally:
        told.cancel()
    return owner


def _since(directory: Path) -> str:
    """The moment at which the job that is recorded was started last, as its records say."""
    files = {directory / JOB: "job", worker_file(directory, 0): "start"}
    starts = [record.get("t") for path, kind in files.items() for record in Tail(path).new() if record.get("k") == kind]
    moments = [float(moment) for moment in starts if isinstance(moment, (int, float))]
    return time.strftime(", since %Y-%m-%d %H:%M:%S", time.localtime(max(moments))) if moments else ""
