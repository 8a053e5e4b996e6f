"""The pace of looks, and that what is seen at that pace is a fair share."""

from collections.abc import Callable

import pytest

from jaxtribute._src.tools.live.pace import Pace


def accounted(state: Callable[[float], str], seconds: float) -> dict[str, float]:
    """The time of each part as the recorder accounts for it, of a worker whose state is known at each moment."""
    pace, now, before = Pace(), 0.0, "step"
    found = {"step": 0.0, "input": 0.0}
    while now < seconds:
        pause = pace.pause_s()
        now += pause
        bucket = state(now)
        found[before] += pause / 2
        found[bucket] += pause / 2
        pace.saw(bucket)
        before = bucket
    return found


def test_it_looks_seldom_at_a_training_that_computes() -> None:
    pace = Pace()
    for _ in range(6):
        assert pace.pause_s() <= 0.15
        pace.saw("step")
    assert 0.2 <= pace.pause_s() <= 0.6
    pace.saw("input")
    assert pace.pause_s() >= 0.2
    pace.saw("step")
    assert pace.pause_s() <= 0.15


def test_it_looks_most_often_where_parts_alternate() -> None:
    pace = Pace()
    for bucket in ("step", "other", "step"):
        pace.saw(bucket)
    assert pace.pause_s() <= 0.03
    for _ in range(6):
        pace.saw("other")
    assert 0.05 <= pace.pause_s() <= 0.15


@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_short_waits_are_seen_as_often_as_they_are(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    for worker in range(20):  # looks at random moments scatter: by 5 % of a share of 0.05 in a little over an hour
        monkeypatch.setattr("os.getpid", lambda worker=worker: worker)
        found = accounted(lambda now: "input" if now / 0.013 % 1 < share else "step", 4_000)
        shares.append(found["input"] / sum(found.values()))
    assert sum(shares) / len(shares) == pytest.approx(share, rel=0.05)


def test_long_waits_have_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1)
    found = accounted(lambda now: "input" if now % 60 < 5 else "step", 20 * 6000)
    assert found["input"] / 2000 == pytest.approx(5.0, rel=0.02)
