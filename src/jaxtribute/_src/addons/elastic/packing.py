"""Arrays as bytes between islands, and their sum: in the order of ranks, so that all islands have the same bits."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxtribute._src.addons.elastic.membership import Island
from jaxtribute.errors import ClusterError
from jaxtribute.typing import HostArray

_PREFIX = 4
_LINE = 64
_ALONE = 1 << 16
"""Bytes of an array that is not copied beside others to be added to."""


def raw(array: HostArray) -> HostArray:
    """The bytes of an array, as such: element types such as bfloat16 are unknown to the buffer protocol."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def groups(arrays: Sequence[HostArray]) -> list[list[int]]:
    """The places of arrays that are added up as one: the small ones of a dtype."""
    small: dict[Any, list[int]] = {}
    alone: list[list[int]] = []
    for place, array in enumerate(arrays):
        if array.nbytes >= _ALONE:
            alone.append([place])
        else:
            small.setdefault(array.dtype, []).append(place)
    return [*alone, *small.values()]


def _aligned(like: HostArray) -> HostArray:
    """Memory for an array, which JAX takes as it is, without a copy: it begins where a line of the cache does."""
    memory = np.empty(like.nbytes + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + like.nbytes].view(like.dtype)


class Parcel:
    """Arrays that an island gives to an exchange.

    Args:
      arrays: its arrays.
      what: names the exchange; it must be the same on all islands.
      alike: True if the arrays have the same shapes on all islands, so that they can be added up.
    """

    def __init__(self, arrays: Sequence[HostArray], what: str, *, alike: bool = True) -> None:
        self._arrays = [np.asarray(array) for array in arrays]
        self._groups = groups(self._arrays) if alike else [[place] for place in range(len(arrays))]
        self._flat = [self._joined(places) for places in self._groups]
        kinds = [(array.dtype.name, array.shape if alike else array.ndim) for array in self._arrays]
        self._seal = zlib.crc32(f"{what} {kinds}".encode()).to_bytes(_PREFIX)

    def _joined(self, places: Sequence[int]) -> HostArray:
        flat = [np.ascontiguousarray(self._arrays[place]).reshape(-1) for place in places]
        return flat[0] if len(flat) == 1 else np.concatenate(flat)

    @property
    def frames(self) -> list[bytes | memoryview]:
        """The bytes to send."""
        return [self._seal, *(raw(flat).data for flat in self._flat)]

    def total(self, order: Sequence[Island], me: Island, others: Mapping[Island, bytearray]) -> list[HostArray]:
        """The sums of all islands' arrays.

        Raises:
          ClusterError: an island takes part in another exchange.
        """
        sums: list[HostArray] = []
        for number, flat in enumerate(self._flat):
            parts: list[HostArray] = []
            offset = _PREFIX + sum(each.nbytes for each in self._flat[:number])
            for island in order:
                if island == me:
                    parts.append(flat)
                else:
                    self._check(island, me, others[island])
                    parts.append(np.frombuffer(others[island], flat.dtype, flat.size, offset))
            total = _aligned(flat)
            if len(parts) == 1:
                np.copyto(total, flat)
            else:
                np.add(parts[0], parts[1], out=total)
            for part in parts[2:]:
                np.add(total, part, out=total)
            sums.append(total)
        return self._apart(sums)

    def parts(self, order: Sequence[Island], me: Island, others: Mapping[Island, bytearray]) -> list[list[HostArray]]:
        """All islands' arrays.

        Raises:
          ClusterError: an island takes part in another exchange.
        """
        return [self._apart(self._flat if island == me else self._read(island, me, others[island])) for island in order]

    def _read(self, island: Island, me: Island, data: bytearray) -> list[HostArray]:
        self._check(island, me, data)
        flats: list[HostArray] = []
        offset = _PREFIX
        for flat in self._flat:
            flats.append(np.frombuffer(data, flat.dtype, flat.size, offset))
            offset += flat.nbytes
        return flats

    def _apart(self, sums: Sequence[HostArray]) -> list[HostArray]:
        results: dict[int, HostArray] = {}
        for places, total in zip(self._groups, sums, strict=True):
            offset = 0
            for place in places:
                size, shape = self._arrays[place].size, self._arrays[place].shape
                results[place] = total[offset : offset + size].reshape(shape)
                offset += size
        return [results[place] for place in range(len(self._arrays))]

    def _check(self, island: Island, me: Island, data: bytearray, size: int | None = None) -> None:
        size = sum(flat.nbytes for flat in self._flat) if size is None else size
        if bytes(data[:_PREFIX]) != self._seal or len(data) != _PREFIX + size:
            raise ClusterError(
                f"island {island.rank} exchanges other values than island {me.rank} at the same step. HINT: all "
                "islands must run the same program; look for a branch that depends on the rank, or for a dataset "
                "whose order differs."
            )
