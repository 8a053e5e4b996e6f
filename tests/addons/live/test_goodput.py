"""The parts of a run's time, from records that are made up to the second."""

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

import live_runs
from jaxtribute._src.addons.live import terminal
from jaxtribute._src.addons.live.metrics import prometheus
from jaxtribute._src.addons.live.state import Run
from live_runs import START


def bars(directory: Path, now: float) -> tuple[dict[str, float], dict[int, dict[str, float]], float]:
    """The job's parts, those of each worker, and all of the time."""
    state = Run(directory).state(now)
    return state["goodput"], {one["rank"]: one["bar"] for one in state["workers"]}, state["wall"]


def around(part: str, second: float, length: float, rank: int = 1) -> live_runs.Parts:
    """Parts of workers of which one does something else for a while."""

    def parts(one: int, now: float) -> Mapping[str, float]:
        other = one == rank and second <= now < second + length
        return {part: 1.0} if other else {"step": 0.95, "input": 0.05}

    return parts


@pytest.mark.parametrize("part", ["input", "other", "save", "compile"])
@pytest.mark.parametrize("second", [40, 42, 45, 47])  # in one group of windows, and across two
def test_five_seconds_of_one_worker(tmp_path: Path, part: str, second: int) -> None:
    now = live_runs.running(tmp_path, 4, 100, around(part, second, 5))
    job, workers, wall = bars(tmp_path, now)
    plain = 0.05 * 95 if part == "input" else 0.0
    assert workers[1][part] == pytest.approx(5 + plain, rel=0.05)
    for rank in (0, 2, 3):
        assert workers[rank]["collective"] == pytest.approx(5, rel=0.06)
    assert workers[1]["collective"] == pytest.approx(0, abs=0.25)
    for bar in (job, *workers.values()):
        assert sum(bar.values()) == pytest.approx(wall, rel=0.01)
    state = Run(tmp_path).state(now)
    (held,) = state["held"]
    assert (held["rank"], held["cause"]) == (1, part)
    assert held["seconds"] == pytest.approx(5, rel=0.06)
    assert any("for worker 1, for its" in notice for notice in state["notices"])


def test_a_worker_that_is_slow_all_the_time(tmp_path: Path) -> None:
    def parts(rank: int, second: float) -> Mapping[str, float]:
        return {"step": 0.85, "other": 0.15} if rank == 2 else {"step": 1.0}

    now = live_runs.running(tmp_path, 4, 200, parts)
    _, workers, _ = bars(tmp_path, now)
    assert workers[0]["collective"] == pytest.approx(30, rel=0.05)
    assert workers[2]["collective"] == 0
    state = Run(tmp_path).state(now)
    assert state["held"][0]["rank"] == 2
    assert "worker 2, for its own computing in Python" in state["notices"][0]


def test_what_both_workers_do_is_no_cause(tmp_path: Path) -> None:
    def parts(rank: int, second: float) -> Mapping[str, float]:
        if rank == 1 and 40 <= second < 45:
            return {"input": 0.2, "other": 0.8}
        return {"step": 0.7, "input": 0.2, "other": 0.1}

    now = live_runs.running(tmp_path, 2, 100, parts)
    (held,) = Run(tmp_path).state(now)["held"]
    assert held["rank"] == 1
    assert held["causes"] == pytest.approx({"other": 3.5})


def test_small_differences_are_no_wait(tmp_path: Path) -> None:
    def parts(rank: int, second: float) -> Mapping[str, float]:
        share = 0.9 + 0.05 * ((rank * 7 + int(second) * 3) % 5 - 2) / 2
        return {"step": share, "other": 1 - share}

    now = live_runs.running(tmp_path, 64, 120, parts)
    job, _, _ = bars(tmp_path, now)
    assert job["collective"] == 0
    assert Run(tmp_path).state(now)["held"] == []


def test_a_worker_that_stands_still(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 3, 60)
    stuck = live_runs.Writer(tmp_path, 1)
    stuck.start(START)
    stuck.train(START, 40)
    stuck.now(START + 40, "step", START + 39.9)
    stuck.close()
    state = Run(tmp_path).state(now)
    workers = {one["rank"]: one for one in state["workers"]}
    assert workers[1]["event"] == "silent"
    assert workers[1]["seconds"] == pytest.approx(20, abs=1)
    assert workers[0]["bar"]["collective"] == pytest.approx(19, abs=1)  # the last second is not told by all
    assert "worker 1 has told nothing for 20.0 s; last at train.py:42" in state["notices"]
    assert state["held"][0]["rank"] == 1
    assert "waits in a step for worker 1 (silent)" in workers[0]["words"]


