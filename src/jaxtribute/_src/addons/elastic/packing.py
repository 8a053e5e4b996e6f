"""Arrays as bytes between islands, and their sum: in the order of ranks, so that all islands have the same bits."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxtribute._src.addons.elastic.membership import Island
from jaxtribute.errors import ClusterError
from jaxtribute.typing import HostArray

_SEAL = 4
_LINE = 64
"""Bytes of a line of the cache, at which arrays begin: JAX takes memory without a copy that does."""
ALONE = 1 << 16
"""Bytes of an array that is not copied beside others to be added to."""


def raw(array: HostArray) -> HostArray:
    """The bytes of an array, as such: element types such as bfloat16 are unknown to the buffer protocol."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def array_bytes(array: Any) -> int:
    """The size of an array, or of one that is only described."""
    return array.size * array.dtype.itemsize


def groups(arrays: Sequence[Any]) -> list[list[int]]:
    """The places of arrays, or of their shapes, that are added up as one: the small ones of a dtype."""
    small: dict[Any, list[int]] = {}
    alone: list[list[int]] = []
    for place, array in enumerate(arrays):
        if array_bytes(array) >= ALONE:
            alone.append([place])
        else:
            small.setdefault(array.dtype, []).append(place)
    return [*alone, *small.values()]


def empty(size: int) -> HostArray:
    """Memory for bytes, which begins where a line of the cache does."""
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size]


def _filled(size: int) -> int:
    """The size with what is missing to whole lines of the cache."""
    return -(-size // _LINE) * _LINE


@functools.lru_cache(1000)
def _seal(what: str, kinds: tuple[Any, ...]) -> bytes:
    """Bytes that are the same for the same exchange of the same arrays."""
    named = [(dtype.name, shape) for dtype, shape in kinds]
    return zlib.crc32(f"{what} {named}".encode()).to_bytes(_SEAL).ljust(_LINE, b"\0")


class Parcel:
    """Arrays that an island gives to an exchange.

    Args:
      arrays: its arrays.
      what: names the exchange; it must be the same on all islands.
    """

    def __init__(self, arrays: Sequence[HostArray], what: str) -> None:
        self.what = what
        self._arrays = [np.asarray(array) for array in arrays]
        self._groups = groups(self._arrays)
        self._flat = [self._joined(places) for places in self._groups]
        kinds = tuple((array.dtype, array.shape) for array in self._arrays)
        self._seal = _seal(what, kinds)
        self._starts = [_LINE]
        """Places of the arrays in the bytes that are sent, and the end of these."""
        for flat in self._flat:
            self._starts.append(self._starts[-1] + _filled(flat.nbytes))

    @property
    def size(self) -> int:
        """Number of bytes to send."""
        return self._starts[-1]

    def _joined(self, places: Sequence[int]) -> HostArray:
        flat = [np.ascontiguousarray(self._arrays[place]).reshape(-1) for place in places]
        return flat[0] if len(flat) == 1 else np.concatenate(flat)

    @property
    def frames(self) -> list[bytes | memoryview]:
        """The bytes to send."""
        frames: list[bytes | memoryview] = [self._seal]
        for flat in self._flat:
            frames += [raw(flat).data, bytes(_filled(flat.nbytes) - flat.nbytes)]
        return frames

    def total(self, order: Sequence[Island], me: Island, others: Mapping[Island, memoryview]) -> list[HostArray]:
        """The sums of all islands' arrays, in the memory that the others' have come in.

        Raises:
          ClusterError: an island takes part in another exchange.
        """
        received = {island: self._read(island, me, others[island]) for island in others}
        sums: list[HostArray] = []
        for place, flat in enumerate(self._flat):
            parts = [flat if island == me else received[island][place] for island in order]
            if len(parts) == 1:
                total = empty(flat.nbytes).view(flat.dtype)
                np.copyto(total, flat)
            else:
                total = parts[1] if order[0] == me else parts[0]
                np.add(parts[0], parts[1], out=total)
            for part in parts[2:]:
                np.add(total, part, out=total)
            sums.append(total)
        return self._apart(sums)

    def parts(self, order: Sequence[Island], me: Island, others: Mapping[Island, memoryview]) -> list[list[HostArray]]:
        """All islands' arrays.

        Raises:
          ClusterError: an island takes part in another exchange.
        """
        return [self._apart(self._flat if island == me else self._read(island, me, others[island])) for island in order]

    def opened(self, island: Island, me: Island, data: memoryview) -> list[HostArray]:
        """The arrays that another island has sent in such a parcel.

        Raises:
          ClusterError: that island takes part in another exchange.
        """
        return self._apart(self._read(island, me, data))

    def _apart(self, sums: Sequence[HostArray]) -> list[HostArray]:
        results: dict[int, HostArray] = {}
        for places, total in zip(self._groups, sums, strict=True):
            offset = 0
            for place in places:
                size, shape = self._arrays[place].size, self._arrays[place].shape
                results[place] = total[offset : offset + size].reshape(shape)
                offset += size
        return [results[place] for place in range(len(self._arrays))]

    def _read(self, island: Island, me: Island, data: memoryview) -> list[HostArray]:
        """The arrays that another island has sent."""
        if bytes(data[:_LINE]) != self._seal or len(data) != self.size:
            raise ClusterError(
                f"island {island.rank} exchanges other values than island {me.rank} at the same step, which has "
                f"{self.what}. HINT: all islands must run the same program; look for a branch or a path that depends "
                "on the rank, or for a dataset whose order differs."
            )
        places = zip(self._starts, self._flat, strict=False)
        return [np.frombuffer(data, flat.dtype, flat.size, start) for start, flat in places]

    # In parts: each island adds up one, and sends the sum to the others. Of many islands that is fewer bytes.

    def divided(self, count: int) -> list[Parcel]:
        """The arrays in parts of nearly the same size, one for each island."""
        ends = [[flat.size * part // count for part in range(count + 1)] for flat in self._flat]
        return [
            Parcel([flat[at[part] : at[part + 1]] for flat, at in zip(self._flat, ends, strict=True)], self.what)
            for part in range(count)
        ]

    def put_together(
        self, parts: Mapping[Island, Parcel], me: Island, own: Sequence[HostArray], others: Mapping[Island, memoryview]
    ) -> list[HostArray]:
        """The sums, of those of the parts.

        Args:
          parts: the parts, in the order of `divided`.
          me: this island.
          own: the sums of its part.
          others: what the others have sent: the sums of theirs.
        """
        sums = [empty(flat.nbytes).view(flat.dtype) for flat in self._flat]
        starts = [0] * len(sums)
        for island, part in parts.items():
            arrays = own if island == me else part._apart(part._read(island, me, others[island]))
            for place, array in enumerate(arrays):
                sums[place][starts[place] : starts[place] + array.size] = array
                starts[place] += array.size
        return self._apart(sums)
