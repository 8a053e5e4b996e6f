"""The search for ways of training: what is tried, in which order, and what is chosen; a table is the compiler."""

import itertools
import math
import time

import pytest

import jaxtribute as jd
from jaxtribute._src.addons.fitting.candidates import MIRRORED, SHARDED, Candidate, Outcome
from jaxtribute._src.addons.fitting.search import FitSearch
from jaxtribute._src.core.execution import budgets

DEVICES, BATCH = 16, 256


class Machine:
    """A step whose bytes and seconds follow a few rules, with all that is asked of it.

    Args:
      state: bytes of variables and slots, whole.
      activations: bytes of an example.
      memory: bytes of a device.
      gather: seconds to gather the variables from all devices.
      slicing: seconds that an update in slices takes longer than one of whole variables; 0 without slices.
    """

    def __init__(
        self, state: int = 100, activations: int = 10, memory: int = 1000, gather: float = 0.1, slicing: float = 0.0
    ) -> None:
        self.state, self.activations, self.memory, self.gather = state, activations, memory, gather
        self.slicing = slicing
        self.asked: list[Candidate] = []

    def __call__(self, one: Candidate, most: int) -> Outcome:
        # A layout of a group is chosen once, from up to three more programs, and one at least.
        known = {each.per_replica for each in self.asked}
        compiled = max(min(most, 4), 2) if one.per_replica > 1 and one.per_replica not in known else 1
        self.asked.append(one)
        rows = one.rows(DEVICES)
        kept = rows * self.activations / one.per_replica
        again = 0.0
        if one.memory is not None and kept > one.memory / one.per_replica:
            again, kept = 0.3, one.memory / one.per_replica
        state = self.state / (DEVICES if one.strategy == SHARDED else one.per_replica)
        sliced = self.slicing != 0 and one.strategy == MIRRORED and one.per_replica == 1 and not one.whole_slots
        state *= 0.5 if sliced else 1  # the slots are half of it, about
        if state + kept > self.memory:
            return Outcome(one, rows, "does not fit", held=int(state), compiled=compiled)
        compute = (1 + again) * rows * one.accumulate / one.per_replica * 0.01
        waits = self.gather * (2 * one.accumulate if one.strategy == SHARDED else 1)
        waits += 0.02 * (one.per_replica - 1) + self.slicing * sliced
        memory, seconds = int(state + kept), compute + waits
        parts = {"all": waits}
        return Outcome(one, rows, "", memory, int(state), seconds, compute, parts, compiled=compiled, sliced=sliced)


def searched(machine: Machine, **settings: object) -> FitSearch:
    found = FitSearch(machine, DEVICES, machine.memory, BATCH, **settings)  # pyright: ignore[reportArgumentType]
    found.best()
    return found


def test_a_small_model_stays_whole() -> None:
    found = searched(Machine())
    assert found.ranked()[0].candidate.strategy == MIRRORED
    assert found.ranked()[0].candidate.per_replica == 1
    assert found.compiled <= 25


def test_a_model_that_is_too_large_whole_is_sharded() -> None:
    best = searched(Machine(state=4000)).ranked()[0]
    assert best.candidate.strategy == SHARDED or best.candidate.per_replica > 4


def test_activations_that_are_too_large_are_computed_again_or_divided() -> None:
    machine = Machine(activations=80, gather=0.0)
    best = searched(machine).ranked()[0]
    assert best.fits
    assert best.memory <= machine.memory
    assert any(one.memory is not None for one in machine.asked)


@pytest.mark.parametrize(
    ("state", "activations", "memory", "gather", "slicing"),
    list(itertools.product([10, 900, 8000], [1, 30, 200], [1000], [0.0, 0.1, 0.3], [0.0, 0.1, -0.05])),
)
def test_the_choice_fits_and_is_near_the_best_of_all(
    state: int, activations: int, memory: int, gather: float, slicing: float
) -> None:
    machine = Machine(state, activations, memory, gather, slicing)
    every = [
        Candidate(kind, BATCH, group, budget, calls, whole)
        for kind, group, budget, calls, whole in itertools.product(
            (MIRRORED, SHARDED), (1, 2, 4, 8, 16), (None, 100, 300, 600, 900), (1, 2, 4, 8, 16), (False, True)
        )
    ]
    possible = [one for one in (machine(each, 1) for each in every if each.rows(DEVICES)) if one.fits]
    machine.asked.clear()
    search = searched(machine)
    assert len(machine.asked) == len(set(machine.asked))
    assert search.compiled <= 25
    assert bool(search.ranked()) == bool(possible)
    if possible:
        assert search.ranked()[0].each <= 1.1 * min(one.each for one in possible)


