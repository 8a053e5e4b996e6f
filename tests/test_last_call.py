"""The call that a rank is in, in memory that outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxtribute._src import last_call
from jaxtribute._src.addons.launcher.last_calls import LastCalls

PROGRAM = """
import json, os, subprocess, sys
import jax.numpy as jnp
import jaxtribute as jd
from jaxtribute._src.core.cluster import runtime, step_log
from jaxtribute._src.core.cluster.step_log import StepLog

for call in runtime.before_start:
    if call.__module__.endswith("last_call"):
        call(None, "", 1.0)
log = StepLog()
for call in json.loads(sys.argv[1]):
    if call == "batch":
        log.batches += 1
    elif call.startswith("barrier"):
        log.meets(call, "train.py:7")
    else:
        log.entering(call)  # a step
        log.dispatched(())
assert "JAXTRIBUTE_LAST_CALL" not in os.environ
os.abort()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([], None),
        (["batch", "train"], "step 1 of train, first called at {line}, after 1 batches"),
        (
            ["batch", "train", "a-very-long-name" * 9, "batch", "train"],
            "step 3 of train, first called at {line}, after 2",
        ),
        (["batch", "train", "barrier"], "barrier, after step 1, called at train.py:7, after 1 batches"),
        (["x" * 9000], "step 1 of xxx"),
    ],
)
def test_the_last_call_is_there_after_an_abort(tmp_path: Path, calls: list[str], told: str | None) -> None:
    files = LastCalls(tmp_path)
    command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    done = subprocess.run(
        command, env={**os.environ, **files.environment(3)}, check=False, capture_output=True, timeout=100
    )
    assert done.returncode == -signal.SIGABRT, done.stderr
    found = files.read()
    assert list(found) == ([] if told is None else [3])
    if told is not None:
        line = PROGRAM.splitlines().index("        log.entering(call)  # a step") + 1
        assert found[3].startswith(told.format(line=f"<string>:{line}")), found


def test_a_file_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    for path in (tmp_path / "none", tmp_path / "empty", tmp_path):
        monkeypatch.setenv(last_call.FILE, str(path))
        last_call._open(None, "", 1.0)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
        assert last_call.FILE not in os.environ
