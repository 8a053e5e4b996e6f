"""Copies of arrays in the host's memory: to the bit, each part once, in pieces by several threads, and given back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtribute._src.core.values import copies

MB = 1 << 20


def lazily_free() -> int:
    """Bytes of this process that the system may take at any time."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("LazyFree"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "int4", "float8_e4m3fn"])
def test_every_dtype_is_copied_to_the_bit(dtype: str) -> None:
    arrays = [jnp.asarray(np.random.default_rng(n).integers(0, 2, n), dtype) for n in (0, 1, 70_000)]
    for array, copy in zip(arrays, copies.copied(arrays), strict=True):
        want = np.asarray(array).tobytes()
        array.delete()
        found = copy.array()
        assert found.dtype == dtype
        assert np.asarray(found).tobytes() == want


@settings(max_examples=40)
@given(
    shapes=st.lists(st.lists(st.integers(0, 7), max_size=3), max_size=4),
    piece=st.integers(8, 200),
    threads=st.integers(1, 3),
)
def test_pieces_hold_everything(shapes: list[list[int]], piece: int, threads: int) -> None:
    arrays = [jax.device_put(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)) for shape in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_PIECE_BYTES", piece)
        patch.setattr(copies, "_MAPPED_BYTES", 40)
        patch.setattr(copies, "_threads", lambda: threads)
        made = copies.copied(arrays)
    for array, copy in zip(arrays, made, strict=True):
        np.testing.assert_array_equal(copy.array(), array, strict=True)


@pytest.mark.parametrize(("size", "threads", "pools"), [(300, 2, 1), (300, 1, 0), (25, 2, 0)])
def test_threads_copy_what_is_large(size: int, threads: int, pools: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, *args: Any, **options: Any) -> None:
            begun.append(args)
            super().__init__(*args, **options)

    monkeypatch.setattr(copies, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(copies, "_threads", lambda: threads)
    monkeypatch.setattr(copies, "_PIECE_BYTES", 100)
    copies.copied([jnp.arange(float(size))])
    assert begun == [(2,)] * pools


def test_where_no_thread_can_be_started_one_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    monkeypatch.setattr(copies, "_threads", lambda: 2)
    monkeypatch.setattr(copies, "_PIECE_BYTES", 100)
    array = jnp.arange(300.0)
    (copy,) = copies.copied([array])
    np.testing.assert_array_equal(copy.array(), array)


def test_parts_are_kept_once_and_where_they_were() -> None:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    value = np.arange(MB, dtype=np.float32).reshape(2, -1)
    array = jax.device_put(value, NamedSharding(mesh, PartitionSpec("x")))
    (copy,) = copies.copied([array])
    assert len(copy.memory) == 2
    assert sum(len(one) for one in copy.memory) == value.nbytes
    array.delete()
    found = copy.array()
    assert found.sharding == array.sharding
    np.testing.assert_array_equal(found, value)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_memory_goes_to_the_system_when_it_needs_it_though_somebody_keeps_the_array() -> None:
    array = jnp.ones(16 * MB, jnp.float32)
    (copy,) = copies.copied([array])
    kept = copy.array()
    before = lazily_free()
    copy.free()
    assert lazily_free() - before > 48 * MB
    del kept


def test_memory_is_used_again_by_copies_of_the_same_size_and_let_go_by_others() -> None:
    array = jnp.arange(MB, dtype=jnp.float32)
    memory = copies.SpareMemory()
    (first,) = copies.copied([array], [memory])
    first.free()
    second, third = copies.copied([array + 1, array], [memory, memory])
    assert second.memory[0] is first.memory[0]
    assert third.memory[0] is not first.memory[0]
    np.testing.assert_array_equal(second.array(), np.asarray(array) + 1)
    np.testing.assert_array_equal(third.array(), np.asarray(array))
    second.free()
    (other,) = copies.copied([array[1:]], [memory])
    other.free()
    (fourth,) = copies.copied([array], [memory])
    assert fourth.memory[0] is not second.memory[0]
