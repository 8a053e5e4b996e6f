"""Processes that look at a script or measure this machine, and answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtribute.errors import DeadlineError, ProcessFailedError

DEADLINE_S = 300.0
_POOL = ("PJRT_NPROC", "JAXTRIBUTE_PJRT_NPROC")


def run_module(
    module: str,
    arguments: Sequence[str],
    devices: int,
    workers: int = 1,
    *,
    settings: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> dict[str, Any]:
    """Runs a module in a process with so many CPU devices, where there is no accelerator, and returns what it answers.

    Args:
      module: its last line of output is the answer, in JSON.
      arguments: what follows its name.
      devices: devices of each process.
      workers: processes that form a cluster; the first one's answer counts.
      settings: further variables of the environment.
      deadline_s: seconds after which it is ended.

    Raises:
      DeadlineError: it does not end in time.
      ProcessFailedError: it fails.
    """
    environment = os.environ | {"JAXTRIBUTE_CPU_DEVICES": str(devices)} | dict(settings or {})
    # It is to see this machine alone, and to size its thread pool for its own number of devices.
    for name in ("TF_CONFIG", *_POOL):
        environment.pop(name, None)
    launcher = ["jaxtribute.cli", "launch", "--workers", str(workers), "-m"] if workers > 1 else []
    command = [sys.executable, "-m", *launcher, module, *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=deadline_s, check=False)
    except subprocess.TimeoutExpired:
        raise DeadlineError(
            f"{module} on {devices} devices has not ended in {deadline_s:.0f} s. HINT: plan a smaller step."
        ) from None
    if done.returncode:
        raise ProcessFailedError(
            f"{module} on {devices} devices ended with {done.returncode}. HINT: run the script by itself first. It "
            f"printed:\n{done.stdout}{done.stderr}"
        )
    # The script prints what it likes; the answer comes last.
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines()]  # the launcher's mark of rank 0
    return json.loads([line for line in lines if line.startswith("{")][-1])
