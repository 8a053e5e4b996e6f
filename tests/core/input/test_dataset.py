"""Distributed datasets on devices: what elements are, where they are, and what is refused."""

import gc
import threading
from typing import Any

import grain
import jax
import numpy as np
import psutil
import pytest

from jaxtribute._src.core.execution import rendezvous
from jaxtribute._src.core.input import prefetch
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute._src.core.values.spec import ArraySpec
from jaxtribute.errors import ArgumentTypeError, InputError
from jaxtribute.input import (
    AutoShardPolicy,
    DistributedDataset,
    InputContext,
    InputOptions,
    InputReplicationMode,
    PerReplicaSpec,
    distribute_dataset,
    distribute_from_function,
    make_numpy_dataset,
)

PER_REPLICA = InputReplicationMode.PER_REPLICA


def mesh_of(replicas: int) -> ReplicaMesh:
    return ReplicaMesh(jax.devices()[:replicas])


def distribute(dataset: Any, replicas: int = 2, **options: Any) -> DistributedDataset:
    return distribute_dataset(dataset, mesh_of(replicas), InputOptions(**options), InputContext(1, 0, replicas))


def from_function(dataset_fn: Any, replicas: int = 2, **options: Any) -> DistributedDataset:
    context = InputContext(1, 0, replicas)
    return distribute_from_function(dataset_fn, mesh_of(replicas), InputOptions(**options), context)


def values(element: Any) -> list[list[int]]:
    return [np.asarray(part).tolist() for part in element.values]


def test_the_seeds_example() -> None:
    dataset = distribute(grain.MapDataset.range(4).batch(2))
    assert [values(element) for element in dataset] == [[[0], [1]], [[2], [3]]]


def test_an_even_batch_is_one_sharded_array() -> None:
    (element,) = distribute(make_numpy_dataset(np.arange(8, dtype=np.float32)).batch(8), 4)
    assert isinstance(element, PerReplica)
    assert not element.is_ragged
    assert element.data.shape == (8,)
    assert [part.devices() for part in element.values] == [{device} for device in jax.devices()[:4]]


def test_an_uneven_batch_is_ragged_and_on_its_devices() -> None:
    (element,) = distribute(make_numpy_dataset(np.arange(10).reshape(5, 2)).batch(5), 4)
    assert element.is_ragged
    assert [part.shape for part in element.values] == [(2, 2), (2, 2), (1, 2), (0, 2)]
    assert [part.devices() for part in element.values] == [{device} for device in jax.devices()[:4]]


def test_one_replica_gets_plain_arrays() -> None:
    dataset = distribute({"x": np.arange(3.0), "y": np.arange(3)}, 1)
    elements = list(dataset)
    assert [float(element["x"]) for element in elements] == [0, 1, 2]
    assert isinstance(elements[0]["x"], jax.Array)
    assert dataset.element_spec["y"] == ArraySpec((), np.int32)


def test_the_number_of_batches() -> None:
    rows = make_numpy_dataset(np.arange(10))
    assert [len(distribute(rows.batch(4, drop_remainder=drop))) for drop in (False, True)] == [3, 2]
    assert len(distribute([np.ones(4), np.ones(2)])) == 2
    unknown = distribute(np.ones(4) for _ in range(2))
    assert unknown
    with pytest.raises(TypeError, match=r"how many batches.*HINT"):
        len(unknown)
    with pytest.raises(TypeError, match=r"how many batches.*HINT"):
        len(distribute(rows.batch(4).repeat()))
    assert len(list(unknown)) == 2


def test_structures_are_kept() -> None:
    arrays = {"image": np.zeros((6, 4, 4, 3), np.uint8), "labels": (np.arange(6), {"a": np.arange(6)})}
    (first, second) = distribute(make_numpy_dataset(arrays).batch(4))
    assert first["image"].values[0].shape == (2, 4, 4, 3)
    assert values(first["labels"][0]) == [[0, 1], [2, 3]]
    assert values(second["labels"][0]) == [[4], [5]]


def test_a_dataset_can_be_gone_through_again() -> None:
    dataset = distribute(grain.MapDataset.range(5).batch(2))
    assert [values(e) for e in dataset] == [values(e) for e in dataset]


def test_unbatched_vectors_are_split_as_batches() -> None:
    dataset = distribute(make_numpy_dataset(np.arange(6).reshape(2, 3)))
    assert [values(element) for element in dataset] == [[[0, 1], [2]], [[3, 4], [5]]]


def test_unbatched_scalars_need_a_batch() -> None:
    dataset = distribute(make_numpy_dataset(np.ones(10, np.float32)))
    with pytest.raises(InputError, match=r"a scalar cannot be split over 2 replicas.*HINT: batch"):
        next(iter(dataset))


def test_what_is_no_array_is_told_by_its_type() -> None:
    with pytest.raises(InputError, match=r"element\['a'\] is a object, and no array. HINT.*flat_map"):
        list(distribute([{"a": object(), "b": np.ones(3)}]))


