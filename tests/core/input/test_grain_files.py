"""Sharding Grain pipelines by their files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtribute._src.core.input import grain_files
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.errors import InputError
from jaxtribute.input import TextLineSource, shard_hint
from simulated import shards
from tfrecords import write_tfrecord

Writer = Callable[[Path, list[int]], None]


def write_text(path: Path, numbers: list[int]) -> None:
    path.write_text("".join(f"{number}\n" for number in numbers))


def write_array_record(path: Path, numbers: list[int]) -> None:
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for number in numbers:
        writer.write(str(number).encode())
    writer.close()


def write_records(path: Path, numbers: list[int]) -> None:
    write_tfrecord(path, [str(number).encode() for number in numbers])


def tfrecords(paths: list[str]) -> Any:
    readers = [grain.experimental.TFRecordIterDataset(path) for path in paths]
    return grain.experimental.InterleaveIterDataset(readers, cycle_length=2)


def concatenated(paths: list[str]) -> Any:
    return grain.MapDataset.concatenate([grain.MapDataset.source(TextLineSource(path)) for path in paths])


def array_records(paths: list[str], options: dict[str, str] | None = None) -> Any:
    source: Any = grain.sources.ArrayRecordDataSource(paths, options)
    return grain.MapDataset.source(source)


FORMATS: dict[str, tuple[Writer, Callable[[list[str]], Any]]] = {
    "text": (write_text, lambda paths: grain.MapDataset.source(TextLineSource(paths))),
    "array_record": (write_array_record, array_records),
    "tfrecord": (write_records, tfrecords),
    "concatenated": (write_text, concatenated),
}


def write(folder: Path, kind: str, sizes: list[int]) -> list[str]:
    paths: list[str] = []
    start = 0
    for number, size in enumerate(sizes):
        paths.append(str(folder / f"{kind}-{number}"))
        FORMATS[kind][0](Path(paths[-1]), list(range(start, start + size)))
        start += size
    return paths


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(FORMATS)), st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_each_worker_reads_files_of_its_own(tmp_path: Path, kind: str, sizes: list[int], data: st.DataObject) -> None:
    paths = write(tmp_path, kind, sizes)
    workers = data.draw(st.integers(1, len(paths)))
    dataset = FORMATS[kind][1](paths).map(int)
    assert grain_files.files(dataset) == tuple(paths)
    seen: list[int] = []
    for shard in shards(workers, workers):
        own = grain_files.keep(dataset, shard)
        assert grain_files.files(own) == tuple(paths[shard.worker :: workers])
        seen += list(own)
    assert sorted(seen) == list(range(sum(sizes)))


@pytest.mark.parametrize("kind", ["text", "array_record"])
def test_what_follows_the_files_follows_their_number(tmp_path: Path, kind: str) -> None:
    paths = write(tmp_path, kind, [4, 3, 2])
    dataset = FORMATS[kind][1](paths).seed(1).shuffle().map(int).batch(2).repeat(2)
    own = grain_files.keep(dataset, Shard(3, 2, 3))
    assert len(own) == 2
    assert sorted(own[0].tolist()) == sorted(own[1].tolist()) == [7, 8]
    assert len(dataset) == 10


def test_parquet_paths_are_shared_out() -> None:
    dataset = grain.experimental.ParquetIterDataset(["a", "b", "c"]).map(lambda row: row)
    assert grain_files.files(dataset) == ("a", "b", "c")
    assert grain_files.files(grain_files.keep(dataset, Shard(2, 0, 2))) == ("a", "c")
    assert grain_files.files(grain.experimental.ParquetIterDataset("a")) == ("a",)


def test_files_opened_by_a_function_have_no_names(tmp_path: Path) -> None:
    paths = write(tmp_path, "tfrecord", [2, 2])
    readers: Any = grain.MapDataset.source(paths).map(grain.experimental.TFRecordIterDataset)
    dataset = grain.experimental.InterleaveIterDataset(readers, cycle_length=1)
    assert len(grain_files.files(dataset)) == 2
    assert list(grain_files.keep(dataset, Shard(2, 1, 2))) == [b"2", b"3"]


def test_slices_of_records_do_not_survive_fewer_files(tmp_path: Path) -> None:
    dataset = FORMATS["text"][1](write(tmp_path, "text", [2, 2]))[1:]
    with pytest.raises(InputError, match=r"cannot be shared out among 2 workers.*HINT: slice files"):
        grain_files.keep(dataset, Shard(2, 0, 2))


def test_one_file_read_twice(tmp_path: Path) -> None:
    path = write(tmp_path, "text", [2])[0]
    with pytest.raises(InputError, match="more than once"):
        grain_files.keep(FORMATS["text"][1]([path, path]), Shard(2, 0, 2))


def test_reader_options_are_kept(tmp_path: Path) -> None:
    paths = write(tmp_path, "array_record", [2, 3])
    dataset = array_records(paths, {"index_storage_option": "in_memory"})
    own: Any = grain_files.keep(dataset, Shard(2, 1, 2))
    assert own._source._reader_options_string == "index_storage_option:in_memory"
    assert list(own) == [b"2", b"3", b"4"]


def test_a_single_record_file_cannot_be_divided(tmp_path: Path) -> None:
    reader = grain.experimental.TFRecordIterDataset(write(tmp_path, "tfrecord", [2])[0])
    with pytest.raises(InputError, match="reads a single file"):
        grain_files.keep(reader, Shard(1, 0, 1))


def test_datasets_without_files() -> None:
    dataset = grain.MapDataset.range(4)
    assert grain_files.files(dataset) == ()
    with pytest.raises(InputError, match=r"needs one source of files.*has 0.*HINT"):
        grain_files.keep(dataset, Shard(2, 0, 2))


def test_two_sources_of_files(tmp_path: Path) -> None:
    one = FORMATS["text"][1](write(tmp_path, "text", [2, 2]))
    both = grain.experimental.ZipMapDataset([one, one])
    assert grain_files.files(both) == ()
    with pytest.raises(InputError, match="has 2"):
        grain_files.keep(both, Shard(2, 0, 2))


def test_a_hint_marks_the_place() -> None:
    dataset = grain.MapDataset.range(10).pipe(shard_hint).map(lambda x: x * 10).batch(2)
    assert [batch.tolist() for batch in dataset][:2] == [[0, 10], [20, 30]]
    own = grain_files.at_hint(dataset, Shard(3, 1, 3))
    assert [batch.tolist() for batch in own] == [[10, 40], [70]]
    assert len(shard_hint(grain.MapDataset.range(10))[2:]) == 8
    with pytest.raises(InputError, match=r"needs a mark.*jd\.shard_hint"):
        grain_files.at_hint(grain.MapDataset.range(10), Shard(2, 0, 2))
