"""The adapters of Grain's datasets."""

from typing import Any

import grain
import numpy as np
import pytest

from jaxtribute._src.core.input.sources import Source, adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.errors import InputError
from jaxtribute.input import ArraySource, make_numpy_dataset


def read(source: Source, shard: Shard | None = None) -> list[list[int]]:
    stream, found = source.open(shard or Shard()), list[list[int]]()
    while True:
        try:
            found.append(next(stream).tree.tolist())
        except StopIteration:
            stream.close()
            return found


def numbers(examples: int) -> Any:
    return make_numpy_dataset(np.arange(examples))


def loader(shards: int = 1) -> Any:
    sharding = grain.sharding.ShardOptions(0, shards)
    sampler = grain.samplers.IndexSampler(6, sharding, shuffle=False, num_epochs=1)
    operations = [grain.transforms.Batch(2)]
    return grain.DataLoader(data_source=ArraySource(np.arange(6)), sampler=sampler, operations=operations)


@pytest.mark.parametrize(
    ("dataset", "length", "left_over"),
    [
        (numbers(10).batch(4), (3, 10), 0),
        (numbers(10).batch(4, drop_remainder=True), (2, 8), 2),
        (numbers(10).batch(4).repeat(2), (6, 20), 0),
        (numbers(10).repeat(2).batch(4), (5, 20), 0),
        (numbers(10).batch(4).repeat(), None, 0),
        (numbers(10).batch(4).map(lambda b: b), None, 0),
        (numbers(10), None, 0),
        (numbers(10).batch(4).filter(lambda b: len(b) == 4), None, 0),
        (numbers(2).batch(4, drop_remainder=True), (0, 0), 2),
    ],
)
def test_lengths(dataset: Any, length: tuple[int, int] | None, left_over: int) -> None:
    source = adapt(dataset)
    assert source.length() == length
    assert source.left_over() == left_over


def test_a_worker_reads_its_share_of_arrays_and_records() -> None:
    touched: list[int] = []

    def touch(record: int) -> int:
        touched.append(int(record))
        return record

    for dataset in (numbers(10).batch(4), numbers(10).map(touch).batch(4)):
        source = adapt(dataset)
        assert source.reads == "share"
        assert read(source, Shard(2, 1, 2)) == [[2, 3], [6, 7], [9]]
    assert sorted(touched) == [2, 3, 6, 7, 9]


def test_a_worker_without_rows_gets_an_empty_batch() -> None:
    source = adapt(grain.MapDataset.source([1.5, 2.5]).batch(2))
    stream = source.open(Shard(4, 3, 4))
    batch = next(stream)
    stream.close()
    assert batch.tree.shape == (0,)
    assert batch.tree.dtype == np.float64
    assert (batch.start, batch.total) == (2, 2)


def test_elements_that_a_filter_leaves_out_are_no_batches() -> None:
    source = adapt(numbers(10).batch(2).filter(lambda batch: batch[0] != 4))
    assert read(source) == [[0, 1], [2, 3], [6, 7], [8, 9]]
    assert not source.knows_end()


def test_what_is_known_of_a_sequential_dataset() -> None:
    source = adapt(numbers(10).to_iter_dataset().filter(lambda x: x > 2).batch(4, drop_remainder=True))
    assert source.static_rows()
    assert source.batch_size() == 4
    assert source.length() is None
    assert read(source) == [[3, 4, 5, 6]]
    assert adapt(numbers(4).to_iter_dataset().map(lambda x: x)).batch_size() is None


def test_a_loader() -> None:
    source = adapt(loader())
    assert read(source) == [[0, 1], [2, 3], [4, 5]]
    spec = source.spec()
    assert spec is not None
    assert spec.shape == (None,)


def test_a_loader_that_shards_already() -> None:
    source = adapt(loader(2))
    with pytest.raises(InputError, match=r"one of 2 shards already.*2 workers.*NoSharding.*OFF"):
        source.open(Shard(2, 0, 2))
    assert read(source)


def test_a_position_beyond_the_end() -> None:
    stream = adapt(numbers(4).batch(2)).open(Shard())
    with pytest.raises(InputError, match=r"batch 9 of a dataset that has 2.*HINT"):
        stream.set_state({"next": 9, "batch_size": 2, "length": 9})
