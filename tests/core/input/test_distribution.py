"""Every example is delivered exactly once, in the right replica: over random sizes, clusters, policies, shuffles."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute._src.core.input.dataset import DistributedDataset, distribute_from_function
from jaxtribute._src.core.input.options import InputContext
from jaxtribute._src.core.input.splitting import slice_sizes
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.input import (
    ArraySource,
    AutoShardPolicy,
    InputOptions,
    distribute_dataset,
    make_numpy_dataset,
    shard_hint,
)
from simulated import Meeting, drain, on_workers, rows_of, steps_of

TABLES = json.loads(Path(__file__).with_name("tf_tables.json").read_text())
DATA = InputOptions(auto_shard_policy=AutoShardPolicy.DATA)
OFF = InputOptions(auto_shard_policy=AutoShardPolicy.OFF)
HINT = InputOptions(auto_shard_policy=AutoShardPolicy.HINT)

KINDS = ["array", "record", "range", "iter", "list", "generator", "mapped", "loader"]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[int, int]:
    """Workers and replicas, as many as there are devices at most."""
    workers = draw(st.integers(1, 4))
    return workers, workers * draw(st.integers(1, 8 // workers))


def make(kind: str, examples: int, batch: int, *, drop: bool = False, seed: int | None = None) -> Any:
    """A dataset of the numbers from 0, batched."""
    numbers = np.arange(examples, dtype=np.int32)
    if kind == "loader":
        sampler = grain.samplers.IndexSampler(
            examples, grain.sharding.NoSharding(), shuffle=seed is not None, num_epochs=1, seed=seed
        )
        operations = [grain.transforms.Batch(batch, drop_remainder=drop)]
        return grain.DataLoader(data_source=ArraySource(numbers), sampler=sampler, operations=operations)
    base: grain.MapDataset[Any] = {
        "array": make_numpy_dataset(numbers),
        "range": grain.MapDataset.range(examples),
    }.get(kind, grain.MapDataset.source(numbers.tolist()))
    if seed is not None:
        base = base.shuffle(seed)
    if kind == "iter":
        return base.to_iter_dataset().filter(lambda _: True).batch(batch, drop_remainder=drop)
    batched = base.batch(batch, drop_remainder=drop)
    if kind == "mapped":
        return batched.map(lambda rows: rows + 0)
    if kind == "list":
        return list(batched)
    return (element for element in list(batched)) if kind == "generator" else batched


def on_worker(
    dataset: Any, shard: tuple[int, int, int], options: InputOptions, meeting: Meeting | None = None
) -> DistributedDataset:
    workers, worker, replicas = shard
    mesh = ReplicaMesh(jax.devices()[:replicas])
    agree = meeting.of(worker) if meeting else None
    return distribute_dataset(dataset, mesh, options, InputContext(workers, worker, replicas), agree)


def deliver(make_dataset: Any, workers: int, replicas: int, options: InputOptions) -> list[list[list[int]]]:
    """What each replica gets in each step: `[step][replica] -> rows`."""

    def work(worker: int, meeting: Meeting) -> list[list[list[int]]]:
        dataset = on_worker(make_dataset(), (workers, worker, replicas), options, meeting)
        return [rows_of(step) for step in drain(steps_of(dataset))]

    found = on_workers(workers, work)
    assert len({len(steps) for steps in found}) == 1, "the workers took different numbers of steps"
    return [list(itertools.chain.from_iterable(parts)) for parts in zip(*found, strict=True)]


@settings(max_examples=60)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 60),
    st.integers(1, 20),
    clusters(),
    st.booleans(),
    st.none() | st.integers(0, 9),
)
def test_every_example_once_and_in_the_right_replica(
    kind: str, examples: int, batch: int, cluster: tuple[int, int], drop: bool, seed: int | None
) -> None:
    steps = deliver(lambda: make(kind, examples, batch, drop=drop, seed=seed), *cluster, DATA)
    order = [row for step in steps for part in step for row in part]
    kept = examples - examples % batch if drop else examples
    assert len(order) == kept
    assert len(set(order)) == kept
    if seed is None:
        assert order == list(range(kept))
    for number, step in enumerate(steps):
        size = min(batch, kept - number * batch)
        assert tuple(map(len, step)) == slice_sizes(size, cluster[1])


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(1, 60), st.integers(1, 20), clusters(), clusters(), st.integers(0, 9))
def test_a_step_is_the_same_batch_on_any_cluster(
    examples: int, batch: int, one: tuple[int, int], other: tuple[int, int], seed: int
) -> None:
    def batches(cluster: tuple[int, int]) -> list[list[int]]:
        steps = deliver(lambda: make("array", examples, batch, seed=seed), *cluster, DATA)
        return [[row for part in step for row in part] for step in steps]

    assert batches(one) == batches(other)


@settings(max_examples=30)
@given(st.sampled_from(["array", "record", "iter", "list"]), st.integers(1, 40), st.integers(1, 12), clusters())
def test_without_sharding_every_worker_delivers_all(
    kind: str, examples: int, batch: int, cluster: tuple[int, int]
) -> None:
    workers, replicas = cluster
    steps = deliver(lambda: make(kind, examples, batch), workers, replicas, OFF)
    seen = Counter(row for step in steps for part in step for row in part)
    assert seen == dict.fromkeys(range(examples), workers)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 12), clusters())
def test_a_hint_shares_out_once(examples: int, batch: int, cluster: tuple[int, int]) -> None:
    def dataset() -> Any:
        return grain.MapDataset.range(examples).pipe(shard_hint).batch(batch)

    steps = deliver(dataset, *cluster, HINT)
    order = [row for step in steps for part in step for row in part]
    assert sorted(order) == list(range(examples))


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(1, 8), clusters(), st.integers(1, 3))
def test_epochs_repeat_every_example(examples: int, batch: int, cluster: tuple[int, int], epochs: int) -> None:
    def dataset() -> Any:
        return make_numpy_dataset(np.arange(examples)).shuffle(3).batch(batch).repeat(epochs)

    steps = deliver(dataset, *cluster, DATA)
    seen = Counter(row for step in steps for part in step for row in part)
    assert seen == dict.fromkeys(range(examples), epochs)


@settings(max_examples=30)
@given(st.integers(0, 30), st.integers(1, 6), clusters(), st.sampled_from(["record", "list", "iter", "generator"]))
def test_datasets_from_a_function_deliver_every_example(
    examples: int, batch: int, cluster: tuple[int, int], kind: str
) -> None:
    workers, replicas = cluster

    def work(worker: int, meeting: Meeting) -> list[list[list[int]]]:
        def dataset_fn(context: InputContext) -> Any:
            own = range(examples)[context.input_pipeline_id :: context.num_input_pipelines]
            # One example at least, so that the elements of an empty worker are known.
            return make(kind, len(own) + 1, batch)

        mesh = ReplicaMesh(jax.devices()[:replicas])
        context = InputContext(workers, worker, replicas)
        dataset = distribute_from_function(dataset_fn, mesh, None, context, meeting.of(worker))
        return [rows_of(step) for step in drain(steps_of(dataset))]

    found = on_workers(workers, work)
    assert len({len(steps) for steps in found}) == 1
    for worker, steps in enumerate(found):
        own = range(examples)[worker::workers]
        assert sorted(row for step in steps for part in step for row in part) == list(range(len(own) + 1))


@pytest.mark.parametrize("row", TABLES["mirrored"], ids=str)
@pytest.mark.parametrize("kind", ["array", "record", "iter", "list"])
def test_the_cuts_are_those_of_tensorflow(row: dict[str, Any], kind: str) -> None:
    dataset = on_worker(make(kind, row["examples"], row["batch"], drop=row["drop"]), (1, 0, row["replicas"]), DATA)
    assert [rows_of(step) for step in drain(steps_of(dataset))] == row["elements"]


@pytest.mark.parametrize("row", TABLES["from_function"], ids=str)
@pytest.mark.parametrize("kind", ["array", "record", "iter", "generator"])
def test_a_functions_batches_are_dealt_as_tensorflow_deals_them(row: dict[str, Any], kind: str) -> None:
    if kind == "generator" and row["drop"]:
        pytest.skip("nothing tells that a generator's batches have one shape")
    mesh = ReplicaMesh(jax.devices()[: row["replicas"]])
    dataset = distribute_from_function(
        lambda _: make(kind, row["examples"], row["batch"], drop=row["drop"]),
        mesh,
        None,
        InputContext(1, 0, row["replicas"]),
    )
    assert [rows_of(step) for step in drain(steps_of(dataset))] == row["elements"]


@pytest.mark.parametrize("row", TABLES["over_workers"], ids=str)
def test_workers_get_the_slices_that_tensorflow_gives_them(row: dict[str, Any]) -> None:
    """TensorFlow deals slices to workers in turn; here replica `r` gets slice `r`, whichever worker it is on."""
    workers, replicas = row["workers"], row["replicas"]
    local = replicas // workers
    steps = deliver(lambda: make("record", 19, row["batch"]), workers, replicas, DATA)
    for number, step in enumerate(steps):
        slices: list[list[int]] = [[] for _ in range(replicas)]
        for worker, parts in enumerate(row["data"]):
            slices[worker::workers] = parts[number * local : (number + 1) * local]
        assert step == slices


@pytest.mark.parametrize("row", TABLES["over_workers"], ids=str)
def test_files_are_cut_as_tensorflow_cuts_them(row: dict[str, Any]) -> None:
    workers, replicas = row["workers"], row["replicas"]
    local = replicas // workers

    def work(worker: int, meeting: Meeting) -> list[list[list[int]]]:
        # What the worker reads of its own file, through a hint that gives it that.
        own = [range(10), range(10, 16)][worker]
        dataset = grain.MapDataset.source(list(own)).to_iter_dataset().filter(lambda _: True).batch(row["batch"])
        distributed = on_worker(dataset, (workers, worker, replicas), OFF, meeting)
        return [rows_of(step) for step in drain(steps_of(distributed))]

    for worker, steps in enumerate(on_workers(workers, work)):
        slices = [part for step in steps for part in step]
        expected = row["file"][worker]
        assert slices[: len(expected)] == expected
        assert all(not part for part in slices[len(expected) :])
        assert len(slices) % local == 0
