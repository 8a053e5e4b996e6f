"""Observers see what happens, as it begins and ends, and nothing when they have gone."""

from __future__ import annotations

import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.observers import KINDS, Event, Observer, observe
from jaxtribute.errors import ArgumentError


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
    assert [type(event.error) for event in log.events] == [type(None), type(None), StopIteration]


def test_checkpoints_have_their_paths(tmp_path: Path) -> None:
    log = Log()
    checkpoint = jd.Checkpoint(v=jd.Variable(1.0))
    with observe(log, "save", "restore"):
        path = checkpoint.save(tmp_path / "ckpt", block=True)
        checkpoint.restore(path)
    assert log.lines == [f"save {path}", "/save", f"restore {path}", "/restore"]


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
