"""Datasets of TFRecord files and of lines of text."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.addons.compat.tf.records import TFRecordSource
from jaxtribute._src.core.input.sources import adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.errors import ArgumentError, InputError
from replicas import components
from tfrecords import write_tfrecord


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{name}.tfr" for name in "abc"]
    for number, path in enumerate(paths):
        write_tfrecord(path, [bytes([10 * number + record] * (record + 1)) for record in range(number + 1)])
    return paths


def test_records_come_file_by_file(files: list[Path]) -> None:
    records = [record.item() for record in tf.data.TFRecordDataset(files).as_numpy_iterator()]
    assert records == [b"\x00", b"\x0a", b"\x0b\x0b", b"\x14", b"\x15\x15", b"\x16\x16\x16"]


def test_records_can_be_asked_for_by_number(files: list[Path]) -> None:
    source = TFRecordSource(files)
    assert len(source) == 6
    assert source[5].item() == b"\x16\x16\x16"
    assert str(files[0]) in repr(source)


@pytest.mark.parametrize("kind", ["name", "path", "names", "dataset"])
def test_names_may_be_given_in_several_ways(files: list[Path], kind: str) -> None:
    names = {
        "name": str(files[1]),
        "path": files[1],
        "names": [str(files[1])],
        "dataset": tf.data.Dataset.from_tensor_slices([str(files[1])]),
    }
    assert len(tf.data.TFRecordDataset(names[kind])) == 2


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert len(tf.data.TFRecordDataset(tmp_path / "empty")) == 0


@pytest.mark.parametrize("missing", [1, 5, 14])
def test_a_file_that_ends_early_is_an_error(files: list[Path], missing: int) -> None:
    files[2].write_bytes(files[2].read_bytes()[:-missing])
    with pytest.raises(InputError, match=r"ends within record.*HINT"):
        tf.data.TFRecordDataset(files[2])


@pytest.mark.parametrize("kind", [tf.data.TFRecordDataset, tf.data.TextLineDataset])
def test_what_is_not_compressed_so_is_refused(files: list[Path], kind: Any) -> None:
    with pytest.raises(InputError, match=r"GZIP.*HINT"):
        kind(files, compression_type="GZIP")
    with pytest.raises(ArgumentError, match=r"XZ.*HINT"):
        kind(files, compression_type="XZ")


@pytest.mark.parametrize(("kind", "unpack"), [("GZIP", gzip.decompress), ("ZLIB", zlib.decompress)])
def test_compressed_records(tmp_path: Path, kind: Any, unpack: Callable[[bytes], bytes]) -> None:
    path, plain = tmp_path / "packed", b""
    for options in (None, kind, tf.io.TFRecordOptions(compression_type=kind)):
        with tf.io.TFRecordWriter(str(path), options) as writer:
            for record in range(3):
                writer.write(bytes([20 + record] * (record + 1)))
        plain = plain or path.read_bytes()
        assert options is None or unpack(path.read_bytes()) == plain
    found = [one.item() for one in tf.data.TFRecordDataset(path, compression_type=kind).as_numpy_iterator()]
    assert found == [bytes([20 + record] * (record + 1)) for record in range(3)]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"cannot be unpacked.*HINT"):
        tf.data.TFRecordDataset(path, compression_type=kind)


def test_lines_are_bytes_without_their_ends(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("one\r\ntwo\ndreé".encode())
    lines = [line.item() for line in tf.data.TextLineDataset(tmp_path / "text").as_numpy_iterator()]
    assert lines == [b"one", b"two", "dreé".encode()]


def test_parsed_records_are_distributed(files: list[Path]) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = tf.data.TFRecordDataset(files).map(lambda record: tf.io.decode_raw(record, tf.uint8)[0]).batch(4)
    assert [components(e) for e in strategy.experimental_distribute_dataset(dataset)] == [
        [[0, 10], [11, 20]],
        [[21], [22]],
    ]


def test_files_are_shared_out_among_workers(files: list[Path]) -> None:
    source = adapt(tf.data.TFRecordDataset(files).batch(2))
    assert source.files() == tuple(map(str, files))
    assert adapt(tf.data.TFRecordDataset(files).batch(2)).by_file(Shard(2, 1, 2)).files() == (str(files[1]),)