def test_lost_work_and_recovery(tmp_path: Path) -> None:
    end = START + 100

    def recovering(rank: int, second: float) -> Mapping[str, float]:
        return {"recovery": 1.0} if second < 60 else {"step": 1.0}

    for rank in range(2):
        worker = live_runs.Writer(tmp_path, rank)
        worker.start(START)
        worker.train(START, 50)
        if rank == 0:
            worker.add("write start", START + 35, path="ckpt")
            worker.add("write end", START + 38, path="ckpt")
        worker.start(START + 55)
        worker.train(START + 55, 45, recovering)
        worker.add("end", end, failed=False)
        worker.close()
    live_runs.write_job(
        tmp_path,
        *live_runs.launched(),
        {
            "k": "attempt end",
            "t": START + 50,
            "kind": "failed",
            "rank": 1,
            "words": "was killed by SIGKILL",
            "code": 137,
        },
        {"k": "attempt start", "t": START + 52, "restart": 1, "workers": 2, "nodes": 1},
        {"k": "attempt end", "t": end, "kind": "done"},
        {"k": "over", "t": end, "code": 0},
    )
    job, workers, wall = bars(tmp_path, end + 5)
    assert wall == 100
    for bar in (job, *workers.values()):
        assert bar["lost"] == pytest.approx(15, rel=0.05)
        assert bar["recovery"] == pytest.approx(10, rel=0.05)
        assert bar["step"] == pytest.approx(75, rel=0.05)
        assert sum(bar.values()) == pytest.approx(wall, rel=0.01)
    state = Run(tmp_path).state(end + 5)
    assert state["status"] == "done"
    assert [event["kind"] for event in state["events"]] == ["save", "failure", "restart"]
    assert state["events"][1]["rank"] == 1


@pytest.mark.parametrize("told", [("failed", None, "has lost machine 1"), ("failed", 1, "ended with exit code 1")])
def test_what_makes_all_workers_fail_is_one_failure(tmp_path: Path, told: tuple[str, int | None, str]) -> None:
    kind, rank, words = told
    for number in range(3):
        worker = live_runs.Writer(tmp_path, number)
        worker.start(START)
        worker.train(START, 50)
        worker.add("fail", START + 49 + number, trace=f"Traceback\nClusterError: rank 1, says {number}")
        worker.start(START + 55)
        worker.train(START + 55, 20)
        if number == 2:  # of a start of which the launcher has said nothing yet
            worker.add("fail", START + 75, trace="Traceback\nValueError: boom")
        worker.close()
    end = {"k": "attempt end", "t": START + 50, "kind": kind, "rank": rank, "words": words, "code": 70}
    again = {"k": "attempt start", "t": START + 54, "restart": 1, "workers": 3, "nodes": 2}
    live_runs.write_job(tmp_path, *live_runs.launched(workers=3), end, again)
    events = Run(tmp_path).state(START + 76)["events"]
    failures = [(one["rank"], one["text"]) for one in events if one["kind"] == "failure"]
    assert failures == [(rank, words), (2, "ValueError: boom")]
    assert "says" in events[0]["details"]


@pytest.mark.parametrize("kind", ["preempted", "failed"])
def test_nothing_is_lost_at_a_preemption_that_saved(tmp_path: Path, kind: str) -> None:
    worker = live_runs.Writer(tmp_path, 0)
    worker.start(START)
    worker.train(START, 50)
    worker.add("write start", START + 48.5, path="ckpt")
    worker.add("write end", START + 49, path="ckpt")
    worker.start(START + 52)
    worker.train(START + 52, 48)
    worker.add("end", START + 100, failed=False)
    worker.close()
    live_runs.write_job(
        tmp_path,
        *live_runs.launched(workers=1),
        {"k": "attempt end", "t": START + 50, "kind": kind, "rank": 0, "code": 75},
        {"k": "attempt start", "t": START + 51, "restart": 1, "workers": 1, "nodes": 1},
        {"k": "attempt end", "t": START + 100, "kind": "done"},
        {"k": "over", "t": START + 100, "code": 0},
    )
    job, _, _ = bars(tmp_path, START + 100)
    assert job["lost"] == pytest.approx(1.5 if kind == "failed" else 0.0, abs=0.01)


def test_a_run_that_is_over_does_nothing_now(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 2, 60, around("input", 20, 10))
    for over, (code, status) in ((False, (0, "runs")), (True, (0, "done")), (True, (1, "failed"))):
        end = {"k": "attempt end", "t": now, "kind": "failed" if code else "done"}
        ended = [end, {"k": "over", "t": now, "code": code}] if over else []
        live_runs.write_job(tmp_path, *live_runs.launched(), *ended)
        state = Run(tmp_path).state(now)
        assert state["status"] == status
        rates = state["rates"]
        assert min(rates["steps"], rates["examples"]) > 0
        assert (rates["steps_now"] == 0, rates["examples_now"] == 0) == (over, over)
        console = Console(width=160, file=io.StringIO(), record=True)
        console.print(terminal.view(state, 160))
        assert (" now " in console.export_text()) == (not over)
        # Whoever watches a number is called only while there is something to do.
        assert any("the others waited" in notice for notice in state["notices"])
        metrics = prometheus(state).decode()
        assert ("\njaxtribute_notices{} 0\n" in metrics) == (status == "done")
        for one in state["workers"]:
            figures = [one["pid"], one["rss"], one["position"], *one["memory"][0]]
            assert list(map(type, figures)) == [int] * 5


