"""The vectorised shuffle against Grain's own."""

import numpy as np
import pytest
from grain.experimental import index_shuffle
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.core.input import permutation
from jaxtribute._src.core.input.permutation import permute, permutes_exactly

seeds = st.integers(0, 2**32 - 1)


def grains(length: int, seed: int, positions: list[int]) -> list[int]:
    return [index_shuffle(position, length - 1, seed, 4) for position in positions]


@given(st.integers(2, 300_000), seeds, st.data())
def test_agrees_with_grain(length: int, seed: int, data: st.DataObject) -> None:
    if not permutes_exactly(length):
        length -= 1
    positions = data.draw(st.lists(st.integers(0, length - 1), max_size=8))
    found = permute(np.array(positions, np.uint64), length, seed)
    assert found.tolist() == grains(length, seed, positions)


@pytest.mark.parametrize("length", [1, 2, 511, 512, 5_000, 16_383, 16_384, 65_536, 65_537, 70_000, 2**18 + 1])
def test_is_a_permutation(length: int) -> None:
    found = permute(np.arange(length, dtype=np.uint64), length, 7)
    assert np.array_equal(np.sort(found), np.arange(length))


@pytest.mark.parametrize("length", [2, 10, 100, 511, 3_000])
def test_a_short_range_takes_none_of_grains_long_walks(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = grains(length, 5, list(range(length)))
    permute(np.arange(length, dtype=np.uint64), length, 4)  # compares with Grain's own once
    monkeypatch.setattr(permutation, "index_shuffle", None)
    assert permute(np.arange(length, dtype=np.uint64), length, 5).tolist() == wanted
    one = np.array([length - 1], np.uint64)
    if length <= 10:
        assert permute(one, length, 5).tolist() == wanted[-1:]


@pytest.mark.parametrize("length", [65_537, 2**18 + 1])
def test_knows_where_grain_repeats_a_record(length: int) -> None:
    assert not permutes_exactly(length)
    top = length - 1
    assert index_shuffle(top, top, 7, 4) == index_shuffle(0, top, 7, 4)


@pytest.mark.parametrize("length", [1, 2, 65_536, 65_538, 2**17 + 1, 1_000_000])
def test_knows_where_grain_is_exact(length: int) -> None:
    assert permutes_exactly(length)


def test_takes_grains_word_if_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def reverse(index: int, max_index: int, seed: int, rounds: int) -> int:
        return max_index - index

    monkeypatch.setattr(permutation, "index_shuffle", reverse)
    permutation._agrees_with_grain.cache_clear()  # pyright: ignore[reportPrivateUsage]
    try:
        assert permute(np.arange(3, dtype=np.uint64), 20_000, 1).tolist() == [19_999, 19_998, 19_997]
    finally:
        permutation._agrees_with_grain.cache_clear()  # pyright: ignore[reportPrivateUsage]
