"""`tf.data`, where TensorFlow is installed."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxtribute._src.core.input.policy import resolve
from jaxtribute._src.core.input.sources import adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import InputError
from jaxtribute.input import AutoShardPolicy, InputContext, InputOptions, distribute_dataset
from simulated import Meeting, drain, on_workers, rows_of, steps_of

tf: Any = pytest.importorskip("tensorflow")

FILE = InputOptions(auto_shard_policy=AutoShardPolicy.FILE)


def records(folder: Path, files: int, size: int = 5) -> list[str]:
    paths = [str(folder / str(number)) for number in range(files)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for record in range(number * size, (number + 1) * size):
                writer.write(str(record).encode())
    return paths


def numbers(reader: Any, batch: int = 4) -> Any:
    return reader.map(tf.strings.to_number).batch(batch)


def readers(paths: list[str]) -> dict[str, Any]:
    return {
        "reader": tf.data.TFRecordDataset(paths),
        "interleave": tf.data.Dataset.from_tensor_slices(paths).interleave(tf.data.TFRecordDataset),
        "flat_map": tf.data.Dataset.list_files(paths, shuffle=False).flat_map(tf.data.TFRecordDataset),
    }


def test_elements_and_specs() -> None:
    mesh = ReplicaMesh(jax.devices()[:4])
    dataset = tf.data.Dataset.from_tensor_slices({"x": tf.zeros((5, 2))}).batch(5)
    distributed = distribute_dataset(dataset, mesh, None, InputContext(1, 0, 4))
    assert distributed.element_spec["x"].shape == (None, 2)
    (element,) = distributed
    assert [part.shape for part in element["x"].values] == [(2, 2), (2, 2), (1, 2), (0, 2)]
    static = distribute_dataset(
        tf.data.Dataset.range(8).batch(4, drop_remainder=True), mesh, None, InputContext(1, 0, 4)
    )
    assert static.element_spec.shape == (1,)


def test_tensors_without_a_rank() -> None:
    dataset = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]]))
    with pytest.raises(InputError, match=r"no shape that arrays could have.*HINT"):
        adapt(dataset).spec()


def test_positions() -> None:
    source = adapt(tf.data.Dataset.range(10).shuffle(10, seed=3, reshuffle_each_iteration=False).batch(2))
    first = source.open(Shard())
    everything = [next(first).tree.tolist() for _ in range(5)]
    second = source.open(Shard())
    second.set_state({"batches": 2})
    assert [next(second).tree.tolist() for _ in range(3)] == everything[2:]
    assert second.get_state() == {"batches": 5}
    second.close()


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"reshuffle_each_iteration": False}])
def test_a_shuffle_in_another_order_each_time_has_no_positions(options: dict[str, Any]) -> None:
    source = adapt(tf.data.Dataset.range(10).shuffle(10, **options).batch(2))
    assert source.shuffled_anew
    with pytest.raises(InputError, match=r"shuffles anew.*HINT: shuffle"):
        source.open(Shard()).set_state({"batches": 1})


@pytest.mark.parametrize("kind", ["reader", "interleave", "flat_map"])
def test_files_are_shared_out(tmp_path: Path, kind: str) -> None:
    paths = records(tmp_path, 3)
    source = adapt(numbers(readers(paths)[kind]))
    assert source.files() == tuple(paths)
    assert source.batch_size() == 4

    def work(worker: int, meeting: Meeting) -> list[int]:
        mesh = ReplicaMesh(jax.devices()[:4])
        dataset = distribute_dataset(
            numbers(readers(paths)[kind]), mesh, None, InputContext(2, worker, 4), meeting.of(worker)
        )
        return [int(row) for step in drain(steps_of(dataset)) for part in rows_of(step) for row in part]

    seen = on_workers(2, work)
    assert sorted(seen[0]) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert sorted(seen[1]) == [5, 6, 7, 8, 9]


def test_too_few_files(tmp_path: Path) -> None:
    source = adapt(numbers(tf.data.TFRecordDataset(records(tmp_path, 2))))
    with pytest.raises(InputError, match=r"2 file\(s\).*3 workers"):
        resolve(source, FILE, Shard(3, 0, 3))


def test_no_files() -> None:
    source = adapt(tf.data.Dataset.range(6).batch(2))
    with pytest.raises(InputError, match=r"TensorFlow cannot shard this dataset.*unshardable.*HINT"):
        resolve(source, FILE, Shard(2, 0, 2))
    with pytest.warns(UserWarning, match="by DATA"):
        assert resolve(source, InputOptions(), Shard(2, 0, 2)).policy is AutoShardPolicy.DATA


def test_the_datasets_own_policy(tmp_path: Path) -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    source = adapt(tf.data.Dataset.range(6).batch(2).with_options(options))
    assert resolve(source, InputOptions(), Shard(2, 0, 2)).policy is AutoShardPolicy.OFF


def test_hints(tmp_path: Path) -> None:
    hint = tf.data.experimental.SHARD_HINT
    names = tf.data.Dataset.from_tensor_slices(records(tmp_path, 3)).shard(hint, hint)
    source = adapt(numbers(names.flat_map(tf.data.TFRecordDataset)))
    own = resolve(source, InputOptions(auto_shard_policy=AutoShardPolicy.HINT), Shard(3, 1, 3)).source
    assert np.concatenate([next(own.open(Shard())).tree]).tolist() == [5, 6, 7, 8]
