"""Arrays in Orbax's files: how many at a time, and that they come back to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import SingleDeviceSharding

import jaxtribute as jd
from jaxtribute._src.core.checkpoint import arrays
from jaxtribute._src.core.checkpoint.background import Background
from jaxtribute._src.core.values import stored
from jaxtribute._src.core.values.stored import Lease

DTYPES = ["float32", "bfloat16", "float16", "int8", "uint32", "bool", "complex64", "int32", "float8_e4m3fn", "int4"]


@given(st.lists(st.integers(0, 50)), st.integers(1, 100))
def test_batches_hold_everything_in_order(sizes: list[int], limit: int) -> None:
    cut = [sizes[one] for one in arrays.batches(sizes, limit)]
    assert [size for one in cut for size in one] == sizes
    assert all(sum(one) <= limit or len(one) == 1 for one in cut)
    assert all(sum(one) + following[0] > limit for one, following in itertools.pairwise(cut))


def test_every_dtype_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    device = jax.devices()[2]
    values = {name: jnp.asarray(rng.integers(0, 2, 5), dtype=name) for name in DTYPES}
    leases = {name: Lease(value) for name, value in values.items()}
    arrays.write(tmp_path, {**leases, "host": np.arange(3.0)})
    arrays.merge(tmp_path)
    shapes = arrays.metadata(tmp_path)
    assert {name: shapes[name].shape for name in values} == dict.fromkeys(values, (5,))
    here = arrays.read(tmp_path, {name: ((5,), SingleDeviceSharding(device)) for name in DTYPES} | {"host": None})
    assert here.pop("host").tolist() == [0, 1, 2]
    for name, value in here.items():
        assert value.devices() == {device}
        assert value.dtype == values[name].dtype
        np.testing.assert_array_equal(np.asarray(value), np.asarray(values[name]))
    host = arrays.read(tmp_path, {"bfloat16": None})["bfloat16"]
    assert isinstance(host, np.ndarray)
    assert host.tobytes() == np.asarray(values["bfloat16"]).tobytes()


@pytest.mark.parametrize("strategy", [jd.MirroredStrategy, jd.FullyShardedStrategy])
def test_a_placed_nest_comes_back_onto_its_devices(strategy: Callable[[int], jd.Strategy], tmp_path: Path) -> None:
    where = strategy(4)
    values = {
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 8),
        "x": jnp.ones((8, 2)),
    }
    placed = where.place(values)
    checkpoint = jd.Checkpoint(state=placed)
    checkpoint.restore(checkpoint.save(tmp_path / "nest"))
    drawn = where.run(lambda state: jax.random.uniform(state["key"]), (checkpoint.state,))
    assert where.experimental_local_results(drawn) == (jax.random.uniform(values["key"]),) * 4
    for name, old in placed.items():
        assert checkpoint.state[name].data.sharding == old.data.sharding, name
        assert repr(checkpoint.state[name]) == repr(old)


def test_one_process_writes_an_array_in_one_piece(tmp_path: Path) -> None:
    placed: Any = jd.MirroredStrategy(4).place(jnp.ones(1 << 20))
    value = placed.data
    arrays.write(tmp_path, {"x": Lease(value)})
    arrays.merge(tmp_path)
    assert arrays.metadata(tmp_path)["x"].storage.chunk_shape == value.shape


def test_arrays_are_written_from_the_last_on_and_given_back_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Watched(Lease):
        def __init__(self, name: str) -> None:
            super().__init__(jnp.ones(4))
            self.name = name

        def take(self) -> jax.Array:
            events.append(f"take {self.name}")
            return super().take()

        def give_back(self) -> None:
            events.append(f"back {self.name}")
            super().give_back()

    batches = arrays.batches
    monkeypatch.setattr(arrays, "batches", lambda sizes: batches(sizes, 32))
    arrays.write(tmp_path, {name: Watched(name) for name in "cab"})
    assert events[:6] == ["take b", "take a", "back b", "back a", "take c", "back c"]


def test_what_is_written_first_is_not_copied_by_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_PATIENCE_S", 0.0)
    batches = arrays.batches
    monkeypatch.setattr(arrays, "batches", lambda sizes: batches(sizes, 32))
    leases = {name: Lease(jnp.ones(4)) for name in "cab"}
    arrays.begin({**leases, "host": np.ones(3)})
    assert Lease.spare(list(leases.values())) == [True, False, False]
    for lease in leases.values():
        lease.give_back()
    arrays.begin({"host": np.ones(3)})


def test_a_save_takes_what_is_written_first_before_it_returns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saves, taken, take = list[Callable[[], None]](), list[Lease](), Lease.take
    monkeypatch.setattr(Background, "start", lambda _, save, target: saves.append(save))
    monkeypatch.setattr(Lease, "take", lambda lease: (taken.append(lease), take(lease))[1])
    jd.Checkpoint(v=jd.Variable(jnp.ones(4))).write(tmp_path / "v")
    assert len(taken) == 1
    saves[0]()
