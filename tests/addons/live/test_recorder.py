"""Records that a process writes of itself while it trains."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.launcher.environment import RUN
from jaxtribute._src.addons.live import starting
from jaxtribute._src.addons.live.files import worker_file
from jaxtribute._src.addons.live.recorder import Recorder
from jaxtribute._src.addons.live.state import Run
from jaxtribute._src.core.observers import INPUT, KINDS, SAVE, WAIT
from processes import run_python

PROGRAM = """
import os, signal, sys, time
import jax, jax.numpy as jnp, numpy as np
import jaxtribute as jd

jd.config.record_run(sys.argv[1])
strategy = jd.MirroredStrategy()
data = strategy.experimental_make_numpy_dataset(np.ones((640, 4), np.float32)).batch(64)
with strategy.scope():
    total = jd.Variable(0.0, name="total")

@jd.function
def step(batch):
    return total.assign_add(strategy.reduce("SUM", strategy.run(jnp.sum, args=(batch,)), axis=None))

def train(epochs):
    with jd.summary.Writer(sys.argv[1] + "/figures", trackers=["jsonl"]) as writer:
        for _ in range(epochs):
            for batch in strategy.experimental_distribute_dataset(data):
                writer.write(total=step(batch))

train(3)
checkpoint = jd.Checkpoint(total=total)
checkpoint.write(sys.argv[1] + "/saved", block=True)
"""


def records(directory: Path) -> list[dict[str, Any]]:
    """The records of worker 0."""
    return [json.loads(line) for line in worker_file(directory, 0).read_bytes().splitlines()]


@pytest.mark.slow
def test_a_training_that_ends_well(tmp_path: Path) -> None:
    run_python(
        PROGRAM + "\nfor thread in __import__('threading').enumerate(): assert thread.name", str(tmp_path), devices=2
    )
    found = records(tmp_path)
    kinds = [record["k"] for record in found]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert {"devices", "save", "write start", "write end"} <= set(kinds)
    windows = [record for record in found if record["k"] == "w"]
    assert sum(window.get("n", 0) for window in windows) == 30
    assert sum(window["x"] for window in windows) == 3 * 640
    metrics = [window["m"]["total"] for window in windows if "m" in window]
    assert metrics[-1] == 3 * 640 * 4
    state = Run(tmp_path).state()
    assert state["status"] == "ended"
    assert sum(state["goodput"].values()) == pytest.approx(state["wall"], rel=0.01)
    assert [event["kind"] for event in state["events"]] == ["save"]
    assert not (tmp_path / "worker-00000.now.json").exists()


@pytest.mark.slow
def test_a_training_that_is_killed_and_started_again(tmp_path: Path) -> None:
    run_python(
        PROGRAM + "\ntime.sleep(1.5)\nos.kill(os.getpid(), signal.SIGKILL)",
        str(tmp_path),
        devices=2,
        status=-signal.SIGKILL,
    )
    with worker_file(tmp_path, 0).open("ab") as file:
        file.write(b'{"k":"w","t":17')  # as a kill in the middle of a write would leave it
    run_python(PROGRAM, str(tmp_path), devices=2)
    lines = worker_file(tmp_path, 0).read_bytes().splitlines()
    assert b'{"k":"w","t":17' in lines
    state = Run(tmp_path).state()
    assert state["starts"] == 2
    assert state["goodput"]["recovery"] > 0.1
    assert sum(state["goodput"].values()) == pytest.approx(state["wall"], rel=0.01)


@pytest.mark.slow
def test_a_training_that_raises(tmp_path: Path) -> None:
    run_python(PROGRAM + "\nraise ValueError('<b>no</b>')", str(tmp_path), devices=2, status=1)
    state = Run(tmp_path).state()
    assert state["status"] == "failed"
    (event,) = [event for event in state["events"] if event["kind"] == "failure"]
    assert event["text"] == "ValueError: <b>no</b>"
    assert "Traceback (most recent call last)" in event["details"]
    assert records(tmp_path)[-1]["failed"]


@pytest.mark.slow
def test_a_folder_that_fills_up_ends_no_training(tmp_path: Path) -> None:
    code = """
    import os, sys
    from jaxtribute._src.addons.live import files
    real = os.write
    def full(descriptor, data):
        if data.startswith(b'{"k":"w"'):
            raise OSError(28, "No space left on device")
        return real(descriptor, data)
    files.os.write = full
    """
    import textwrap

    printed = run_python(
        textwrap.dedent(code) + PROGRAM + "\ntime.sleep(2.5)\nprint('trained')", str(tmp_path), devices=2
    )
    assert "trained" in printed
    assert "the run is no longer recorded" in printed


def observed_kinds() -> list[str]:
    """The kinds that somebody observes."""
    return [kind.name for kind in KINDS.values() if kind.observers]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recorder]:
    """A recorder of this process."""
    started = starting.start_recording(tmp_path, 0, "worker")
    yield started
    started.close()
    assert observed_kinds() == []


def test_one_recorder_a_process(tmp_path: Path, recording: Recorder) -> None:
    with pytest.raises(jd.errors.ConfigError, match=r"recorded already.*HINT: call jd.config.record_run once"):
        jd.config.record_run(tmp_path)
    assert sys.excepthook == recording._note_exception  # pyright: ignore[reportPrivateUsage]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(jd.errors.ConfigError, match=r"rank 0 cannot record the run in .*HINT: name a folder"):
        jd.config.record_run(tmp_path / "file" / "run")
    assert observed_kinds() == []


def test_the_environment_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setenv(RUN, str(tmp_path))
    monkeypatch.setattr(starting, "record_run", asked.append)
    starting.apply_environment()
    assert asked == [str(tmp_path)]
    assert RUN not in os.environ
    starting.apply_environment()
    assert len(asked) == 1


def test_nobody_looks_by_default() -> None:
    assert observed_kinds() == []


def test_compiling_is_no_part_of_a_step_time(tmp_path: Path, recording: Recorder) -> None:
    total = jd.Variable(0.0, name="total")
    step = jd.function(lambda: total.assign_add(1.0))

    def compiled_slowly() -> Any:
        time.sleep(0.4)
        return jnp.zeros(())

    for _ in range(3):
        step()
        jax.jit(lambda: compiled_slowly())()  # noqa: PLW0108 (another program each time)
    for _ in range(40):
        step()
    recording.close()
    longest = Run(tmp_path).state()["step"]["p99"]
    assert longest is not None
    assert longest < 0.3


@pytest.mark.parametrize("skipped", [0, 1, 5])
def test_batches_that_are_skipped_before_the_first_step_are_no_examples(
    tmp_path: Path, recording: Recorder, skipped: int
) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        total = jd.Variable(0.0, name="total")

    @jd.function
    def step(batch: Any, other: Any) -> Any:
        sums = [strategy.reduce("SUM", strategy.run(jnp.sum, args=(one,)), axis=None) for one in (batch, other)]
        return total.assign_add(sums[0] + sums[1])

    def batches() -> Any:
        data = strategy.experimental_make_numpy_dataset(np.ones((80, 1), np.float32)).batch(8)
        return iter(strategy.experimental_distribute_dataset(data))

    # Two iterators, of which both are used; the second epoch draws one batch without a step, as another step may.
    for skip in (skipped, 0):
        for batch, other in zip(islice(batches(), skip, None), islice(batches(), skip, None), strict=True):
            step(batch, other)
        with closing(batches()) as one:
            next(one)
    recording.close()
    assert float(total) == 2 * 8 * (20 - skipped)
    (worker,) = Run(tmp_path).state()["workers"]
    assert worker["examples"] == 2 * 8 * (20 - skipped) + 2 * 8


def test_events_of_other_threads_and_those_that_raise(tmp_path: Path, recording: Recorder) -> None:
    from concurrent.futures import ThreadPoolExecutor

    inside = recording.noted.inside

    def kinds() -> list[str]:
        return [event.kind for event in inside]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(SAVE.around, kinds, None, "elsewhere").result() == []
    with pytest.raises(StopIteration):
        INPUT.around(next, None, "", iter(()))
    assert inside == []
    with SAVE.during(None, "a"), WAIT.during(None, "for the others", "worker 1"):
        assert kinds() == ["save", "wait"]
        assert recording.noted.part() == "save"
    assert inside == []
