"""Agreements on the end of the data, over a key-value store."""

import threading
from typing import Any

import numpy as np
import pytest

from jaxtribute._src.input.agreement import KeyValueAgreements, StepRows, alone
from jaxtribute._src.input.batches import Batch
from jaxtribute._src.input.sources import adapt
from jaxtribute._src.input.splitting import Shard
from jaxtribute._src.input.worker_steps import FunctionSteps, GlobalSteps
from jaxtribute.errors import InputError
from simulated import Meeting, drain, on_workers


class Store:
    """A key-value store in memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.largest = 0
        self._changed = threading.Condition()

    def set(self, key: str, value: str, /) -> None:
        with self._changed:
            assert key not in self.values, f"{key} is set twice"
            self.values[key] = value
            self.largest = max(self.largest, len(self.values))
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float, /, *, of: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_s):
                raise TimeoutError(f"{key} of {of}")
            return self.values[key]

    def delete(self, key: str, /) -> None:
        with self._changed:
            del self.values[key]


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


class Batches:
    """A stream of batches of some shapes."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        self._shapes = iter(shapes)

    def __next__(self) -> Batch:
        shape = next(self._shapes)
        return Batch({"x": np.zeros(shape, np.float32)}, shape[0])


@pytest.mark.parametrize(
    ("shapes", "even", "rows"),
    [
        ([(2, 3), (2, 3)], True, (2, 2)),
        ([(2, 3), (1, 3)], False, (2, 1)),
        ([(2, 3), (2, 4)], False, None),  # equal rows of arrays that fit into no one array
    ],
)
def test_replicas_whose_batches_differ_beyond_their_rows_are_not_told_to_be_even(
    shapes: list[tuple[int, ...]], even: bool, rows: tuple[int, ...] | None
) -> None:
    streams: Any = [Batches([shape]) for shape in shapes]
    shard = Shard(1, 0, 2)
    step = next(FunctionSteps(streams, shard, alone(), dict[str, Any], static=False))
    assert step.even is even
    assert step.rows == rows
