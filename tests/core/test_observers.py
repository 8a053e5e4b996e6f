"""Observers see what happens, as it begins and ends, and nothing when they have gone."""

from __future__ import annotations

import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute._src.core.cluster.waiting import await_workers
from jaxtribute._src.core.execution.feeds import EndOfData
from jaxtribute._src.core.observers import KINDS, Event, Observer, observe
from jaxtribute.errors import ArgumentError, CheckpointError


class Log(Observer):
    """Notes the beginnings and ends of events."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[Event] = []

    def on_start(self, event: Event) -> None:
        assert event.seconds is None
        self.lines.append(f"{event.kind} {event.name}")

    def on_end(self, event: Event) -> None:
        assert event.seconds is not None
        assert event.seconds >= 0
        self.lines.append(f"/{event.kind}")
        self.events.append(event)


def _raises() -> None:
    raise OSError("mine")


def strategy() -> jd.MirroredStrategy:
    return jd.MirroredStrategy(["CPU:0", "CPU:1"])


def test_a_step_is_traced_once_and_dispatched_each_time() -> None:
    two, log = strategy(), Log()
    with two.scope():
        v = jd.Variable(0.0, aggregation=jd.VariableAggregation.SUM)

    def replica() -> None:
        v.assign_add(jnp.float32(1))

    @jd.function
    def inner() -> None:
        two.run(replica)

    @jd.function
    def train() -> None:
        inner()

    with observe(log, "step", "trace", "dispatch"):
        train()
        train()
    first = ["step train", "trace train", "/trace", "dispatch train", "/dispatch", "/step"]
    assert log.lines == [*first, "step train", "dispatch train", "/dispatch", "/step"]
    train()
    assert len(log.lines) == 10, "nobody observes any more"
    assert float(v.numpy()) == 6.0


def test_eager_runs_and_reductions_have_the_names_of_what_they_do() -> None:
    two, log = strategy(), Log()

    def replica() -> object:
        return jnp.float32(2)

    with observe(log, "run", "reduce"):
        result = two.run(fn=replica)
        two.reduce(jd.ReduceOp.SUM, result, axis=None)
        two.reduce("MEAN", result, None)
    assert log.lines == ["run replica", "/run", "reduce SUM", "/reduce", "reduce MEAN", "/reduce"]
    assert log.events[1].result == 4.0


def test_input_ends_with_the_data() -> None:
    log = Log()
    dataset = strategy().experimental_distribute_dataset([np.ones(4, np.float32)] * 2)
    with observe(log, "input"):
        assert len(list(dataset)) == 2
    assert log.lines == ["input ", "/input"] * 3
    assert [type(event.error) for event in log.events] == [type(None), type(None), EndOfData]


def test_checkpoints_have_their_paths(tmp_path: Path) -> None:
    log = Log()
    checkpoint = jd.Checkpoint(v=jd.Variable(1.0))
    with observe(log, "save", "restore"):
        path = checkpoint.save(tmp_path / "ckpt", block=True)
        checkpoint.restore(path)
    assert log.lines == [f"save {path}", "/save", f"restore {path}", "/restore"]


def test_a_save_is_written_in_its_thread_and_waited_for(tmp_path: Path) -> None:
    log, threads = Log(), dict[str, int]()
    checkpoint = jd.Checkpoint(v=jd.Variable(1.0))

    class Threads(Observer):
        def on_start(self, event: Event) -> None:
            threads[event.kind] = threading.get_ident()

    with observe(log, "write", "flush"), observe(Threads(), "write", "flush"):
        path = checkpoint.write(tmp_path / "ckpt")
        checkpoint.wait()
    assert sorted(log.lines) == ["/flush", "/write", "flush ", f"write {path}"]
    assert threads["flush"] == threading.get_ident() != threads["write"]
    failing = checkpoint.write(tmp_path / "other", committed=_raises, block=False)
    with observe(log, "flush"), pytest.raises(CheckpointError, match="mine"):
        checkpoint.wait()
    assert failing.endswith("other")
    assert isinstance(log.events[-1].error, CheckpointError)


def test_a_wait_names_those_who_have_not_come() -> None:
    absent: list[tuple[object, ...]] = []
    missing = [[1, 2], [2], []]

    class Absent(Log):
        def on_start(self, event: Event) -> None:
            super().on_start(event)
            self.event = event

    log = Absent()

    def look() -> list[int]:
        absent.append(log.event.arguments)
        return missing.pop(0)

    roster = Roster.of({"worker": ["a:1", "b:1", "c:1"]}, "worker", 0)
    with observe(log, "wait"):
        await_workers(roster, look, "at the start", 10.0)
    assert log.lines == ["wait at the start", "/wait"]
    assert absent == [(), roster.names[1:], roster.names[2:]]


def test_metrics_are_told_as_they_are_sent(tmp_path: Path) -> None:
    log = Log()
    with observe(log, "metrics"), jd.summary.Writer(tmp_path, step=7, trackers=["jsonl"]) as writer:
        writer.write(loss=jnp.float32(2))
        writer.text("note", "no metric")
    assert log.lines == ["metrics 7", "/metrics"]
    assert log.events[0].arguments == (7, {"loss": 2.0})


def test_blocks_that_nobody_observes_and_those_inside_others_are_no_events() -> None:
    log, kind = Log(), KINDS["wait"]
    with kind.during(None, "unseen"):
        pass
    with observe(log, "wait"), kind.during(None, "outer"), kind.during(None, "inner"):
        pass
    assert log.lines == ["wait outer", "/wait"]


def test_all_kinds_are_observed_by_default() -> None:
    log = Log()
    with jd.experimental.observe(log):
        jd.testing.point("mine")
    assert log.lines == ["point mine", "/point"]
    with pytest.raises(ArgumentError, match=r"'setp' is no kind of event.*HINT.*step"), observe(log, "setp"):
        pass


def test_the_program_sees_what_an_observer_raises_and_the_others_see_the_end() -> None:
    class Raises(Observer):
        def on_start(self, event: Event) -> None:
            raise RuntimeError("mine")

    before, after = Log(), Log()
    with observe(before, "point"), observe(Raises(), "point"), observe(after, "point"):
        with pytest.raises(RuntimeError, match="mine"):
            jd.testing.point("here")
        with pytest.raises(RuntimeError, match="mine"):
            jd.testing.point("here")
    assert before.lines == ["point here", "/point"] * 2
    assert isinstance(before.events[0].error, RuntimeError)
    assert after.lines == []
    assert not any(kind.observers for kind in KINDS.values())


def test_an_observer_may_be_there_twice_and_use_the_library() -> None:
    v, log = jd.Variable(0.0), Log()

    @jd.function
    def count() -> None:
        v.assign_add(1.0)

    class Counts(Observer):
        def on_start(self, event: Event) -> None:
            count()

    counts = Counts()
    with observe(counts, "step"), observe(counts, "step"):
        with observe(log, "step"):
            count()
        count()
    assert float(v.numpy()) == 6.0, "what it calls is no event of the same kind"
    assert log.lines == ["step count", "/step"]


def test_events_are_told_in_the_thread_in_which_they_happen() -> None:
    seen: list[int] = []

    class Threads(Observer):
        def on_start(self, event: Event) -> None:
            seen.append(threading.get_ident())

    with observe(Threads(), "point"):
        thread = threading.Thread(target=jd.testing.point, args=("there",))
        thread.start()
        thread.join(30)
        assert seen == [thread.ident]
