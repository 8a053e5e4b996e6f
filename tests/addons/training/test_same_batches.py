"""Workers that go through other batches than each other, though each takes its rows of common ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import grain
import jax
import numpy as np
import pytest

from jaxtribute._src.core.input.dataset import distribute_dataset
from jaxtribute._src.core.input.options import AutoShardPolicy, InputContext, InputOptions
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import InputError
from jaxtribute.input import KeyValueAgreements, make_numpy_dataset
from simulated import Meeting, Store, drain, on_workers

ROWS = 16


class Anew:
    """Batches that begin anew with each pass."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    def __iter__(self) -> Iterator[Any]:
        return iter(listed(self.arrays))


def listed(arrays: dict[str, Any]) -> list[Any]:
    return [{name: array[i : i + 4] for name, array in arrays.items()} for i in range(0, len(arrays["x"]), 4)]


KNOWN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "list": listed,
    "arrays": lambda arrays: make_numpy_dataset(arrays).batch(4),
    "grain": lambda arrays: grain.MapDataset.source(Rows(arrays)).batch(4),
}
KINDS = KNOWN | {
    "iterable": Anew,
    "generator": lambda arrays: iter(listed(arrays)),
    "grain iterator": lambda arrays: grain.MapDataset.source(Rows(arrays)).to_iter_dataset().batch(4),
}


class Rows:
    """Rows one by one, as Grain asks for them."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays["x"])

    def __getitem__(self, index: int) -> Any:
        return {name: array[index] for name, array in self.arrays.items()}


def arrays_of(worker: int, change: str) -> dict[str, Any]:
    numbers = np.random.default_rng(worker)
    order = numbers.permutation(ROWS) if "order" in change else np.arange(ROWS)
    x = np.sin(np.arange(3.0 * ROWS)).reshape(ROWS, 3)[order]
    x += numbers.normal(size=x.shape) if "changes" in change else 0
    found = {"x": x, "y": np.arange(ROWS)[order], "names": np.array(list("abcdefghijklmnop"))[order]}
    if "mask" in change:
        found["mask"] = np.ones(ROWS, np.float32)
    return {name: array[: ROWS - 4 * worker] if "fewer" in change else array for name, array in found.items()}


def warned(kind: str, change: str, local: int = 1) -> list[str]:
    """The warnings of a pass of two workers."""
    store = Store()

    def work(worker: int, _: Meeting) -> None:
        context = InputContext(2, worker, 2 * local)
        agree = KeyValueAgreements(store, "data", 2, worker, 30)
        options = InputOptions(auto_shard_policy=AutoShardPolicy.DATA)
        mesh = ReplicaMesh(jax.devices()[: 2 * local])
        data = KINDS[kind](arrays_of(worker, change))
        distributed = distribute_dataset(data, mesh, options, context, agree)
        drain(distributed._pass(0))  # pyright: ignore[reportPrivateUsage]

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        on_workers(2, work)
    return [str(one.message) for one in found]


@pytest.mark.parametrize("local", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "told"),
    [("", False), ("order", True), ("order mask", True), ("changes", False), ("changes order", True), ("mask", False)],
)
def test_workers_whose_first_batches_have_nothing_in_common_are_warned(
    kind: str, change: str, local: int, told: bool
) -> None:
    found = warned(kind, change, local)
    assert (found != []) == told, found
    for text in found:
        assert "no array of the first batch" in text
        assert "HINT: make the dataset the same on every worker (seed its shuffles)" in text


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("change", ["fewer", "fewer order"])
def test_workers_with_other_numbers_of_batches_are_told(kind: str, change: str) -> None:
    with pytest.raises(InputError, match=r"worker [01] has [43] batches and worker [01] has [43], though.*HINT"):
        warned(kind, change)


def test_a_worker_without_any_batch_is_told() -> None:
    store = Store()

    def work(worker: int, _: Meeting) -> str:
        agree = KeyValueAgreements(store, "data", 2, worker, 30)
        mesh, batches = ReplicaMesh(jax.devices()[:2]), listed(arrays_of(0, ""))[: 9 * worker]
        try:
            drain(distribute_dataset(batches, mesh, None, InputContext(2, worker, 2), agree)._pass(0))  # pyright: ignore[reportPrivateUsage]
        except InputError as error:
            return str(error)
        return ""

    found = "".join(on_workers(2, work))
    assert "worker 0 has 0" in found
    assert "worker 1 has 4" in found


def test_later_passes_are_not_compared() -> None:
    """One worker may be in its second pass while another is in its first."""

    class Shuffled(list[Any]):
        passes = 0

        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            return iter([{"x": np.roll(np.arange(4), self.passes)}])

    store = Store()

    def passes(worker: int, count: int) -> None:
        context, agree = InputContext(2, worker, 2), KeyValueAgreements(store, "data", 2, worker, 30)
        distributed = distribute_dataset(Shuffled([0]), ReplicaMesh(jax.devices()[:2]), None, context, agree)
        for epoch in range(count):
            assert len(drain(distributed._pass(epoch))) == 1  # pyright: ignore[reportPrivateUsage]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passes(0, 2)
        passes(1, 1)


def test_workers_are_compared_without_waiting_for_those_that_read_nothing() -> None:
    agree = KeyValueAgreements(Store(), "data", 2, 0, 0.01)
    batches = listed(arrays_of(0, ""))
    distributed = distribute_dataset(batches, ReplicaMesh(jax.devices()[:2]), None, InputContext(2, 0, 2), agree)
    assert len(drain(distributed._pass(0))) == 4  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("other", range(3))
def test_one_of_several_that_differs_is_named_whoever_comes_first(other: int, order: tuple[int, ...]) -> None:
    store = Store()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for worker in order:
            agree, context = KeyValueAgreements(store, "data", 3, worker, 30), InputContext(3, worker, 3)
            batches = [np.arange(6)[:: -1 if worker == other else 1]]
            drain(distribute_dataset(batches, ReplicaMesh(jax.devices()[:3]), None, context, agree)._pass(0))  # pyright: ignore[reportPrivateUsage]
    told = "".join(str(one.message) for one in found)
    pairs = {f"workers {a} and {b}," for a, b in ((0, other or 1), (other or 1, 0))}
    assert any(pair in told for pair in pairs), told
    assert len(found) == 1 or other == 0


def test_arrays_of_any_type_are_compared() -> None:
    store, found = Store(), list[int]()
    values = [np.arange(4), np.arange(4) > 1, np.arange(4).astype(complex), np.array(["a", None, "b", "c"], object)]
    values += [
        np.arange(4, dtype=np.float16),
        jax.numpy.arange(4, dtype="bfloat16"),
        np.zeros((4, 0)),
        np.zeros((0, 3)),
    ]
    for number, value in enumerate(values):
        for worker, array in enumerate((value, value[::-1])):
            agree = KeyValueAgreements(store, f"data {number}", 2, worker, 30)
            context, mesh = InputContext(2, worker, 2), ReplicaMesh(jax.devices()[:2])
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                drain(distribute_dataset([array], mesh, None, context, agree)._pass(0))  # pyright: ignore[reportPrivateUsage]
            found += [number] * len(told)
    assert found == [0, 1, 2, 3, 4, 5]
