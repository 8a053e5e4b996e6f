import itertools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute._src.core.collectives import summation
from jaxtribute._src.core.jaxprs.core import aval
from replicas import execute, fraction, here, mirrored

DTYPES = ["float32", "int32", "bfloat16", "uint8"]
SHAPES = [(), (0,), (3,), (2, 2), (1, 3, 2)]


@st.composite
def nests(draw: st.DrawFn, dtypes: list[str]) -> list[Any]:
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6))
    arrays: list[Any] = []
    for index, shape in enumerate(shapes):
        dtype = draw(st.sampled_from(dtypes))
        values = np.arange(np.prod(shape)).reshape(shape) + 10 * index
        arrays.append(jnp.asarray(values % 128).astype(dtype))
    return arrays


@settings(max_examples=12)
@given(arrays=nests(["float32"]), limit=st.sampled_from([8, summation.PIECE_BYTES]))
def test_unpack_is_the_inverse_of_pack(arrays: list[Any], limit: int) -> None:
    with mock.patch.object(summation, "PIECE_BYTES", limit):
        buffer = summation.pack(arrays)
    assert buffer.shape == (sum(array.size for array in arrays),)
    np.testing.assert_array_equal(buffer, np.concatenate([np.ravel(array) for array in arrays]))
    for array, piece in zip(arrays, summation.unpack(buffer, arrays), strict=True):
        assert piece.shape == array.shape
        np.testing.assert_array_equal(piece, array)


@settings(max_examples=25)
@given(arrays=nests(DTYPES), small=st.integers(0, 30))
def test_every_array_is_in_one_group_with_its_own_kind(arrays: list[Any], small: int) -> None:
    groups = summation.groups(arrays, small)
    assert sorted(index for group in groups for index in group) == list(range(len(arrays)))
    for group in groups:
        members = [arrays[index] for index in group]
        assert len({member.dtype for member in members}) == 1
        assert group == sorted(group)
        assert len(group) == 1 or all(member.nbytes <= small for member in members)
    packed = [arrays[group[0]].dtype for group in groups if arrays[group[0]].nbytes <= small]
    assert len(packed) == len(set(packed)), "small arrays of one dtype travel together"


@settings(max_examples=12)
@given(arrays=nests(DTYPES), small=st.sampled_from([None, 0, 8, 10_000]))
def test_packed_map_is_map(arrays: list[Any], small: int | None) -> None:
    results = summation.packed_map(lambda x: x + x, arrays, small)
    for array, result in zip(arrays, results, strict=True):
        assert result.dtype == array.dtype
        np.testing.assert_array_equal(np.asarray(result), np.asarray(array + array))


def test_packed_map_of_nothing() -> None:
    assert summation.packed_map(lambda x: x, []) == []


def test_small_arrays_share_one_call() -> None:
    calls: list[int] = []

    def count(x: Any) -> Any:
        calls.append(x.size)
        return x

    large = jnp.zeros(summation.PIECE_BYTES)
    summation.packed_map(count, [jnp.zeros(2), large, jnp.zeros(3), jnp.zeros(1, jnp.int32)])
    assert sorted(calls) == [1, 5, summation.PIECE_BYTES]


@pytest.mark.parametrize("count", [1, 20])
def test_one_collective_for_many_small_gradients(count: int) -> None:
    strategy = mirrored(2)

    def step() -> Any:
        return here().all_reduce("SUM", [fraction() * jnp.ones((2, i + 1)) for i in range(count)])

    def traced() -> Any:
        return strategy.run(step)

    from jaxtribute._src.core import context as contexts
    from jaxtribute._src.core.execution.capture import Capture

    text = str(Capture.of(lambda _: traced(), contexts.current(), []).closed)
    assert text.count("psum") == 1
    results = execute("compiled", strategy, step)
    assert [np.asarray(result).tolist() for result in results] == [[[1.0] * (i + 1)] * 2 for i in range(count)]


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, summation.PIECE_BYTES // 3), min_size=1, max_size=12), dtype=st.sampled_from(DTYPES)
)
def test_packs_are_full_and_no_larger(sizes: list[int], dtype: str) -> None:
    arrays = [jax.ShapeDtypeStruct((size,), jnp.dtype(dtype)) for size in sizes]
    groups = summation.groups(arrays)  # pyright: ignore[reportArgumentType]
    assert sorted(index for group in groups for index in group) == list(range(len(arrays)))
    packs = [[sizes[index] * jnp.dtype(dtype).itemsize for index in group] for group in groups]
    assert all(len(pack) == 1 or sum(pack) <= summation.PIECE_BYTES for pack in packs)
    shared = [pack for pack in packs if pack[0] <= summation.PIECE_BYTES]
    assert all(sum(one) + other[0] > summation.PIECE_BYTES for one, other in itertools.pairwise(shared))


def test_no_loop_packs_more_than_a_piece() -> None:
    size = summation.PIECE_BYTES // 10  # bytes: a quarter as many floats
    arrays = [jnp.arange(size // 4, dtype=jnp.float32) + i for i in range(25)]
    loops = [
        np.prod(aval(equation.outvars[0]).shape)
        for equation in jax.make_jaxpr(summation.pack)(arrays).eqns
        if equation.primitive.name == "concatenate"
    ]
    assert [loop * 4 <= summation.PIECE_BYTES for loop in loops] == [True] * 3
    np.testing.assert_array_equal(summation.pack(arrays), np.concatenate(arrays))


@pytest.mark.parametrize(
    ("number", "limit", "sizes", "packs"),
    [
        (2, 0, [1, 1, 1], [[0, 1], [2]]),  # three bytes in two packs: of up to two
        (2, 0, [2, 2, 1], [[0], [1, 2]]),
        (1, 0, [1, 2, 3], [[0, 1, 2]]),
        (3, 0, [4, 1, 1], [[0], [1, 2]]),
        (1, 2, [1, 1, 1], [[0, 1], [2]]),  # the limit takes precedence over the number
        (0, 2, [1, 1, 1], [[0, 1], [2]]),
        (0, 0, [1, 1], [[0], [1]]),
    ],
)
def test_the_limit_of_a_pack(number: int, limit: int, sizes: list[int], packs: list[list[int]]) -> None:
    arrays = [jnp.zeros(size, jnp.int8) for size in sizes]
    assert summation.Packs(number, limit).groups(arrays) == packs