def test_unbatched_scalars_are_fine_for_one_replica() -> None:
    assert [float(x) for x in distribute(make_numpy_dataset(np.ones(3, np.float32)), 1)] == [1, 1, 1]


def test_on_the_host() -> None:
    dataset = distribute(make_numpy_dataset(np.arange(5)).batch(5), experimental_fetch_to_device=False)
    (element,) = dataset
    assert all(isinstance(part, np.ndarray) for part in element.values)
    assert values(element) == [[0, 1, 2], [3, 4]]
    (plain,) = distribute(make_numpy_dataset(np.arange(5)).batch(5), 1, experimental_fetch_to_device=False)
    assert isinstance(plain, np.ndarray)


def test_strings_stay_on_the_host() -> None:
    batches = [np.array([b"a", b"b"])]
    with pytest.raises(InputError, match=r"element has dtype \|S1.*experimental_fetch_to_device=False"):
        next(iter(distribute(batches)))
    (element,) = distribute(batches, experimental_fetch_to_device=False)
    assert [part.tolist() for part in element.values] == [[b"a"], [b"b"]]


def test_a_producer_may_reuse_its_buffer() -> None:
    def batches() -> Any:
        buffer = np.zeros(4, np.int32)
        for number in range(6):
            buffer[:] = number
            yield buffer

    found = list(distribute(batches(), experimental_per_replica_buffer_size=3))
    assert [values(element) for element in found] == [[[n, n], [n, n]] for n in range(6)]


def test_arrays_on_devices_may_be_batches() -> None:
    found = list(distribute([jax.numpy.arange(4), jax.numpy.arange(3)]))
    assert [values(element) for element in found] == [[[0, 1], [2, 3]], [[0, 1], [2]]]


# --- specs -----------------------------------------------------------------------------------------------------------


def test_the_spec_of_a_batched_dataset_has_open_rows() -> None:
    spec = distribute(make_numpy_dataset({"x": np.zeros((8, 3), np.float32)}).batch(4)).element_spec
    assert spec == {"x": PerReplicaSpec((ArraySpec((None, 3), np.float32),) * 2)}


@pytest.mark.parametrize(("batch", "rows"), [(4, 2), (5, None)])
def test_rows_are_static_where_the_remainder_is_dropped_and_the_replicas_divide(batch: int, rows: int | None) -> None:
    numbers = make_numpy_dataset(np.zeros((20, 3), np.float32))
    assert distribute(numbers.batch(batch, drop_remainder=True)).element_spec.shape == (rows, 3)
    sequential = numbers.map(lambda x: x).to_iter_dataset().batch(batch, drop_remainder=True)
    assert distribute(sequential).element_spec.shape == (rows, 3)


def test_asking_for_the_spec_takes_nothing_from_a_generator() -> None:
    dataset = distribute(np.full(2, number) for number in range(3))
    assert dataset.element_spec.shape == (None,)
    assert [values(element) for element in dataset] == [[[0], [0]], [[1], [1]], [[2], [2]]]


def test_an_empty_dataset_has_no_spec() -> None:
    for empty in ([], iter(())):
        with pytest.raises(InputError, match=r"empty.*HINT"):
            _ = distribute(empty).element_spec
        assert list(distribute(empty)) == []


# --- datasets from functions -----------------------------------------------------------------------------------------


def test_a_function_is_called_once_a_worker() -> None:
    contexts: list[InputContext] = []

    def dataset_fn(context: InputContext) -> Any:
        contexts.append(context)
        size = context.get_per_replica_batch_size(8)
        return grain.MapDataset.range(20)[context.input_pipeline_id :: context.num_input_pipelines].batch(size)

    dataset = from_function(dataset_fn)
    assert contexts == [InputContext(1, 0, 2)]
    assert [values(e) for e in dataset] == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[8, 9, 10, 11], [12, 13, 14, 15]],
        [[16, 17, 18, 19], []],
    ]
    assert dataset.element_spec == PerReplicaSpec((ArraySpec((None,), np.int32),) * 2)


def test_a_function_called_once_a_replica() -> None:
    contexts: list[InputContext] = []

    def dataset_fn(context: InputContext) -> Any:
        contexts.append(context)
        return grain.MapDataset.range(7)[context.input_pipeline_id :: context.num_input_pipelines].batch(2)

    dataset = from_function(dataset_fn, 3, experimental_replication_mode=PER_REPLICA)
    assert contexts == [InputContext(3, replica, 3) for replica in range(3)]
    assert [values(e) for e in dataset] == [[[0, 3], [1, 4], [2, 5]], [[6], [], []]]


def test_scalars_from_a_function() -> None:
    dataset = from_function(lambda _: grain.MapDataset.range(4))
    assert [[int(part) for part in element.values] for element in dataset] == [[0, 1], [2, 3]]
    # They have one shape, and a step that some replicas would sit out is left out.
    assert [
        [int(part) for part in element.values] for element in from_function(lambda _: grain.MapDataset.range(3))
    ] == [[0, 1]]
    mixed = [(np.arange(2), 0), (np.arange(2), 1), (np.arange(2), 2)]
    with pytest.raises(InputError, match=r"cannot be left empty.*HINT"):
        list(from_function(lambda _: mixed))


