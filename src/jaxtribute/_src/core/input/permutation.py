"""Grain's global shuffle, for many positions at once.

Grain permutes positions one by one with a small block cipher (`grain.experimental.index_shuffle`), at several
microseconds each. Here the same permutation is computed with NumPy for a whole batch of positions. It is compared
with Grain's own at first use, so that another release of Grain can change it without harm.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from grain.experimental import index_shuffle

Positions: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Words: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""Unsigned integers of any width."""

# As many as Grain's own shuffle asks of the cipher.
_ROUNDS = 4
_MASK = 0xFFFFFFFF
_SHORT = 512
"""Below this length Grain's own function takes over 0.1 ms for each position."""
_TABLE_BELOW = 1 << 14
_TABLE_COST = 2000
"""Turns of the cipher that cost as much as a table of the whole permutation."""


def _mix(value: int) -> int:
    return value ^ (value >> 27)


@lru_cache(maxsize=64)
def _round_keys(seed: int) -> tuple[int, ...]:
    """The four words that C++'s `std::seed_seq{seed}` generates (ISO C++, [rand.util.seedseq])."""
    words = [0x8B8B8B8B] * _ROUNDS
    for k in range(_ROUNDS):
        here, ahead, far = k % 4, (k + 1) % 4, (k + 2) % 4
        first = 1664525 * _mix(words[here] ^ words[ahead] ^ words[k - 1]) & _MASK
        second = (first + (1 if k == 0 else k + (seed if k == 1 else 0))) & _MASK
        words[ahead] = (words[ahead] + first) & _MASK
        words[far] = (words[far] + second) & _MASK
        words[here] = second
    for k in range(_ROUNDS):
        ahead, far = (k + 1) % 4, (k + 2) % 4
        first = 1566083941 * _mix((words[k] + words[ahead] + words[k - 1]) & _MASK) & _MASK
        second = (first - k) & _MASK
        words[ahead] ^= first
        words[far] ^= second
        words[k] = second
    return tuple(words)


def _feistel(word: Words, width: int) -> Words:
    number = word.dtype.type

    def rotate(by: int) -> Words:
        return ((word << number(by)) | (word >> number(width - by))) & mask

    mask = number((1 << width) - 1)
    return (rotate(1) & rotate(8)) ^ rotate(2)


def _encrypt(positions: Words, keys: tuple[int, ...], width: int) -> Words:
    """The cipher's block at each position, in the positions' own dtype, which has room for twice `width` bits."""
    number, mask = positions.dtype.type, (1 << width) - 1
    left, right = positions >> number(width), positions & number(mask)
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
        left = left ^ _feistel(right, width) ^ number(even & mask)
        right = right ^ _feistel(left, width) ^ number(odd & mask)
    return (left << number(width)) | right


def permute(positions: Positions, length: int, seed: int) -> Positions:
    """Returns the new place of each of `positions` in the permutation of `range(length)` that `seed` chooses.

    The same as `grain.experimental.index_shuffle(position, length - 1, seed, rounds=4)` for each, with one
    exception: for a length of 2**16 + 1, 2**18 + 1, ... Grain repeats one position and leaves another out, and
    this does not.
    """
    if length <= 1:
        return np.zeros_like(positions)
    width = _width(length)
    # The cipher's smallest block has 2**16 places: of a short range most turns end outside, so that a single position
    # takes thousands of them. A table is made of all together.
    if not _agrees_with_grain() or (length < _TABLE_BELOW and positions.size * (1 << 2 * width) < length * _TABLE_COST):
        return np.array([index_shuffle(int(p), length - 1, seed, _ROUNDS) for p in positions], np.uint64)
    if length < _TABLE_BELOW:
        return _table(length, seed)[positions].astype(np.uint64)
    keys = _round_keys(seed)
    result = _encrypt(positions, keys, width)
    # The cipher permutes a whole block, which is larger than the range. Whoever lands outside is encrypted again: the
    # map of the range on itself that this gives is a permutation, too.
    outside = np.flatnonzero(result >= length)
    while outside.size:
        result[outside] = again = _encrypt(result[outside], keys, width)
        outside = outside[again >= length]
    return result


def _width(length: int) -> int:
    """Bits of half a block of the cipher that permutes `range(length)`."""
    bits = (length - 1).bit_length()
    return max(bits + bits % 2, 16) // 2


@lru_cache(maxsize=256)
def _table(length: int, seed: int) -> Words:
    """The whole permutation of a range much smaller than the cipher's block.

    The cipher is applied again until the result is in range, which here takes many turns. They are taken together,
    by squaring the map that goes one step on from every place out of range.
    """
    # Tables are made for lengths whose blocks have 2**16 places, so that 16 bits hold each of them.
    block = np.arange(1 << 2 * _width(length), dtype=np.uint16)
    step = _encrypt(block, _round_keys(seed), _width(length)).astype(np.int64)
    walk = np.where(block < length, block, step)
    # A cycle wholly out of range is never entered, so only the places that are reached count.
    while (walk[step[:length]] >= length).any():
        # Every turn doubles the number of steps made at once.
        walk = walk[walk]
    return walk[step[:length]].astype(np.uint16)


def permutes_quickly(length: int) -> bool:
    """True if Grain's own function takes microseconds for a position of this length; see `permute`."""
    return length >= _SHORT


def permutes_exactly(length: int) -> bool:
    """True if Grain's own function is a permutation for this length; see `permute`."""
    top = length - 1
    return top < 2**16 or top & (top - 1) != 0 or math.ceil(math.log2(top)) % 2 == 1


@lru_cache(maxsize=1)
def _agrees_with_grain() -> bool:
    for length, seed in ((1000, 0), (50_000, 17), (3_000_001, 2**32 - 1)):
        positions = np.arange(0, length, length // 7, dtype=np.uint64)
        width, keys = _width(length), _round_keys(seed)
        for position in positions:
            ours = _encrypt(np.array([position], np.uint64), keys, width)
            while ours[0] >= length:
                ours = _encrypt(ours, keys, width)
            if int(ours[0]) != index_shuffle(int(position), length - 1, seed, _ROUNDS):
                return False
    return True
