"""The search for a layout, judged by made-up figures."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.addons.layouts.automatic import Candidate
from jaxtribute._src.addons.layouts.axes import Use
from jaxtribute._src.addons.layouts.clusters import Cluster, Plan, by_classes, guesses
from jaxtribute._src.addons.layouts.search import Search


def kernel(axes: tuple[int, int], size: int = 8) -> Cluster:
    """A kernel that a product takes the rows of, and gives the columns of."""
    uses = (Use("columns", axes[1]), Use("rows", axes[0]), Use("columns", axes[0]), Use("rows", axes[1]))
    variable: Any = jd.Variable([0.0])
    return Cluster((variable,), (size, size), axes, (0, 1), (0, 1), uses, 4 * size * size)


CHAIN = [kernel((0, 1)), kernel((1, 2)), kernel((2, 3)), kernel((3, 4))]
WHOLE: Plan = (None,) * 4


def test_guesses_of_a_chain_are_two_pairs() -> None:
    found = guesses(CHAIN, WHOLE)
    assert found["pairs"] == (1, 0, 1, 0)
    assert found["whole"] == WHOLE
    assert None not in found["all split"]


def test_the_residual_axis_does_not_hide_the_pairs_within_layers() -> None:
    layers = [kernel((0, 1)), kernel((1, 0)), kernel((0, 2)), kernel((2, 0))]
    found = guesses(layers, WHOLE)
    assert found["pairs"] == (1, 0, 1, 0)
    assert found["along all layers"] == (0, 1, 0, 1)


def test_a_class_that_stands_twice_in_a_variable_splits_one_axis() -> None:
    assert by_classes([kernel((1, 1))], [1]) == (0,)


def judged(plan: Plan, wanted: Plan) -> Candidate:
    """Each variable that lies otherwise costs a byte; each that is whole costs memory."""
    sent = sum(one != other for one, other in zip(plan, wanted, strict=True))
    return Candidate("", sent, 100 + 10 * plan.count(None))


@pytest.mark.parametrize("wanted", list(itertools.product([0, 1], repeat=3)))
def test_changes_lead_to_the_best(wanted: Plan) -> None:
    search = Search(CHAIN[:3], lambda _, plan: judged(plan, wanted), 100, None, 100)
    assert search.best((None,) * 3) == wanted


def test_what_fits_comes_before_what_moves_less() -> None:
    def judge(_: str, plan: Plan) -> Candidate:
        split = sum(axis is not None for axis in plan)
        return Candidate("", split, 100 - split)

    assert None not in Search(CHAIN, judge, 96, None, 200).best(WHOLE)
    assert Search(CHAIN, judge, 200, None, 200).best(WHOLE) == WHOLE
    assert Search(CHAIN, judge, None, 100, 200).best(WHOLE) == WHOLE  # a quarter more, and the device has it
    assert None not in Search(CHAIN, judge, None, 96, 200).best(WHOLE)
    assert None not in Search(CHAIN, judge, 1, None, 200).best(WHOLE)  # nothing fits: the most frugal


def test_no_more_is_compiled_than_was_asked_for() -> None:
    search = Search(CHAIN, lambda _, plan: judged(plan, (1, 1, 1, 1)), 100, None, 5)
    search.best(WHOLE)
    assert len(search.tried) == 5
