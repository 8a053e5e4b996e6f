"""Faults happen where, when and to whom they are meant to, and nowhere else."""

import math
import os
import signal
import threading
import time
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute import extending
from jaxtribute._src.addons.testing import faults
from jaxtribute._src.core.cluster import runtime, told
from jaxtribute.errors import ArgumentError, ConfigError
from jaxtribute.testing import (
    Fault,
    InjectedError,
    MultiProcessRunner,
    corrupt_value,
    drop_heartbeats,
    inject,
    kill,
    point,
    raise_at,
    slow,
    stall,
)


def reached(times: int, *injected: Fault) -> list[int]:
    """At which of that many times, from 1, the point `here` raised."""
    found: list[int] = []
    with inject(*injected):
        for count in range(1, times + 1):
            try:
                point("here")
            except InjectedError:
                found.append(count)
    return found


def test_a_fault_happens_once_at_its_step() -> None:
    assert reached(5, raise_at(at="here", step=3)) == [3]
    assert reached(3, raise_at(at="here")) == [1]
    assert reached(3, raise_at(at="here", step=2, again=True)) == [2, 3]
    assert reached(3, raise_at(at="elsewhere"), raise_at(at="here", rank=1)) == []
    point("here")


def test_a_fault_belongs_to_one_start_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXTRIBUTE_RESTART", "1")
    assert reached(1, raise_at(at="here")) == []
    assert reached(1, raise_at(at="here", restart=1)) == reached(1, raise_at(at="here", restart=None)) == [1]


@given(st.integers(0, 9), st.sampled_from([0.0, 0.3, 1.0]))
def test_chance_is_the_same_for_the_same_seed(seed: int, probability: float) -> None:
    fault = raise_at(at="here", probability=probability, seed=seed)
    found = reached(50, fault)
    assert found == reached(50, fault)
    assert {0.0: len(found) == 0, 1.0: len(found) == 50}.get(probability, 3 <= len(found) <= 30)


def test_an_error_of_ones_own() -> None:
    with inject(raise_at(at="here", error=OSError("disk"))), pytest.raises(OSError, match="disk"):
        point("here")


def test_slow_and_stall_wait() -> None:
    start = time.monotonic()
    with inject(slow(at="here", seconds=0.02), stall(at="here", step=2, seconds=0.05)):
        for _ in range(3):
            point("here")
    assert 0.11 <= time.monotonic() - start < 60


def test_a_signal_can_be_sent() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: heard.append(number))
    try:
        with inject(kill(at="here", number=signal.SIGUSR2)):
            point("here")
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2]


@pytest.mark.parametrize("variable", [True, False])
def test_one_copy_of_a_variable_is_corrupted(variable: bool) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        found = jd.Variable(np.arange(3, dtype=np.float32), name="odd")
        flags = jd.Variable(np.array([True, False]), name="flags")
    first = corrupt_value(found if variable else "odd", by=0.5, replica=1, at="here")
    with inject(first, corrupt_value(flags, at="here")):
        point("here")
    np.testing.assert_array_equal(found.values[0], [0, 1, 2])
    np.testing.assert_array_equal(found.values[1], [0.5, 1.5, 2.5])
    np.testing.assert_array_equal(flags.values[0], [False, True])


def test_what_cannot_be_corrupted() -> None:
    with inject(corrupt_value("no such name", at="here")), pytest.raises(ArgumentError, match="'no such name'"):
        point("here")
    variable = jd.Variable(1.0, name="single")
    with inject(corrupt_value(variable, replica=1, at="here")), pytest.raises(ArgumentError, match="has 1 copies"):
        point("here")


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": 0},
        {"step": 1, "probability": 0.5},
        {"probability": 2.0},
        {"at": ""},
        {"step": math.inf},
        {"step": 1.5},
        {"step": True},
        {"rank": -1},
        {"restart": "0"},
    ],
)
def test_wrong_descriptions(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="HINT"):
        kill(**wrong)


def test_faults_as_text() -> None:
    first, second = faults.parse('[{"kind": "kill", "rank": 1, "step": 5}, {"kind": "slow", "at": "input"}]')
    assert (first.kind, first.rank, first.step, first.at) == ("kill", 1, 5, "step")
    assert (second.kind, second.again, second.at) == ("slow", True, "input")


@pytest.mark.parametrize(
    "text", ["kill", "{}x", '[{"rank": 1}]', '[{"kind": "bomb"}]', '[{"kind": "kill", "x": 1}]', "[1]"]
)
def test_text_that_is_no_list_of_faults(text: str) -> None:
    with pytest.raises(ConfigError, match="JAXTRIBUTE_FAULTS="):
        faults.parse(text)


@pytest.mark.slow
def test_the_environment_injects_for_the_rest_of_the_process() -> None:
    from processes import run_python

    output = run_python(
        """
        import jaxtribute as jd
        jd.testing.point("a")
        try:
            jd.testing.point("b")
        except RuntimeError as error:
            print(type(error).__name__, error)
        """,
        env={"JAXTRIBUTE_FAULTS": '[{"kind": "raise_at", "at": "b", "error": "from outside"}]'},
    )
    assert output.strip() == "InjectedError from outside"


def fall_silent() -> str:
    """Rank 1 falls silent; rank 0 notices, and says of whom."""
    os.environ[told.SILENCE] = "25"
    jd.MultiWorkerMirroredStrategy()
    cluster = runtime.Cluster.current()
    assert cluster is not None
    with inject(drop_heartbeats(rank=1, at="here")):
        point("here")
    if cluster.rank == 1:
        return ""
    noticed = threading.Event()
    watch: Any = cluster.watch
    watch._on_failure = lambda _: noticed.set()  # instead of ending this process
    assert watch._silence_s == 25
    watch._silence_s = 1.0  # here and now: rank 1 is patient, and both were while they started
    assert noticed.wait(120)
    return watch.failure.message(cluster.names)


@pytest.mark.slow
def test_a_worker_falls_silent() -> None:
    with MultiProcessRunner(workers=2) as runner:
        first, _ = runner.run(fall_silent)
        runner.kill()
    assert "worker 1 (127.0.0.1:" in first
    assert "no pulse for 1 s" in first


def test_only_pulses_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    store = types.SimpleNamespace(written=[], key_value_dir_get=lambda _: ["found"])
    store.key_value_set = lambda key, *_: store.written.append(key)
    watch = types.SimpleNamespace(_store=store)
    monkeypatch.setattr(extending.Cluster, "current", lambda: types.SimpleNamespace(watch=watch))
    with inject(drop_heartbeats(at="here")):
        point("here")
    watch._store.key_value_set("jaxtribute/watch/pulse/1", "{}", True)
    watch._store.key_value_set("jaxtribute/watch/failure/1", "{}", True)
    assert store.written == ["jaxtribute/watch/failure/1"]
    assert watch._store.key_value_dir_get("x") == ["found"]
    monkeypatch.setattr(extending.Cluster, "current", lambda: None)
    with inject(drop_heartbeats(at="here")):
        point("here")