def test_larger_batches_are_tried_if_they_may_be() -> None:
    assert all(one.candidate.batch == BATCH for one in searched(Machine()).ranked())
    grown = searched(Machine(), most_batch=4 * BATCH).ranked()[0]
    assert grown.candidate.batch == 4 * BATCH


def test_no_more_is_begun_than_there_are_tries_and_time() -> None:
    for most, gather in itertools.product(range(1, 12), (0.0, 0.1)):
        assert searched(Machine(gather=gather), most=most).compiled <= most
    late = Machine()
    searched(late, until=time.monotonic() - 1)
    assert late.asked == [Candidate(MIRRORED, BATCH)]


def test_what_a_program_refuses_for_another_reason_is_not_tried_with_less_memory() -> None:
    asked: list[Candidate] = []

    def refuses(one: Candidate, _: int) -> Outcome:
        asked.append(one)
        return Outcome(one, 1, "ValueError: no data", held=1)

    assert FitSearch(refuses, 4, 1000, BATCH).best() == []
    assert {(one.memory, one.accumulate) for one in asked} == {(None, 1)}


def test_updates_of_one_call_where_nobody_could_apply_others() -> None:
    machine = Machine(activations=400)
    searched(machine, optimizer=False)
    assert {one.accumulate for one in machine.asked} == {1}


@pytest.mark.parametrize("optimizer", [True, False])
@pytest.mark.parametrize("slicing", [0.1, 0.0, -0.05])
def test_slots_are_whole_if_that_is_faster_and_the_optimizer_may_be_told(slicing: float, optimizer: bool) -> None:
    machine = Machine(gather=0.01, slicing=slicing)
    best = searched(machine, optimizer=optimizer).ranked()[0].candidate
    assert best.whole_slots == (slicing > 0 and optimizer)
    asked = [one for one in machine.asked if one.whole_slots]
    assert bool(asked) == (slicing != 0 and optimizer)
    assert all(one.strategy == MIRRORED and one.per_replica == 1 for one in asked)


def test_what_is_left_of_a_refusal_and_of_lines() -> None:
    one = Candidate(SHARDED, 64, 4, 300 << 20, 2)
    outcome = Outcome(
        one, 4, seconds=2.0, compute=1.5, waits={"all-gather among 4": 0.5}, layout={"w": [None, "model"]}
    )
    assert outcome.limit == "computing 75%, all-gather among 4 25%"
    assert outcome.lines(64) == [
        'strategy = jd.FullyShardedStrategy(devices_per_replica=4, layout="auto")',
        'jd.config.set_memory_budget("300MiB")',
        "optimizer = jd.Optimizer(..., accumulate_steps=2)  # each call with 32 examples",
    ]
    assert outcome.lines(32)[-1] == "# a batch of 64"
    assert Outcome.read(outcome.as_dict()) == outcome
    whole = Outcome(Candidate(MIRRORED, 64, accumulate=2, whole_slots=True), calls=3)
    assert whole.lines(64) == [
        "strategy = jd.MirroredStrategy()",
        "optimizer = jd.Optimizer(..., accumulate_steps=6, shard_update=False)  # each call with 32 examples",
    ]
    assert str(whole.candidate) == "mirrored, 2 calls an update, whole slots"
    assert str(one) == "fully sharded, 4 devices each, 300.0 MiB kept, 2 calls an update"
    assert math.isclose(outcome.each, 2 / 64)
    assert one.rows(16) == 8
    assert Candidate(MIRRORED, 3).rows(4) == 0


def test_less_memory_is_tried_for_what_lacks_memory_alone() -> None:
    asked: list[Candidate] = []

    def failing(one: Candidate, _: int) -> Outcome:
        asked.append(one)
        return Outcome(one, refusal="ValueError: no data", held=10)

    FitSearch(failing, DEVICES, 1000, BATCH).best()
    assert all(one.memory is None and one.accumulate == 1 for one in asked)


@pytest.mark.parametrize("memory", [None, 1, 3000, (1 << 20) + 1, 300 << 20])
@pytest.mark.parametrize(
    ("kind", "group", "layout"), [(MIRRORED, 1, {}), (SHARDED, 1, {}), (MIRRORED, 2, {"w": [None]})]
)
def test_lines_to_write_run(memory: int | None, kind: str, group: int, layout: dict[str, list[None]]) -> None:
    names = {"jd": jd}
    try:
        exec("\n".join(Outcome(Candidate(kind, 64, group, memory), layout=layout).lines(32)), names)
        asked = budgets.asked_for(None)
        assert memory is None or (isinstance(asked, int) and memory - (1 << 20) < asked <= memory)
        assert asked == memory or memory != 3000
    finally:
        jd.config.set_memory_budget(None)
    assert type(names["strategy"]).__name__ == kind
