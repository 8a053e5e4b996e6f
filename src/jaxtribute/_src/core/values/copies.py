"""Copies of arrays in the host's memory, made by all cores, in memory that the system takes back when it needs it."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from jaxtribute._src.core.types import Device

Host = np.ndarray[Any, Any]

_PIECE_BYTES = 4 << 20
"""Bytes that a thread copies at a time."""
_MAPPED_BYTES = 1 << 16
"""Smaller parts come from the heap, which keeps their memory."""
_PRIVATE: dict[str, Any] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""By default Python maps memory that processes can share, which costs half as much again when it is first written."""
_FREE: int | None = getattr(mmap, "MADV_FREE", getattr(mmap, "MADV_DONTNEED", None))


class SpareMemory:
    """Memory of copies that nobody needs any more, by its size: writing it again takes half the time of new memory.

    What keeps coming back, such as a checkpoint with its saves, has one of its own, and it goes with it.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> mmap.mmap:
        """Memory of that size, which nobody else has."""
        with self._lock:
            spare = self._free.get(nbytes)
            return spare.pop() if spare else mmap.mmap(-1, nbytes, **_PRIVATE)

    def give(self, block: mmap.mmap) -> None:
        """Keeps memory for the next copies; the system may take it until then."""
        # The system may take the pages from here on, and need not write them anywhere.
        if _FREE is not None:
            block.madvise(_FREE)
        with self._lock:
            self._free.setdefault(len(block), []).append(block)

    def clear(self) -> None:
        """Lets go of all that is kept."""
        with self._lock:
            self._free.clear()


@dataclass(frozen=True)
class HostCopy:
    """The parts of an array that this process has, each once, however many devices have it.

    Attributes:
      shape: the array's shape.
      sharding: how it lies on its devices.
      parts: this process's devices, each with what it has of the array.
      memory: where the larger parts are.
      spare: takes that memory once it is free.
    """

    shape: tuple[int, ...]
    sharding: Sharding
    parts: Sequence[tuple[Device, Host]]
    memory: Sequence[mmap.mmap]
    spare: SpareMemory

    def array(self) -> jax.Array:
        """The array again, to be read only: on CPU devices it is the memory of the copy."""
        return jax.make_array_from_single_device_arrays(
            self.shape, self.sharding, [jax.device_put(part, device) for device, part in self.parts]
        )

    def free(self) -> None:
        """Gives the memory to the system, for when it needs it, or to the next copies: arrays of it hold nothing."""
        for block in self.memory:
            self.spare.give(block)


def copied(arrays: Sequence[jax.Array], spares: Sequence[SpareMemory] = ()) -> list[HostCopy]:
    """Copies arrays that lie in the host's memory, all at once.

    Args:
      arrays: arrays on CPU devices.
      spares: for each array where its memory comes from; by default all is new.
    """
    spares = spares or [SpareMemory()] * len(arrays)
    pairs: list[tuple[Host, Host]] = []
    copies: list[HostCopy] = []
    for array, spare in zip(arrays, spares, strict=True):
        parts: dict[Any, Host] = {}
        memory: list[mmap.mmap] = []
        places: list[tuple[Device, Host]] = []
        for shard in array.addressable_shards:
            index = tuple((part.start, part.stop) for part in shard.index)
            # Devices that hold the same part share one copy of it.
            if index not in parts:
                source = np.asarray(shard.data)
                parts[index] = _room(source, memory, spare)
                pairs.append((parts[index], source))
            places.append((shard.device, parts[index]))
        copies.append(HostCopy(array.shape, array.sharding, places, memory, spare))
    for spare in set(spares):
        spare.clear()  # of other sizes: what is copied now is what the next save has to copy again
    _copy([piece for pair in pairs for piece in _pieces(*pair)])
    return copies


def _copy(pieces: Sequence[tuple[Host, Host]]) -> None:
    threads = _threads()
    if threads > 1 and sum(source.nbytes for _, source in pieces) > _PIECE_BYTES:
        # At the end of a program, which a thread of the user's may outlive, no more threads are started.
        with suppress(RuntimeError), ThreadPoolExecutor(threads, thread_name_prefix="jaxtribute-copy") as pool:
            for _ in pool.map(np.copyto, *zip(*pieces, strict=True)):
                pass
            return
    for target, source in pieces:
        np.copyto(target, source)


def _threads() -> int:
    """One a core; more than a few do not copy faster."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 4)


def _pieces(target: Host, source: Host) -> Generator[tuple[Host, Host]]:
    """Cuts large arrays into rows that are copied on their own."""
    if source.nbytes <= _PIECE_BYTES:
        yield target, source
        return
    rows = max(1, len(source) * _PIECE_BYTES // source.nbytes)
    for start in range(0, len(source), rows):
        yield target[start : start + rows], source[start : start + rows]


def _room(source: Host, memory: list[mmap.mmap], spare: SpareMemory) -> Host:
    """An array of that kind that holds nothing yet, in memory that is added to `memory` if there is much of it."""
    if source.nbytes < _MAPPED_BYTES:
        return np.empty(source.shape, source.dtype)
    # Mapped memory goes back to the system as a whole; the heap would keep it.
    memory.append(spare.take(source.nbytes))
    return np.frombuffer(memory[-1], source.dtype).reshape(source.shape)
