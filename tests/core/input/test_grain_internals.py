"""The facts about Grain's insides that the library relies on, one test each.

A release of Grain that changes one of them fails here, and the test's name says what to look at in `grain_internals`.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from grain.experimental import InterleaveIterDataset, ParquetIterDataset, TFRecordIterDataset, WindowShuffleMapDataset

from jaxtribute._src.core.input import grain_internals as internals
from jaxtribute.input import TextLineSource

Records = grain.MapDataset[Any]


@pytest.fixture
def records() -> Records:
    numbers: Any = np.arange(12)
    return grain.MapDataset.source(numbers)


def test_a_node_keeps_what_it_reads_from(records: Records) -> None:
    mapped = records.map(str)
    assert internals.parents(mapped) == (records,)
    assert internals.parents(records) == ()
    assert internals.parents(mapped.to_iter_dataset()) == (mapped,)


def test_a_users_own_node_may_know_no_parents() -> None:
    class Own(grain.MapDataset[int]):
        def __init__(self) -> None:
            """Leaves out `super().__init__()`, as Grain allows."""

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: Any) -> Any:
            return 7

    assert internals.parents(Own()) == ()


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (lambda data: data.map(lambda x: x + 100), [100, 101, 102, 103]),
        (lambda data: data.batch(3), [[0, 1, 2], [3]]),
        (lambda data: data.repeat(2), [0, 1, 2, 3, 0, 1, 2, 3]),
        (lambda data: data.repeat(2, reseed_each_epoch=False), [0, 1, 2, 3, 0, 1, 2, 3]),
        (lambda data: data.batch(2).repeat(2), [[0, 1], [2, 3], [0, 1], [2, 3]]),
    ],
)
def test_a_copy_over_other_parents_takes_lengths_anew(records: Records, chain: Any, expected: list[Any]) -> None:
    node = chain(records)
    assert len(node)  # it keeps what it finds out
    assert node[0] is not None
    numbers: Any = np.arange(4)
    fewer = grain.MapDataset.source(numbers)

    def over(node: Any) -> Any:
        return (
            fewer
            if node is records
            else internals.with_parents(node, tuple(over(one) for one in internals.parents(node)))
        )

    changed = over(node)
    assert [np.asarray(changed[index]).tolist() for index in range(len(changed))] == expected


def test_a_copy_has_its_own_seed_and_statistics(records: Records) -> None:
    node = records.seed(3).shuffle()
    list(node)
    found = internals.with_parents(node.map(lambda x: x), (records.seed(4),))
    assert found._default_seed != node._default_seed  # pyright: ignore[reportPrivateUsage]
    assert found._stats is not node._stats  # pyright: ignore[reportPrivateUsage]


def test_a_slice_is_bound_to_a_number_of_records(records: Records) -> None:
    with pytest.raises(ValueError, match="was resolved for 12 records"):
        internals.with_parents(records[2:], (grain.MapDataset.range(5),))


def test_reorderings(records: Records) -> None:
    seeded = records.seed(1)
    for node in (seeded, seeded.shuffle(), records[1:], records.repeat(2)):
        assert internals.is_reordering(node)
    assert internals.is_reordering(WindowShuffleMapDataset(records, window_size=4, seed=1))
    for node in (records, records.map(str), records.batch(2), records.filter(bool)):
        assert not internals.is_reordering(node)


def test_what_may_drop_elements(records: Records) -> None:
    assert internals.may_drop(records.filter(bool))
    assert internals.may_drop(records.to_iter_dataset().filter(bool))
    assert not internals.may_drop(records.map(str))


def test_maps(records: Records) -> None:
    def at_random(value: Any, rng: np.random.Generator) -> Any:
        return value

    for node in (records.map(str), records.map_with_index(max), records.seed(1).random_map(at_random)):
        assert internals.is_map(node)
    assert not internals.is_map(records)


@pytest.mark.parametrize("sequential", [False, True])
def test_batching(records: Records, sequential: bool) -> None:
    data: Any = records.to_iter_dataset() if sequential else records
    found = internals.batching(data.batch(5, drop_remainder=True))
    assert found is not None
    assert found.default
    assert (found.size, found.drops_remainder) == (5, True)
    assert found.stack([np.zeros(2), np.ones(2)]).tolist() == [[0, 0], [1, 1]]
    own = internals.batching(data.batch(5, batch_fn=list))
    assert own is not None
    assert not own.default
    assert own.stack is list
    assert internals.batching(data) is None


def test_shuffles_number_their_seeds_by_epoch(records: Records) -> None:
    node = records.shuffle(2**32 - 1)
    assert internals.shuffling(node) == internals.Shuffling(12, 2**32 - 1)
    assert internals.shuffles_all(node)
    places = [grain.experimental.index_shuffle(i, 11, 0, 4) for i in range(12)]
    assert [node[12 + i] for i in range(12)] == places  # the seed of the second epoch is one more, modulo 2**32


def test_window_shuffles_number_their_seeds_by_window(records: Records) -> None:
    node = WindowShuffleMapDataset(records, window_size=4, seed=6)
    assert internals.shuffling(node) == internals.Shuffling(4, 6)
    assert not internals.shuffles_all(node)
    places = [grain.experimental.index_shuffle(i, 3, 8, 4) for i in range(4)]
    assert [node[8 + i] for i in range(4)] == [8 + place for place in places]


def test_slices_stay_within_an_epoch(records: Records) -> None:
    node = records.shuffle(1)[3::2]
    assert internals.slicing(node) == internals.Slicing(12, 3, 2)
    assert node[5] == records.shuffle(1)[12 + 3]
    assert internals.slicing(records) is None


def test_repetitions_in_one_order(records: Records) -> None:
    assert internals.repeated_alike(records.repeat(3, reseed_each_epoch=False)) == 12
    assert internals.repeated_alike(records.repeat(3)) is None
    assert internals.repeated_alike(records) is None


def test_sources_and_ranges(records: Records) -> None:
    assert isinstance(internals.source_of(records), np.ndarray)
    assert internals.source_of(records.map(str)) is None
    assert internals.range_of(grain.MapDataset.range(2, 9, 3)) == (2, 9, 3)
    assert internals.range_of(records) is None


def test_reading_ahead_keeps_the_random_access(records: Records) -> None:
    assert internals.read_ahead(records.to_iter_dataset()) is records
    assert internals.read_ahead(records.to_iter_dataset().map(str)) is None


def test_files_of_nodes(tmp_path: Path, records: Records) -> None:
    names = [str(tmp_path / f"{number}.txt") for number in range(2)]
    for name in names:
        Path(name).write_text("line\n")
    assert internals.paths(ParquetIterDataset(names)) == tuple(names)
    assert internals.paths(ParquetIterDataset(names[0])) == (names[0],)
    assert internals.paths(TFRecordIterDataset(names[1])) == (names[1],)
    assert internals.paths(grain.MapDataset.source(TextLineSource(names))) == tuple(names)
    assert internals.paths(records) == ()


def test_interleaved_datasets(records: Records) -> None:
    parts = [records.to_iter_dataset(), records.to_iter_dataset()]
    assert internals.interleaved(InterleaveIterDataset(parts, cycle_length=2)) == parts
    assert internals.interleaved(records) is None


def test_slices_of_files(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{number}.parquet") for number in range(3)]
    own = internals.over_files(ParquetIterDataset(names), slice(1, None, 2))
    assert internals.paths(own) == (names[1],)
    with pytest.raises(ValueError, match="reads a single file"):
        internals.over_files(TFRecordIterDataset(names[0]), slice(0, None, 2))


def test_concatenation(records: Records) -> None:
    both = grain.MapDataset.concatenate([records, records[2:]])
    assert internals.is_concatenation(both)
    assert len(internals.over_files(both, slice(1, None, 2))) == 10


def test_a_node_may_say_that_it_changes_no_element() -> None:
    """Grain asks a class attribute, by which its summaries leave such nodes out."""
    assert vars(grain.MapDataset)["_MUTATES_ELEMENT_SPEC"] is True
    assert vars(internals.SameElements)["_MUTATES_ELEMENT_SPEC"] is False


def test_shards_of_a_loader_and_its_end() -> None:
    sampler = grain.samplers.IndexSampler(6, shard_options=grain.sharding.ShardOptions(1, 3), num_epochs=1)
    loader = grain.DataLoader(data_source=range(6), sampler=sampler)  # pyright: ignore[reportArgumentType]
    assert internals.loader_shards(loader) == 3
    iterator = iter(loader)
    assert next(iterator) in range(6)
    internals.close_loader(iterator)


def test_batches_are_made_as_they_were_asked_for() -> None:
    """`MapDataset.batch` passes the function on, by which a batching is copied."""
    assert "batch_fn" in inspect.signature(grain.MapDataset.batch).parameters