def test_without_a_save_all_is_lost(tmp_path: Path) -> None:
    worker = live_runs.Writer(tmp_path, 0)
    worker.start(START)
    worker.train(START, 30)
    worker.close()
    live_runs.write_job(
        tmp_path,
        *live_runs.launched(workers=1),
        {"k": "attempt end", "t": START + 30, "kind": "failed", "rank": 0, "words": "ended with exit code 1"},
        {"k": "over", "t": START + 30, "code": 1},
    )
    job, _, _ = bars(tmp_path, START + 40)
    assert job["lost"] == pytest.approx(30, rel=0.01)
    assert job["step"] == pytest.approx(0, abs=0.01)
    assert Run(tmp_path).state(START + 40)["status"] == "failed"


def test_starts_without_a_launcher(tmp_path: Path) -> None:
    for rank in range(2):
        worker = live_runs.Writer(tmp_path, rank)
        worker.start(START + rank)
        worker.train(START + rank, 20)
        worker.start(START + 30 + rank)
        worker.train(START + 30 + rank, 20, lambda rank, second: {"step": 1.0})
        worker.add("end", START + 51, failed=False)
        worker.close()
    state = Run(tmp_path).state(START + 100)
    assert state["starts"] == 2
    assert state["status"] == "ended"
    assert state["wall"] == pytest.approx(51, abs=1)
    assert sum(state["goodput"].values()) == pytest.approx(state["wall"], rel=0.01)


def test_islands_of_which_one_dies_and_comes_back(tmp_path: Path) -> None:
    """Island 1 is killed after 40 s, and trains again from 52 s on; island 0 lost 2 s of a step, and then 1 s."""
    zero, one = live_runs.Writer(tmp_path, 0), live_runs.Writer(tmp_path, 1)

    def view(writer: live_runs.Writer, second: float, number: int, *islands: int, seconds: float = 0.0) -> None:
        writer.add("view", START + second, view=number, islands=list(islands), s=seconds)

    zero.start(START)
    zero.train(START, 100)
    for second, number, islands, seconds in ((1, 0, (0, 1), 0.0), (43, 1, (0,), 2.0), (53, 2, (0, 1), 1.0)):
        view(zero, second, number, *islands, seconds=seconds)
    one.start(START)
    one.train(START, 40)
    view(one, 1, 0, 0, 1)
    one.start(START + 46)
    one.train(START + 46, 6, lambda rank, second: {"recovery": 1.0})
    one.train(START + 52, 48)
    view(one, 53, 2, 0, 1)
    for writer in (zero, one):
        writer.add("end", START + 100, failed=False)
        writer.close()
    death = {"k": "island end", "t": START + 40, "kind": "failed", "rank": 1, "words": "was killed by SIGKILL"}
    over = [{"k": "attempt end", "t": START + 100, "kind": "done"}, {"k": "over", "t": START + 100, "code": 0}]
    live_runs.write_job(tmp_path, *live_runs.launched(), death | {"again": True}, *over)
    state = Run(tmp_path).state(START + 100)
    bars = {worker["rank"]: worker["bar"] for worker in state["workers"]}
    assert (bars[0]["recovery"], bars[0]["step"]) == (pytest.approx(3), pytest.approx(97))
    # From its end to its next start, and from that to its first step.
    assert (bars[1]["recovery"], bars[1]["step"]) == (pytest.approx(12), pytest.approx(88))
    assert sum(state["goodput"].values()) == pytest.approx(state["wall"], rel=0.01)
    assert state["islands"] == {"view": 2, "members": [0, 1], "changes": 2, "recovery": 3.0, "restarts": 1}
    assert [(event["kind"], event["rank"], event["text"]) for event in state["events"]] == [
        ("failure", 1, "was killed by SIGKILL"),
        ("restart", 1, "started again, alone"),
        ("view", None, "goes on without island 1 after 2.0 s: 1 island (view 1)"),
        ("view", None, "goes on with island 1 after 1.0 s: 2 islands (view 2)"),
    ]
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(terminal.view(state, 160))
    assert (
        "islands 0, 1 train together (view 2); 2 change(s) cost 3.0 s of steps, 1 restart(s)" in console.export_text()
    )