def test_batches_of_unlike_shapes() -> None:
    batches = [{"x": np.zeros((2, 3))}, {"x": np.zeros((2, 5))}]
    (element,) = from_function(lambda _: batches)
    assert [part.shape for part in element["x"].values] == [(2, 3), (2, 5)]


def test_one_replica_from_a_function() -> None:
    dataset = from_function(lambda _: grain.MapDataset.range(3).batch(2), 1)
    assert [np.asarray(element).tolist() for element in dataset] == [[0, 1], [2]]
    host = from_function(lambda _: grain.MapDataset.range(3).batch(2), 1, experimental_fetch_to_device=False)
    assert [element.tolist() for element in host] == [[0, 1], [2]]


def test_empty_datasets_from_a_function() -> None:
    with pytest.raises(InputError, match=r"1 empty dataset.*HINT"):
        _ = from_function(lambda _: []).element_spec
    assert list(from_function(lambda _: [])) == []


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [5, "abc", b"abc", None])
def test_what_is_no_dataset(dataset: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"\w cannot be distributed.*grain\.MapDataset"):
        distribute(dataset)


def test_per_replica_is_for_functions() -> None:
    with pytest.raises(NotImplementedError, match=r"distribute_datasets_from_function"):
        distribute([], experimental_replication_mode=PER_REPLICA)


def test_placing_a_dataset_needs_per_replica() -> None:
    with pytest.raises(ValueError, match=r"you must also specify `PER_REPLICA`"):
        from_function(lambda _: [], experimental_place_dataset_on_device=True)
    with pytest.raises(ValueError, match=r"can not be set to True when experimental_fetch_to_device is True"):
        from_function(
            lambda _: [], experimental_place_dataset_on_device=True, experimental_replication_mode=PER_REPLICA
        )
    placed = from_function(
        lambda _: [np.arange(2)] * 2,
        experimental_place_dataset_on_device=True,
        experimental_fetch_to_device=False,
        experimental_replication_mode=PER_REPLICA,
    )
    assert [values(element) for element in placed] == [[[0, 1], [0, 1]], [[0, 1], [0, 1]]]


def test_a_context_of_another_cluster() -> None:
    with pytest.raises(InputError, match=r"tells of 3 replicas on 1 workers, and the strategy has 2"):
        distribute_dataset([], mesh_of(2), None, InputContext(1, 0, 3))
    with pytest.raises(InputError, match=r"same number of replicas"):
        distribute_dataset([], mesh_of(3), None, InputContext(2, 0, 3))


def test_workers_with_data_of_their_own_need_an_agreement() -> None:
    options = InputOptions(auto_shard_policy=AutoShardPolicy.OFF)
    dataset = distribute_dataset([np.arange(4)], mesh_of(2), options, InputContext(2, 0, 2))
    with pytest.raises(InputError, match=r"must agree on the end of the data.*HINT"):
        next(iter(dataset))


# --- the rest --------------------------------------------------------------------------------------------------------


def test_reduce() -> None:
    dataset = distribute(grain.MapDataset.range(7).batch(3))
    assert dataset.reduce(0, lambda total, element: total + sum(sum(part) for part in values(element))) == 21


def test_what_functions_made_cannot_be_explained() -> None:
    with pytest.raises(InputError, match=r"grain.MapDataset.*HINT"):
        from_function(lambda _: grain.MapDataset.range(3)).explain()


def test_threads_end_with_their_iterators() -> None:
    before = set(threading.enumerate())
    dataset = distribute(make_numpy_dataset(np.arange(100)).batch(2).repeat())
    for _ in range(5):
        next(iter(dataset))
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_a_thread_serves_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "IDLE_SECONDS", 60)
    monkeypatch.setattr(prefetch, "_threads", pool := rendezvous.Workers("jaxtribute-prefetch"))
    dataset = distribute(make_numpy_dataset(np.arange(8)).batch(2))
    before, names = set(threading.enumerate()), set[int | None]()
    for _ in range(4):
        assert len(list(dataset)) == 4
        names |= {thread.ident for thread in set(threading.enumerate()) - before}
    assert len(names) == 1
    monkeypatch.setattr(rendezvous, "IDLE_SECONDS", 0)
    pool.submit(lambda: None)


@pytest.mark.slow
def test_memory_stays_flat_over_ten_epochs() -> None:
    images = np.random.default_rng(0).integers(0, 255, (4_000, 32, 32, 3), np.uint8)
    dataset = distribute(make_numpy_dataset((images, np.arange(4_000))).shuffle(0).batch(256), 4)
    process, used = psutil.Process(), list[int]()
    for _ in range(12):
        for element in dataset:
            jax.block_until_ready(element)
        gc.collect()
        used.append(process.memory_info().rss)
    # The first two epochs fill the allocators' free lists.
    assert used[-1] <= 1.05 * used[1], [size >> 20 for size in used]
