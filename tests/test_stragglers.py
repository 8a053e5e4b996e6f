"""Which worker the others wait for."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute._src.core.cluster.step_log import StepLog
from jaxtribute._src.core.cluster.watch import Watch
from jaxtribute._src.stragglers import EVERY, comparison, interval_s
from jaxtribute.errors import ConfigError

NAMES = ("worker 0 (a:1)", "worker 1 (b:1)")


def report(step: int, input_s: float, waited_s: float) -> dict[str, Any]:
    return {"step": step, "input_s": input_s, "waited_s": waited_s, "name": "step", "where": "here"}


def test_the_one_that_waits_least_holds_the_others_up() -> None:
    before = {0: report(5, 1.0, 2.0), 1: report(5, 1.0, 2.0)}
    after = {0: report(25, 1.5, 22.0), 1: report(25, 19.0, 2.5)}
    text = comparison(before, after, 30.0, NAMES)
    assert text == (
        "in 30 s: worker 0 (a:1) input 0.5 s, waiting 20.0 s of 20 steps; worker 1 (b:1) input 18.0 s, waiting 0.5 s "
        "of 20 steps. The others wait for worker 1 (b:1), for its input"
    )
    slow = {0: report(25, 1.5, 22.0), 1: report(25, 1.1, 2.5)}
    assert str(comparison(before, slow, 30.0, NAMES)).endswith("worker 1 (b:1), for its own computation")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {0: report(5, 0, 0), 1: report(5, 0, 0)}),  # nothing to compare with
        ({0: report(5, 0, 0)}, {0: report(9, 0, 9), 1: report(9, 0, 0)}),  # one has not reported
        ({0: report(5, 0, 0), 1: report(5, 0, 0)}, {0: report(5, 0, 9), 1: report(5, 0, 0)}),  # no step
        ({0: report(5, 0, 0), 1: report(5, 0, 0)}, {0: report(9, 0, 5), 1: report(9, 0, 4)}),  # about equal
    ],
)
def test_nothing_is_said_where_there_is_nothing_to_say(before: Any, after: Any) -> None:
    assert comparison(before, after, 30.0, NAMES) is None


def test_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVERY, raising=False)
    assert interval_s() == 60.0
    monkeypatch.setenv(EVERY, "0")
    assert interval_s() == 0.0
    monkeypatch.setenv(EVERY, "often")
    with pytest.raises(ConfigError, match=r"'often'.*HINT"):
        interval_s()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_worker_says_it_now_and_then(rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    roster = Roster.of({"worker": ["a:1", "b:1"]}, "worker", rank)
    watch = Watch(cast(Any, None), roster, 60.0, lambda _: None, StepLog())
    start = watch.pulses.answered
    says = list[str]()
    for passed, steps in ((30.0, 0), (61.0, 5), (90.0, 15), (122.0, 25)):
        for worker, waited in ((0, 2.0 * steps), (1, 0.0)):
            pulse = {"count": passed, "report": report(steps, 0.0, waited)}
            watch.pulses.hear(worker, json.dumps(pulse), start + passed)
        for look in watch._looks:  # pyright: ignore[reportPrivateUsage]
            look(start + passed)
        says.append(capsys.readouterr().err)
    assert says[:3] == ["", "", ""]
    assert ("The others wait for worker 1 (b:1), for its own computation" in says[3]) == (rank == 0)
