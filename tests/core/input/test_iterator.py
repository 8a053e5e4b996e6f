"""Iterators: their ends, their positions, and saving them with Orbax."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orbax.checkpoint.experimental import v1 as orbax

from jaxtribute._src.core.input.iterator import DistributedIterator
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import InputError, OutOfRangeError
from jaxtribute.input import (
    ArraySource,
    AutoShardPolicy,
    DistributedDataset,
    InputContext,
    InputOptions,
    distribute_dataset,
    distribute_from_function,
    make_numpy_dataset,
)
from simulated import Meeting, drain, on_workers, rows_of, steps_of

OFF = InputOptions(auto_shard_policy=AutoShardPolicy.OFF)
DATA = InputOptions(auto_shard_policy=AutoShardPolicy.DATA)


def distribute(dataset: Any, replicas: int = 2, options: InputOptions | None = None) -> DistributedDataset:
    return distribute_dataset(dataset, ReplicaMesh(jax.devices()[:replicas]), options, InputContext(1, 0, replicas))


def numbers(element: Any) -> list[int]:
    parts = element.values if hasattr(element, "values") else (element,)
    return [int(row) for part in parts for row in np.asarray(part)]


def rest(iterator: DistributedIterator) -> list[int]:
    return [row for element in iterator for row in numbers(element)]


def sources(examples: int, batch: int) -> dict[str, Any]:
    """Datasets whose position can be saved."""
    values = list(range(examples))
    sampler = grain.samplers.IndexSampler(examples, grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=3)
    operations = [grain.transforms.Batch(batch)]
    return {
        "array": make_numpy_dataset(np.arange(examples)).shuffle(5).batch(batch),
        "record": grain.MapDataset.source(values).shuffle(5).batch(batch),
        "iter": grain.MapDataset.source(values).to_iter_dataset().filter(lambda x: x % 3 != 1).batch(batch),
        "loader": grain.DataLoader(
            data_source=ArraySource(np.arange(examples)), sampler=sampler, operations=operations
        ),
        "list": [np.arange(start, min(start + batch, examples)) for start in range(0, examples, batch)],
        "iterable": Reiterable(examples, batch),
    }


class Reiterable:
    """An iterable that gives the same batches each time."""

    def __init__(self, examples: int, batch: int) -> None:
        self._bounds = (examples, batch)

    def __iter__(self) -> Iterator[Any]:
        examples, batch = self._bounds
        for start in range(0, examples, batch):
            yield np.arange(start, min(start + batch, examples))


KINDS = sorted(sources(1, 1))


# --- the ends --------------------------------------------------------------------------------------------------------


def test_next_ends_with_stop_iteration() -> None:
    iterator = iter(distribute(grain.MapDataset.range(4).batch(2)))
    assert iter(iterator) is iterator
    assert [numbers(element) for element in iterator] == [[0, 1], [2, 3]]
    with pytest.raises(StopIteration):
        next(iterator)


def test_get_next_ends_with_out_of_range() -> None:
    iterator = iter(distribute(grain.MapDataset.range(2).batch(2)))
    assert numbers(iterator.get_next()) == [0, 1]
    with pytest.raises(OutOfRangeError, match=r"after step 1.*HINT"):
        iterator.get_next()


def test_get_next_as_optional() -> None:
    iterator = iter(distribute(grain.MapDataset.range(2).batch(2)))
    found = iterator.get_next_as_optional()
    assert found.has_value()
    assert numbers(found.get_value()) == [0, 1]
    missing = iterator.get_next_as_optional()
    assert not missing.has_value()
    with pytest.raises(OutOfRangeError, match="HINT"):
        missing.get_value()
    assert repr(missing) == "Optional()"


def test_an_iterator_knows_its_elements() -> None:
    dataset = distribute(grain.MapDataset.range(4).batch(4, drop_remainder=True))
    assert iter(dataset).element_spec == dataset.element_spec
    assert dataset.element_spec.shape == (2,)


@pytest.mark.parametrize("buffer", [0, 1, 4])
def test_any_buffer_gives_the_same(buffer: int) -> None:
    options = InputOptions(experimental_per_replica_buffer_size=buffer)
    iterator = iter(distribute(grain.MapDataset.range(11).batch(3), options=options))
    assert rest(iterator) == list(range(11))
    with pytest.raises(StopIteration):
        next(iterator)


def test_without_a_buffer_there_is_no_thread() -> None:
    before = set(threading.enumerate())
    options = InputOptions(experimental_per_replica_buffer_size=0)
    next(iter(distribute(make_numpy_dataset(np.arange(9)).batch(3), options=options)))
    assert set(threading.enumerate()) <= before


def test_a_closed_iterator_is_at_its_end() -> None:
    iterator = iter(distribute(make_numpy_dataset(np.arange(4)).batch(1).repeat()))
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(StopIteration):
        next(iterator)
    fresh = iter(distribute(grain.MapDataset.range(2).batch(2)))
    fresh.close()
    assert list(fresh) == []


def test_an_infinite_dataset_may_be_left_half_way() -> None:
    for _ in range(3):
        for step, _element in enumerate(distribute(grain.MapDataset.range(10).batch(4).repeat())):
            if step == 5:
                break


def test_an_error_of_the_pipeline_surfaces_at_its_element() -> None:
    def fail_at_seven(value: int) -> int:
        if value == 7:
            raise KeyError("seven")
        return value

    iterator = iter(distribute(grain.MapDataset.range(10).map(fail_at_seven).batch(2)))
    assert [numbers(next(iterator)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(KeyError, match="seven") as caught:
        next(iterator)
    assert "fail_at_seven" in str(caught.getrepr())


# --- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=40)
@given(st.sampled_from(KINDS), st.integers(1, 30), st.integers(1, 7), st.data())
def test_a_restored_iterator_goes_on_where_it_was(kind: str, examples: int, batch: int, data: st.DataObject) -> None:
    everything = rest(iter(distribute(sources(examples, batch)[kind])))
    taken = data.draw(st.integers(0, -(-examples // batch)))
    iterator = iter(distribute(sources(examples, batch)[kind]))
    before: list[int] = []
    for _, element in zip(range(taken), iterator, strict=False):
        before += numbers(element)
    state = json.loads(json.dumps(iterator.get_state()))
    iterator.close()
    restored = iter(distribute(sources(examples, batch)[kind], replicas=data.draw(st.sampled_from([1, 2, 3]))))
    restored.set_state(state)
    assert before + rest(restored) == everything


@settings(max_examples=25)
@given(
    st.sampled_from(["array", "record", "iter", "list"]),
    st.integers(1, 30),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 4),
    st.data(),
)
def test_a_position_holds_on_another_number_of_workers(
    kind: str, examples: int, batch: int, old: int, new: int, data: st.DataObject
) -> None:
    taken = data.draw(st.integers(0, -(-examples // batch)))

    def run(worker: int, meeting: Meeting, workers: int, state: Any, limit: int) -> tuple[list[list[int]], Any]:
        mesh = ReplicaMesh(jax.devices()[:workers])
        dataset = distribute_dataset(
            sources(examples, batch)[kind], mesh, DATA, InputContext(workers, worker, workers), meeting.of(worker)
        )
        iterator = iter(dataset)
        if state is not None:
            iterator.set_state(state)
        steps = iterator._steps  # pyright: ignore[reportPrivateUsage]
        found: list[list[int]] = []
        for _ in range(limit):
            try:
                found.append([row for part in rows_of(next(steps)) for row in part])
            except StopIteration:
                break
        saved = json.dumps(iterator.get_state())
        iterator.close()
        return found, saved

    first = on_workers(old, lambda worker, meeting: run(worker, meeting, old, None, taken))
    state = json.loads(first[-1][1])
    second = on_workers(new, lambda worker, meeting: run(worker, meeting, new, state, 10_000))
    seen = sorted(row for found, _ in [*first, *second] for step in found for row in step)
    assert seen == sorted(rest(iter(distribute(sources(examples, batch)[kind]))))


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.integers(1, 2), st.data())
def test_positions_within_a_workers_own_batches(
    examples: int, batch: int, workers: int, local: int, data: st.DataObject
) -> None:
    replicas = workers * local
    taken = data.draw(st.integers(0, 8))

    def run(worker: int, meeting: Meeting) -> list[int]:
        def steps() -> Any:
            mesh = ReplicaMesh(jax.devices()[:replicas])
            context = InputContext(workers, worker, replicas)
            dataset = grain.MapDataset.range(examples).batch(batch)
            return steps_of(distribute_dataset(dataset, mesh, OFF, context, meeting.of(worker)))

        first, found = steps(), list[int]()
        for _ in range(taken):
            try:
                found += [row for part in rows_of(next(first)) for row in part]
            except StopIteration:
                break
        second = steps()
        second.set_state(json.loads(json.dumps(first.get_state())))
        first.close()
        return found + [row for step in drain(second) for part in rows_of(step) for row in part]

    assert on_workers(workers, run) == [list(range(examples))] * workers


def test_positions_of_datasets_from_a_function() -> None:
    def dataset() -> DistributedDataset:
        mesh = ReplicaMesh(jax.devices()[:2])
        return distribute_from_function(
            lambda context: make_numpy_dataset(np.arange(11)).shuffle(1).batch(2), mesh, None, InputContext(1, 0, 2)
        )

    everything = rest(iter(dataset()))
    iterator = iter(dataset())
    before = numbers(next(iterator))
    restored = iter(dataset())
    restored.set_state(json.loads(json.dumps(iterator.get_state())))
    assert before + rest(restored) == everything


def test_what_is_prefetched_does_not_count() -> None:
    options = InputOptions(experimental_per_replica_buffer_size=4)
    iterator = iter(distribute(make_numpy_dataset(np.arange(20)).batch(2), options=options))
    next(iterator)
    assert iterator.get_state()["position"]["source"]["next"] == 1


@pytest.mark.parametrize(("old", "new", "taken"), [(4, 2, 3), (2, 4, 2), (3, 6, 4)])
def test_another_batch_size_where_it_divides_the_position(old: int, new: int, taken: int) -> None:
    def dataset(batch: int) -> DistributedDataset:
        return distribute(make_numpy_dataset(np.arange(24)).shuffle(2).batch(batch))

    iterator = iter(dataset(old))
    before = [row for _ in range(taken) for row in numbers(next(iterator))]
    restored = iter(dataset(new))
    restored.set_state(iterator.get_state())
    assert sorted(before + rest(restored)) == list(range(24))


def test_a_batch_size_that_does_not_fit_the_position() -> None:
    iterator = iter(distribute(make_numpy_dataset(np.arange(20)).batch(3)))
    next(iterator)
    restored = iter(distribute(make_numpy_dataset(np.arange(20)).batch(5)))
    with pytest.raises(InputError, match=r"after 3 examples in batches of 3.*batches of 5.*HINT"):
        restored.set_state(iterator.get_state())


def refused(dataset: Any, state: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        iter(dataset).set_state(state)


def test_positions_that_do_not_fit() -> None:
    dataset = distribute(make_numpy_dataset(np.arange(20)).batch(4))
    iterator = iter(dataset)
    next(iterator)
    state = iterator.get_state()
    with pytest.raises(InputError, match=r"at step 1.*HINT"):
        iterator.set_state(state)
    refused(dataset, {"step": 1}, "no position of a distributed iterator.*HINT")
    refused(dataset, state | {"kind": "local"}, "of kind 'local'.*of kind 'global'.*HINT")
    refused(distribute(make_numpy_dataset(np.arange(2)).batch(4)), _at(state, 3), r"batch 3 of a dataset that has 1")
    refused(distribute(n for n in [np.arange(4)]), _counted(state, 1), "one-shot iterator.*HINT")
    refused(distribute(Reiterable(4, 2)), _counted(state, 9), "after 9 batches, and the dataset has only 2")


def test_a_workers_own_position_is_for_it_alone() -> None:
    def run(worker: int, meeting: Meeting) -> dict[str, Any]:
        mesh = ReplicaMesh(jax.devices()[:2])
        dataset = make_numpy_dataset(np.arange(8)).batch(4)
        return iter(distribute_dataset(dataset, mesh, OFF, InputContext(2, worker, 2), meeting.of(worker))).get_state()

    states = on_workers(2, run)
    mesh = ReplicaMesh(jax.devices()[:3])
    dataset = distribute_dataset(make_numpy_dataset(np.arange(8)).batch(4), mesh, OFF, InputContext(3, 0, 3))
    refused(dataset, states[1], r"worker 1 of 2, and this is worker 0 of 3.*AutoShardPolicy.DATA")


def _at(state: dict[str, Any], index: int) -> dict[str, Any]:
    source = state["position"]["source"] | {"next": index}
    return state | {"position": state["position"] | {"source": source}}


def _counted(state: dict[str, Any], batches: int) -> dict[str, Any]:
    return state | {"position": state["position"] | {"source": {"batches": batches}}}


# --- Orbax -----------------------------------------------------------------------------------------------------------


def test_a_position_as_json_in_a_checkpoint(tmp_path: Path) -> None:
    dataset = distribute(make_numpy_dataset(np.arange(20)).shuffle(4).batch(3))
    iterator = iter(dataset)
    before = numbers(next(iterator))
    with ocp.CheckpointManager(tmp_path) as manager:
        weights = {"w": jax.numpy.ones(2)}
        manager.save(
            1,
            args=ocp.args.Composite(
                model=ocp.args.StandardSave(weights),  # pyright: ignore[reportCallIssue]
                data=ocp.args.JsonSave(iterator.get_state()),  # pyright: ignore[reportCallIssue]
            ),
        )
        manager.wait_until_finished()
        restored = manager.restore(1, args=ocp.args.Composite(data=ocp.args.JsonRestore()))
    again = iter(dataset)
    again.set_state(restored["data"])
    assert sorted(before + rest(again)) == list(range(20))


def test_an_iterator_is_a_checkpointable_of_orbax(tmp_path: Path) -> None:
    dataset = distribute(make_numpy_dataset(np.arange(20)).shuffle(4).batch(3))
    iterator = iter(dataset)
    before = numbers(next(iterator)) + numbers(next(iterator))
    orbax.save_checkpointables(str(tmp_path / "step"), {"data": iterator})
    again = iter(distribute(make_numpy_dataset(np.arange(20)).shuffle(4).batch(3), replicas=4))
    orbax.load_checkpointables(str(tmp_path / "step"), {"data": again})
    assert sorted(before + rest(again)) == list(range(20))
