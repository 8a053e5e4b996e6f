"""Seconds in each place, exact wherever looks fall; and their pace, at which what is seen is a fair share."""

import random
from collections.abc import Callable

import pytest

from jaxtribute._src.addons.live.looks import OUTSIDE, PLACES, STEP, Pace, Places, divided
from jaxtribute._src.core.observers import DISPATCH, INPUT, WAIT


def test_places_by_the_clock() -> None:
    places = Places(10.0)
    places.go(PLACES[INPUT.name], 11.0)
    places.go(PLACES[WAIT.name], 13.0)
    places.look(14.0)
    assert places.at(14.0) == [0, 0, 0, 1.0, 2.0, 0, 1.0]
    places.go(OUTSIDE, 16.0)
    places.look(18.0)
    assert places.at(18.0) == [0, 0, 0, 3.0, 2.0, 0, 3.0]
    assert places.at(16.0) == [0, 0, 0, 2.0, 2.0, 0, 2.0]  # spread evenly between two looks
    assert places.at(99.0) == places.at(18.0)


@pytest.mark.parametrize("late", [0.0, 0.9])
@pytest.mark.parametrize("pause", [0.02, 0.1])
def test_a_slow_worker_is_known_exactly_whatever_the_looks(pause: float, late: float) -> None:
    """Each step: 4 ms of input, 1 ms of dispatch, 50 ms of Python; looks may come late wherever Python computes."""
    chance = random.Random(0)
    places = Places(0.0)
    seen: dict[tuple[int, str], float] = {}
    last, next_look = 0.0, pause
    for number in range(100):
        begin = 0.055 * number
        for place, start, end in (
            (PLACES[INPUT.name], begin, begin + 0.004),
            (PLACES[DISPATCH.name], begin + 0.004, begin + 0.005),
            (OUTSIDE, begin + 0.005, begin + 0.055),
        ):
            places.go(place, start)
            while next_look < end:
                look = next_look
                # A busy machine lets the thread that looks run in the pauses of the one that trains alone.
                if place != OUTSIDE and chance.random() < late:
                    look = next_look = begin + 0.005 + 1e-6
                    if next_look >= end:
                        break
                places.look(look)
                part = {OUTSIDE: "other", STEP: "step"}.get(place, "input")
                seen[place, part] = seen.get((place, part), 0.0) + look - last
                last, next_look = look, look + pause * (0.5 + chance.random())
    found = divided(seen, [0.0] * 7, places.at(last))
    assert sum(found.values()) == pytest.approx(last)
    assert found["other"] == pytest.approx(5.0 * last / 5.5, rel=0.01)


def test_looks_divide_the_time_of_a_place_alone() -> None:
    seen = {(OUTSIDE, "step"): 1.0, (OUTSIDE, "other"): 3.0, (STEP, "step"): 4.0}
    assert divided(seen, [0.0] * 7, [0, 0, 0, 0, 0, 2.0, 6.0]) == {"step": 2.0 + 1.5, "other": 4.5}


def test_a_place_that_no_look_fell_into() -> None:
    seen = {(OUTSIDE, "step"): 1.0, (OUTSIDE, "other"): 3.0}
    found = divided(seen, [0.0] * 7, [0, 0, 0, 0, 1.0, 0, 3.0])
    assert found == {"input": 0.75, "step": 0.25 + 0.75, "other": 2.25}


def test_without_a_clock_what_was_seen_counts() -> None:
    assert divided({(OUTSIDE, "other"): 0.5}, [0.0] * 7, [0.0] * 7) == {"other": 0.5}
    assert divided({}, [0.0] * 7, [0.0] * 7) == {}


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
