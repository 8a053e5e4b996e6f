"""Scalars in TensorBoard's event files."""

import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2  # before a test: it sets an environment variable

import jaxtribute as jd
from jaxtribute._src.addons.tracking import summary, tensorboard

EVENTS: Any = event_pb2


def scalars(directory: Path) -> list[tuple[str, int, float]]:
    """Name, step and value of every scalar in the only event file of a directory."""
    (path,) = directory.glob("events.out.tfevents.*")
    return [
        (value.tag, event.step, value.simple_value)
        for event in events(path.read_bytes())
        for value in event.summary.value
    ]


def events(data: bytes) -> Iterator[Any]:
    """The records of an event file: length, checksum, event, checksum."""
    place = 0
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        yield EVENTS.Event.FromString(data[place + 12 : place + 12 + size])
        place += 12 + size + 4


def test_numbers_arrays_variables_and_mirrored_values(tmp_path: Path) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = jd.Variable(3.0, name="v")
    values = {
        "a": 1,
        "b": np.float32(2.0),
        "c": variable,
        "d": strategy.place(jnp.float32(4.0)),
        "e/f": jnp.full(1, 5.0),
    }
    with summary.Writer(tmp_path) as writer:
        writer.write(values, g=True)
        variable.assign(30.0)
    assert scalars(tmp_path) == [
        ("a", 0, 1.0),
        ("b", 0, 2.0),
        ("c", 0, 3.0),
        ("d", 0, 4.0),
        ("e/f", 0, 5.0),
        ("g", 0, 1.0),
    ]


def test_steps_count_by_themselves_or_are_given(tmp_path: Path) -> None:
    with summary.Writer(tmp_path, step=5) as writer:
        writer.write(loss=1.0)
        writer.write(loss=2.0)
        writer.write(loss=3.0, step=100)
        assert writer.step == 101
        writer.write(loss=4.0)
    assert [step for _, step, _ in scalars(tmp_path)] == [5, 6, 100, 101]


def test_what_is_still_computed_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "_ready", lambda value: False)
    with summary.Writer(tmp_path) as writer:
        for step in range(20):
            writer.write(loss=jnp.float32(step))
        assert len(writer._waiting) == 16  # pyright: ignore[reportPrivateUsage]
        writer.flush()
        assert len(scalars(tmp_path)) == 20
    assert [value for _, _, value in scalars(tmp_path)] == list(range(20))


def test_an_array_that_is_ready_is_written_at_once(tmp_path: Path) -> None:
    with summary.Writer(tmp_path) as writer:
        writer.write(loss=jax.block_until_ready(jnp.float32(1)))
        assert not writer._waiting  # pyright: ignore[reportPrivateUsage]


def test_a_tensorboard_that_looks_on_sees_new_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "_FLUSH_S", -1.0)
    with summary.Writer(tmp_path) as writer:
        writer.write(loss=1.0)
        deadline = time.monotonic() + 60
        while not any(scalars(path) for path in [tmp_path] if any(path.iterdir())):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_only_the_first_worker_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with summary.Writer(tmp_path / "run") as writer:
        writer.write(loss=1.0)
        writer.flush()
        assert writer.step == 1
        with pytest.raises(jd.errors.ArgumentTypeError, match="loss is a str"):
            writer.write(loss=cast(Any, "high"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [jnp.zeros(2), "text", None, [1.0]])
def test_what_is_no_single_number(tmp_path: Path, value: Any) -> None:
    with (
        summary.Writer(tmp_path) as writer,
        pytest.raises(jd.errors.ArgumentTypeError, match=r"loss is a .* and no single number. HINT: reduce it first"),
    ):
        writer.write(loss=value)


def test_a_value_of_each_replica(tmp_path: Path) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    value = strategy.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group)
    with summary.Writer(tmp_path) as writer, pytest.raises(jd.errors.ArgumentTypeError, match="loss is a PerReplica"):
        writer.write(loss=value)


def test_a_closed_writer(tmp_path: Path) -> None:
    writer = summary.Writer(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(jd.errors.ArgumentError, match=r"closed before step 0. HINT"):
        writer.write(loss=1.0)


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(jd.errors.MissingLibraryError, match=r"HINT: pip install -e '\.\[tensorboard\]'"):
        summary.Writer(tmp_path)
