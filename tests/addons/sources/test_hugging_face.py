"""Hugging Face's datasets, map-style and streaming, where `datasets` is installed: in memory, and of local files."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute._src.core.input.sources import adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import ArgumentTypeError, InputError
from jaxtribute.input import AutoShardPolicy, InputContext, InputOptions, distribute_dataset
from simulated import Meeting, on_workers

pytest.importorskip("threadpoolctl")  # sets KMP_DUPLICATE_LIB_OK as it is imported, which hashing a function does
datasets: Any = pytest.importorskip("datasets")
datasets.disable_progress_bars()
datasets.utils.tqdm.monitor_interval = 0  # its thread would outlive the test

DATA = InputOptions(auto_shard_policy=AutoShardPolicy.DATA)
SHARDS, ROWS = 3, 7


def records(shards: Sequence[int]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        for row in range(ROWS):
            yield {"x": shard * 100 + row, "v": [shard, row]}


def streaming(kind: str) -> Any:
    if kind == "memory":
        return datasets.Dataset.from_list(list(records(range(SHARDS)))).to_iterable_dataset(num_shards=SHARDS)
    # A list is shared out as shards, a tuple is not.
    shards: Any = list(range(SHARDS)) if kind == "shards" else tuple(range(SHARDS))
    return datasets.IterableDataset.from_generator(records, gen_kwargs={"shards": shards})


def twice(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [value for value in column for _ in range(2)] for name, column in batch.items()}


def add_one(record: dict[str, Any]) -> dict[str, Any]:
    return {"x": record["x"] + 1}


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "map": lambda dataset: dataset.map(add_one),
    "batched map": lambda dataset: dataset.map(twice, batched=True, batch_size=4),
    "filter": lambda dataset: dataset.filter(lambda record: record["x"] % 2 == 0),
    "take": lambda dataset: dataset.take(13),
    "skip": lambda dataset: dataset.skip(3),
    "repeat": lambda dataset: dataset.repeat(2),
    "interleave": lambda dataset: datasets.interleave_datasets([dataset, dataset.map(add_one)]),
    "mix": lambda dataset: datasets.interleave_datasets(
        [dataset, dataset.map(add_one)], probabilities=[0.3, 0.7], seed=1
    ),
    "concatenate": lambda dataset: datasets.concatenate_datasets([dataset, dataset.skip(2)]),
    "shuffle": lambda dataset: dataset.shuffle(seed=1, buffer_size=5),
    "format": lambda dataset: dataset.with_format("numpy"),
}


def pipeline(kind: str, operations: Sequence[str], batch: int) -> Any:
    dataset = streaming(kind)
    for operation in operations:
        dataset = OPERATIONS[operation](dataset)
    return dataset.batch(batch)


def read(stream: Any, limit: int = 10_000) -> list[Any]:
    """Batches as lists."""
    found: list[Any] = []
    for _ in range(limit):
        try:
            found.append(jax.tree.map(lambda leaf: leaf.tolist(), next(stream).tree))
        except StopIteration:
            break
    return found


def columns(batches: list[Any]) -> list[int]:
    return [row for batch in batches for row in batch["x"]]


ALL = [record["x"] for record in records(range(SHARDS))]


# --- elements --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", [None, "numpy"])
@pytest.mark.parametrize("kind", ["map-style", "memory", "shards"])
def test_batches_are_dicts_of_arrays(kind: str, format_: str | None) -> None:
    rows = datasets.Dataset.from_list(list(records(range(SHARDS))))
    dataset = (rows if kind == "map-style" else streaming(kind)).with_format(format_).batch(4)
    source = adapt(dataset)
    assert source.name == ("datasets.Dataset" if kind == "map-style" else "datasets.IterableDataset")
    batch = next(source.open(Shard()))
    assert batch.total == 4
    assert batch.tree["x"].tolist() == [0, 1, 2, 3]
    assert batch.tree["v"].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert columns(read(source.open(Shard()))) == ALL


def test_on_devices() -> None:
    mesh = ReplicaMesh(jax.devices()[:4])
    found = list(distribute_dataset(streaming("memory").batch(8), mesh, None, InputContext(1, 0, 4)))
    assert [[len(part) for part in element["x"].values] for element in found] == [[2] * 4, [2] * 4, [2, 2, 1, 0]]
    assert np.concatenate([part for element in found for part in element["x"].values]).tolist() == ALL


def test_a_map_style_dataset_is_a_source_of_grain() -> None:
    rows = datasets.Dataset.from_list(list(records(range(SHARDS)))).with_format("numpy")
    source = adapt(grain.MapDataset.source(rows).shuffle(seed=0).batch(4))
    assert source.reads == "share"
    assert sorted(columns(read(source.open(Shard())))) == ALL


@pytest.mark.parametrize(
    ("column", "format_", "message"),
    [
        ([[1], [1, 2]], None, r"column 'x'.*different shapes.*HINT: pad it"),
        ([[1], [1, 2]], "numpy", r"column 'x'.*different shapes.*HINT: pad it"),
        ([1, None], None, r"column 'x'.*values such as 1.*HINT"),  # NumPy's format makes a NaN of it
        ([None, None], None, r"column 'x'.*values such as None.*HINT"),
        ([None, None], "numpy", r"column 'x'.*values such as None.*HINT"),
    ],
)
def test_what_makes_no_array_is_refused(column: list[Any], format_: str | None, message: str) -> None:
    dataset = datasets.Dataset.from_dict({"x": column}).with_format(format_).batch(2)
    for source in (adapt(dataset), adapt(dataset.to_iterable_dataset())):
        with pytest.raises(InputError, match=message):
            next(source.open(Shard()))


def test_strings_stay_on_the_host() -> None:
    dataset = datasets.Dataset.from_dict({"text": ["a", "bc", "d"]}).batch(2)
    assert read(adapt(dataset).open(Shard())) == [{"text": ["a", "bc"]}, {"text": ["d"]}]


def test_splits_are_refused() -> None:
    one = datasets.Dataset.from_dict({"x": [1]})
    with pytest.raises(ArgumentTypeError, match=r"train, test is several.*HINT: distribute one"):
        adapt(datasets.DatasetDict(train=one, test=one))


def test_an_unbatched_dataset_is_refused() -> None:
    mesh = ReplicaMesh(jax.devices()[:2])
    with pytest.raises(InputError, match="batch the dataset by the global batch size"):
        next(iter(distribute_dataset(streaming("memory").select_columns(["x"]), mesh, None, InputContext(1, 0, 2))))


# --- positions -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.sampled_from(["memory", "shards", "generator"]),
    st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=3),
    st.integers(1, 9),
    st.integers(0, 2),
    st.data(),
)
def test_a_position_is_exact(kind: str, operations: list[str], batch: int, epoch: int, data: st.DataObject) -> None:
    dataset = pipeline(kind, operations, batch)
    dataset.set_epoch(epoch)
    whole = read(adapt(dataset).open(Shard()))
    taken = data.draw(st.integers(0, len(whole)))
    stream = adapt(dataset).open(Shard())
    assert read(stream, taken) == whole[:taken]
    state = json.loads(json.dumps(stream.get_state()))
    # Made anew, as another process makes it: it knows of no epoch.
    restored = adapt(pipeline(kind, operations, batch)).open(Shard())
    restored.set_state(state)
    assert restored.get_state()["batches"] == taken
    assert read(restored) == whole[taken:]


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.sampled_from(["streaming", "shuffled", "map-style", "grain"]),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 4),
    st.data(),
)
def test_a_position_holds_on_another_number_of_workers(
    kind: str, batch: int, old: int, new: int, data: st.DataObject
) -> None:
    rows = datasets.Dataset.from_list(list(records(range(SHARDS)))).with_format("numpy")

    def dataset() -> Any:
        if kind == "map-style":
            return rows.shuffle(seed=1).batch(batch)
        if kind == "grain":
            return grain.MapDataset.source(rows).shuffle(seed=1).batch(batch)
        return pipeline("shards", ["shuffle"] if kind == "shuffled" else ["map"], batch)

    def run(worker: int, meeting: Meeting, workers: int, state: Any, limit: int) -> tuple[list[list[int]], Any]:
        context = InputContext(workers, worker, workers)
        mesh = ReplicaMesh(jax.devices()[:workers])
        iterator = iter(distribute_dataset(made[worker], mesh, DATA, context, meeting.of(worker)))
        if state is not None:
            iterator.set_state(state)
        steps = iterator._steps  # pyright: ignore[reportPrivateUsage]
        found: list[list[int]] = []
        for _ in range(limit):
            try:
                step = next(steps)
            except StopIteration:
                break
            found.append(step.cut()[0]["x"].tolist())
        saved = json.dumps(iterator.get_state())
        iterator.close()
        return found, saved

    def in_order(parts: list[Any]) -> list[int]:
        steps = zip(*(found for found, _ in parts), strict=True)
        return [row for step in steps for part in step for row in part]

    whole = columns(read(adapt(dataset()).open(Shard())))
    taken = data.draw(st.integers(0, -(-len(whole) // batch)))
    # Not in the workers' threads: the library's cache of files is no place for several of them.
    made = [dataset() for _ in range(max(old, new))]
    first = on_workers(old, lambda worker, meeting: run(worker, meeting, old, None, taken))
    state = json.loads(first[-1][1])
    second = on_workers(new, lambda worker, meeting: run(worker, meeting, new, state, 10_000))
    assert in_order(first) + in_order(second) == whole


def test_two_passes_do_not_share_a_position() -> None:
    source = adapt(streaming("shards").batch(4))
    first, second = source.open(Shard()), source.open(Shard())
    assert read(first, 2) == read(second, 2)
    state = first.get_state()
    assert read(second) == read(first)
    restored = source.open(Shard())
    restored.set_state(state)
    assert columns(read(restored)) == ALL[8:]


def test_functions_are_not_copied_with_each_pass() -> None:
    class Tokenizer:
        def __deepcopy__(self, memo: dict[int, Any]) -> "Tokenizer":
            raise AssertionError("copied")

        def encode(self, record: dict[str, Any]) -> dict[str, Any]:
            return {"x": record["x"] + 1}

    source = adapt(streaming("shards").map(Tokenizer().encode).batch(4))
    assert columns(read(source.open(Shard()))) == [row + 1 for row in ALL]


def test_only_before_the_first_batch() -> None:
    stream = adapt(streaming("shards").batch(4)).open(Shard())
    next(stream)
    with pytest.raises(InputError, match=r"before its first batch, and 1 are read"):
        stream.set_state(stream.get_state())


def test_beyond_the_end() -> None:
    stream = adapt(pipeline("shards", ["shuffle"], 4)).open(Shard())
    with pytest.raises(InputError, match=r"after 9 batches, and the dataset has only 6"):
        stream.set_state({"batches": 9, "epoch": 0, "state": None})


# --- sharding --------------------------------------------------------------------------------------------------------


def test_local_files_are_shared_out(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{shard}.parquet") for shard in range(SHARDS)]
    for shard, file in enumerate(files):
        datasets.Dataset.from_list(list(records([shard]))).to_parquet(file)
    dataset = datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path / "cache")
    ).batch(4)
    source = adapt(dataset)
    own = [columns(read(source.by_file(Shard(2, worker, 2)).open(Shard()))) for worker in range(2)]
    assert all(own)
    assert sorted(own[0] + own[1]) == ALL
    with pytest.raises(InputError, match=r"the 3 shard\(s\).*among 4 workers"):
        source.by_file(Shard(4, 0, 4))


def test_a_part_of_a_dataset_is_not_shared_out_once_more() -> None:
    distributed: Any = pytest.importorskip("datasets.distributed")
    part = distributed.split_dataset_by_node(streaming("shards").batch(2), rank=0, world_size=2)
    assert columns(read(adapt(part).open(Shard())))
    with pytest.raises(InputError, match=r"part 0 of 2 already.*split_dataset_by_node"):
        adapt(part).open(Shard(2, 0, 2))
