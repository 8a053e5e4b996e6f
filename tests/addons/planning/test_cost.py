"""Costs as lines over the examples, and as files."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.planning.cost import Line, StepCost
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute.errors import ArgumentError

COST = StepCost(
    "step", 64, 2, Line(1, 2), Line(3, 4), Line(5, 6), (Collective("all-reduce", (8, 4)),), parameters=12, half=False
)


@given(st.integers(1, 100), st.integers(1, 100), st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_line_goes_through_both_points(few: int, more: int, fixed: float, each: float) -> None:
    many = few + more
    line = Line.through(few, fixed + each * few, many, fixed + each * many)
    assert line.at(few) == pytest.approx(fixed + each * few, rel=1e-6, abs=1e-3)
    assert line.at(many) == pytest.approx(fixed + each * many, rel=1e-6, abs=1e-3)
    assert line.fixed >= 0


@pytest.mark.parametrize(
    ("points", "expected"),
    [((4, 10.0, 8, 9.0), Line(10, 0)), ((4, 1.0, 8, 9.0), Line(0, 2)), ((0, 0.0, 8, 8.0), Line(0, 1))],
)
def test_lines_never_fall_and_never_start_below_zero(points: tuple[int, float, int, float], expected: Line) -> None:
    assert Line.through(*points) == expected


@given(st.integers(1, 200), st.integers(33, 200), st.floats(1, 1e3), st.floats(0.1, 1e3))
def test_memory_that_bends_upwards_is_never_told_too_low(rows: int, many: int, buffer: float, each: float) -> None:
    def held(count: int) -> float:
        return 10 + max(buffer, each * count)  # gradients, or activations in the same scratch

    line = Line.through(16, held(16), 32, held(32))
    cost = replace(COST, memory=line, most=(many, held(many)))
    known = min(rows, many)
    assert cost.memory_on(2, known) >= held(known) * (1 - 1e-6) or known < 32
    assert cost.memory_on(2, many) == pytest.approx(max(held(many), line.at(many)))
    assert cost.known_rows == many


def test_what_is_exchanged() -> None:
    assert COST.exchanged() == COST.collectives
    alone = replace(COST, replicas=1, collectives=())
    assert alone.exchanged() == (Collective("all-reduce", (12,)),), "a bound: every gradient once"
    assert replace(alone, parameters=0).exchanged() == ()


def test_a_cost_can_be_saved(tmp_path: Path) -> None:
    COST.save(tmp_path / "step.json")
    assert StepCost.load(tmp_path / "step.json") == COST
    replace(COST, most=(512, 3.0)).save(tmp_path / "step.json")
    assert StepCost.load(tmp_path / "step.json").most == (512, 3.0)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "step.json")
    with pytest.raises(ArgumentError, match=r"step.json holds no cost of a step: .*HINT: write one with --save"):
        StepCost.load(tmp_path / "step.json")


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"format": 99}), json.dumps({"format": 1, "flops": 3})])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "step.json").write_text(text)
    with pytest.raises(ArgumentError, match=r"step.json holds no cost of a step: .*HINT: write one with --save"):
        StepCost.load(tmp_path / "step.json")
