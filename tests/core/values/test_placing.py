"""NumPy arrays on devices, put there without the Python of `jax.device_put`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxtribute._src.core.values import placing
from jaxtribute._src.core.values.placing import Transfer


def places() -> list[Sharding]:
    devices = jax.devices("cpu")
    rows = Mesh(np.array(devices[:4]), ("rows",))
    groups = Mesh(np.array(devices[:4]).reshape(2, 2), ("rows", "within"))
    return [
        SingleDeviceSharding(devices[3]),
        NamedSharding(rows, PartitionSpec("rows")),
        NamedSharding(groups, PartitionSpec("rows")),
        NamedSharding(rows, PartitionSpec()),
    ]


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_, np.float16, jnp.bfloat16])
def test_an_array_lies_as_jax_puts_it(place: int, dtype: Any) -> None:
    where = places()[place]
    transfer = Transfer(where)
    for start in range(3):  # JAX puts the first one
        array = (np.arange(start, start + 24) * 3).reshape(8, 3).astype(dtype)
        found, expected = transfer(array), jax.device_put(array, where)
        assert (found.aval, found.sharding, found.committed) == (expected.aval, expected.sharding, expected.committed)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
        for mine, its in zip(found.addressable_shards, expected.addressable_shards, strict=True):
            assert (mine.device, mine.index) == (its.device, its.index)
            np.testing.assert_array_equal(np.asarray(mine.data), np.asarray(its.data))
    step = jax.jit(lambda x: x + x)
    step(jax.device_put(np.zeros((8, 3), dtype), where))
    step(transfer(np.zeros((8, 3), dtype)))
    assert step._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]  (no other array to JAX)


def test_what_is_no_plain_array_of_numbers_goes_the_usual_way() -> None:
    transfer = Transfer(places()[0])
    for array in (np.zeros((0, 3), np.float32), np.array(2.5, np.float32)):
        for _ in range(2):
            np.testing.assert_array_equal(np.asarray(transfer(array)), array)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(transfer(np.arange(12)[::-3])), [11, 8, 5, 2])
        for refused in (np.array(["a"]), np.arange(6, dtype=">i4")):
            with pytest.raises(TypeError):
                transfer(refused)


def test_the_second_array_of_a_shape_needs_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    transfer = Transfer(places()[1])
    transfer(np.zeros((8, 3), np.float32))
    monkeypatch.setattr(jax, "device_put", lambda *_: pytest.fail("asked again"))
    np.testing.assert_array_equal(np.asarray(transfer(np.ones((8, 3), np.float32))), np.ones((8, 3)))


def test_64_bits_are_kept_where_jax_keeps_them() -> None:
    transfer, array = Transfer(places()[1]), np.full(8, 1 << 40)
    for _ in range(2):
        assert transfer(array).dtype == np.int32
        with jax.enable_x64(True):
            found = transfer(array)
            assert found.dtype == np.int64
            np.testing.assert_array_equal(np.asarray(found), array)


def test_a_transfer_guard_takes_it_for_meant() -> None:
    transfer, array = Transfer(places()[1]), np.zeros((8, 3), np.float32)
    transfer(array)
    with jax.transfer_guard("disallow"):
        transfer(array)
    with jax.transfer_guard("disallow_explicit"), pytest.raises(Exception, match="Disallowed"):
        transfer(array)


def test_plans_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "_PLANS", 3)
    transfer = Transfer(places()[1])
    kept: list[int] = []
    for rows in range(4, 44, 4):
        assert transfer(np.zeros((rows, 2), np.float32)).shape == (rows, 2)
        kept.append(len(transfer._plans))  # pyright: ignore[reportPrivateUsage]
    assert kept[:3] == [1, 2, 3]
    assert max(kept) == 3


def test_only_few_bytes_of_numbers_are_copied_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "_SMALL_BYTES", 8)
    given = np.arange(2.0, dtype=np.float32), np.arange(3.0, dtype=np.float32), np.ones(8, bool), np.array("a")
    copied = [getattr(placing, "_small_host")(value, None) is not None for value in given]  # noqa: B009
    assert copied == [True, False, True, False]
