"""Agreements on the end of the data, over a key-value store."""

from functools import partial
from typing import Any, NamedTuple

import grain
import jax
import numpy as np
import pytest

from jaxtribute._src.core.input.agreement import KeyValueAgreements, StepRows, alone
from jaxtribute._src.core.input.batches import Batch
from jaxtribute._src.core.input.dataset import distribute_dataset, distribute_from_function
from jaxtribute._src.core.input.options import AutoShardPolicy, InputContext, InputOptions
from jaxtribute._src.core.input.sources import adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.input.worker_steps import FunctionSteps, GlobalSteps
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import InputError
from simulated import Meeting, Store, drain, on_workers


def test_one_worker_agrees_with_itself() -> None:
    assert alone()(3, (1, 2)) == ((1, 2),)
    assert alone()(3, None) == (None,)


def test_everyone_learns_of_everyone() -> None:
    store = Store()

    def work(worker: int, _: Meeting) -> list[Any]:
        agreements = KeyValueAgreements(store, "data", 3, worker, 30)
        first, second = agreements(), agreements()
        found: list[Any] = []
        for step in range(20):
            rows: StepRows = (step, worker) if step < 10 * worker else None
            found.append(first(step, rows))
        return [*found, second(0, (worker,))]

    results = on_workers(3, work)
    assert results[0] == results[1] == results[2]
    assert results[0][5] == [None, (5, 1), (5, 2)]
    assert results[0][19] == [None, None, (19, 2)]
    assert results[0][20] == [(0,), (1,), (2,)]
    assert store.largest <= 3 * 3, "old keys are deleted"


def test_a_worker_that_does_not_come() -> None:
    agree = KeyValueAgreements(Store(), "data", 2, 0, 0.01)()
    with pytest.raises(TimeoutError, match="data/0/0/1 of 1"):
        agree(0, (1,))


def test_workers_that_should_see_the_same_and_do_not() -> None:
    def work(worker: int, meeting: Meeting) -> str:
        batches = [np.arange(2)] * (1 + worker)
        shard = Shard(2, worker, 2)
        steps = GlobalSteps(adapt(batches).open(shard), shard, meeting.of(worker)())
        with pytest.raises(InputError, match=r"at step 1 workers \[1\] have data.*HINT: make the dataset the same"):
            drain(steps)
        return "told"

    assert on_workers(2, work) == ["told", "told"]


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (np.zeros((2, 3)), r"have \[4, 2\] rows"),
        (np.zeros((3, 3)), r"have \[4, 3\] rows"),  # the first worker's share is the same
        (np.zeros((5, 3)), r"have \[4, 5\] rows"),
        (np.zeros((4, 2)), "have rows of other shapes or dtypes"),
        (np.zeros((4, 3), np.float32), "have rows of other shapes or dtypes"),
    ],
)
def test_workers_whose_batches_differ_are_told_before_they_compile_different_programs(
    replicas: int, other: Any, told: str
) -> None:
    def work(worker: int, meeting: Meeting) -> int:
        batches = [np.zeros((4, 3)), other if worker == 1 else np.zeros((4, 3))]
        shard = Shard(2, worker, replicas)
        steps = GlobalSteps(adapt(batches).open(shard), shard, meeting.of(worker)())
        next(steps)
        with pytest.raises(InputError, match=f"at step 1 the batches of the workers {told}.*HINT: make the dataset"):
            next(steps)
        return worker

    assert on_workers(2, work) == [0, 1]


class Batches:
    """A stream of one batch."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._batches = iter([Batch({"x": np.zeros(shape, dtype)}, shape[0])])

    def __next__(self) -> Batch:
        return next(self._batches)


@pytest.mark.parametrize(("workers", "local"), [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize(
    ("shape", "dtype", "even", "alike"),
    [
        ((2, 3), "float32", True, True),
        ((1, 3), "float32", False, True),
        ((2, 4), "float32", False, False),  # equal rows of arrays that fit into no one array
        ((2, 3), "int32", False, False),
    ],
)
def test_replicas_whose_batches_differ_beyond_their_rows_are_not_told_to_be_even(
    workers: int, local: int, shape: tuple[int, ...], dtype: str, even: bool, alike: bool
) -> None:
    last = workers * local - 1

    def work(worker: int, meeting: Meeting) -> tuple[bool, tuple[int, ...] | None]:
        own = range(worker * local, (worker + 1) * local)
        streams: Any = [Batches(shape, dtype) if i == last else Batches((2, 3), "float32") for i in own]
        shard = Shard(workers, worker, workers * local)
        step = next(FunctionSteps(streams, shard, meeting.of(worker)(), dict[str, Any], static=False))
        return step.even, step.rows

    rows = (*[2] * last, shape[0]) if alike else None
    assert on_workers(workers, work) == [(even, rows)] * workers


def steps_over(kind: str, batches: Any, worker: int, local: int, meeting: Meeting) -> Any:
    context = InputContext(2, worker, 2 * local)
    mesh, agree = ReplicaMesh(jax.devices()[: 2 * local]), meeting.of(worker)
    if kind == "function":
        return distribute_from_function(lambda _: batches, mesh, None, context, agree)._steps(0)  # pyright: ignore[reportPrivateUsage]
    options = InputOptions(auto_shard_policy=AutoShardPolicy.OFF)
    return distribute_dataset(batches, mesh, options, context, agree)._steps(0)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("empty", [0, 1])
@pytest.mark.parametrize("local", [1, 2])
@pytest.mark.parametrize("kind", ["function", "off"])
@pytest.mark.parametrize("source", ["list", "grain"])
def test_a_worker_without_any_data_takes_part_with_batches_of_the_others_form(
    source: str, kind: str, local: int, empty: int
) -> None:
    def work(worker: int, meeting: Meeting) -> list[list[Any]]:
        batches = [] if worker == empty else [{"x": np.ones((4, 3), np.float32), "y": np.arange(4)}] * 2
        data: Any = batches if source == "list" else grain.MapDataset.source(batches)
        steps = steps_over(kind, data, worker, local, meeting)
        return [step.cut() for step in drain(steps)]

    found = on_workers(2, work)
    assert len(found[0]) == len(found[1]) > 0
    for parts in found[empty]:
        assert len(parts) == local
        for part in parts:
            assert {name: (leaf.shape, str(leaf.dtype)) for name, leaf in part.items()} == {
                "x": ((0, 3), "float32"),
                "y": ((0,), "int64"),
            }
    assert sum(len(part["y"]) for parts in found[1 - empty] for part in parts) == 8


@pytest.mark.parametrize("kind", ["function", "off"])
def test_workers_without_any_data_at_all_end_at_once(kind: str) -> None:
    assert on_workers(2, lambda worker, meeting: drain(steps_over(kind, [], worker, 1, meeting))) == [[], []]


def test_forms_that_cannot_be_told_are_an_error_on_all_workers() -> None:
    class Hidden(NamedTuple):
        x: Any

    def work(worker: int, meeting: Meeting, batch: Any, match: str) -> str:
        steps = steps_over("function", [] if worker == 1 else [batch], worker, 1, meeting)
        with pytest.raises(InputError, match=match):
            next(steps)
        return "told"

    cases = (
        (Hidden(np.zeros((2, 3))), "have other parts than dictionaries.*HINT"),
        (np.float32(1), "unbatched scalar.*HINT"),
    )
    for batch, match in cases:
        assert on_workers(2, partial(work, batch=batch, match=match)) == ["told", "told"]
