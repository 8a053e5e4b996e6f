"""`Journal`: what the committed steps have given to Python, for islands that join and run the program anew."""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.elastic.membership import Island, View
from jaxtribute._src.addons.elastic.packing import raw
from jaxtribute._src.addons.elastic.values import FOREIGN, IslandValue
from jaxtribute.typing import HostArray

LARGEST = 64 << 10
"""Bytes that a step may give to Python, for islands to join later."""
MOST = 256 << 20
"""Bytes of a whole journal."""
_OVERHEAD = 400
"""Bytes of an entry besides its arrays' elements."""
_HEAD = struct.Struct("!II")
_ANSWER, _ANSWERED = 1 << 20, 4096
"""Bytes of arrays, and entries, of an answer: whoever makes it trains meanwhile."""


_NOTHING: dict[int, Any] = {}
"""No reads: shared, and never written."""


class CannotKeep(Exception):  # noqa: N818
    """A result is too large for the journal, or of a type that it does not know."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Results of a step.

    Attributes:
      signature: says what kind of step it was.
      view: the view that it was taken in.
      plain: the structure of the result, as JSON knows it.
      arrays: the result's arrays.
      reads: what the program read of variables after the step before, by the variables' numbers; None in place of an
        array that was too large.
      problem: why the result is not here; empty if it is.
    """

    signature: str
    view: View
    plain: Any
    arrays: list[HostArray]
    reads: dict[int, HostArray | None]
    problem: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of its arrays."""
        return sum([array.nbytes for array in [*self.arrays, *self.reads.values()] if array is not None])


@dataclass
class Journal:
    """The entries of all committed steps, and what the program has read since the last.

    The thread that takes steps adds to it, while others answer newcomers.
    """

    entries: list[Entry] = field(default_factory=list[Entry])
    reads: dict[int, HostArray | None] = field(default_factory=dict[int, "HostArray | None"])
    problem: str = ""
    """Reason why no island can join any more; empty if one can."""
    _size: int = 0
    _missing: Entry | None = None
    """The entry in the place of all others once there is a problem: nobody can get past it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a step and what was read before it become an entry."""

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, signature: str, view: View, result: Any) -> None:
        """Adds what the step has given that was just committed."""
        self._fetch_last()
        arrays: list[Any] = []
        plain, problem = None, ""
        try:
            plain = described(result, arrays)
        except CannotKeep as reason:
            arrays, problem = [], f"step {len(self)} ({signature}) gave {reason}"
        with self._lock:
            self.add(Entry(signature, view, plain, arrays, self.reads or _NOTHING, problem))
            self.reads = {}

    def _fetch_last(self) -> None:
        """Brings the arrays of the last entry to the host: now that the next step is over, nobody waits for them."""
        entries, place = self.entries, len(self.entries) - 1
        if place < 0 or not entries[place].arrays:
            return
        last = entries[place]
        try:
            # Copies: what JAX gives out as NumPy's own is its memory, and all that it keeps for an array.
            entries[place] = replace(last, arrays=list(map(np.array, last.arrays)))
        except RuntimeError as error:
            with self._lock:
                self._give_up(last, f"the result of step {place} ({last.signature}) is gone: {error}")

    def _give_up(self, entry: Entry, problem: str) -> None:
        """Lets nobody join any more: the entries need not be kept."""
        self.problem = problem
        self._missing = replace(entry, arrays=[], plain=None, reads=_NOTHING, problem=problem)
        self.entries = [self._missing] * len(self)

    def add(self, entry: Entry) -> None:
        """Adds an entry."""
        self.entries.append(self._missing or entry)
        if self._missing is not None:
            return
        self._size += _OVERHEAD + entry.nbytes
        if entry.problem:
            self._give_up(entry, entry.problem)
        elif self._size > MOST:
            what = f"what the steps gave to Python came to more than {MOST >> 20} MiB at step {len(self) - 1}"
            self._give_up(entry, what)

    def note_read(self, variable: int, array: Any) -> None:
        """Keeps what the program reads of a variable; the first time after each step."""
        if variable not in self.reads:
            self.reads[variable] = np.array(array) if array.nbytes <= LARGEST else None

    def answer(self, first: int, view: View) -> tuple[int, bytes]:
        """The number of entries, and those from a number on, as many as fit; at the end the reads since, and the view.

        Waits for the last one's arrays, if they are still being computed.
        """
        self._fetch_last()
        with self._lock:
            entries, reads, count = self.entries[first : first + _ANSWERED], dict(self.reads), len(self.entries)
        runs: list[_Run] = []
        size, last = 0, first
        for entry in entries:
            size, last = size + entry.nbytes, last + 1
            if not (runs and runs[-1].takes(entry)):
                runs.append(_Run(entry))
            if size > _ANSWER:
                break
        if last >= count:
            runs.append(_Run(Entry("", view, None, [], reads)))
        return count, b"".join(run.written() for run in runs)


class _Run:
    """Entries in a row that differ in their arrays' elements alone: most steps are as the one before.

    Args:
      entry: the first.
    """

    def __init__(self, entry: Entry) -> None:
        self._first, self._head, self._arrays = entry, _head(entry), [entry.arrays]

    def takes(self, entry: Entry) -> bool:
        """Adds an entry, if it is like the first one; returns whether it is."""
        alike = not entry.reads and not self._first.reads and _head(entry) == self._head
        if alike:
            self._arrays.append(entry.arrays)
        return alike

    def written(self) -> bytes:
        """The entries as bytes."""
        reads = self._first.reads
        told = [len(self._arrays), self._head, [(variable, array is not None) for variable, array in reads.items()]]
        stacks = [np.stack(each) for each in zip(*self._arrays, strict=True)]
        return packed(told, [*stacks, *(array for array in reads.values() if array is not None)])


def _head(entry: Entry) -> str:
    # As text: what is equal to Python, as 1 and True, need not be the same.
    kinds = [(array.dtype.name, array.shape) for array in entry.arrays]
    return json.dumps([entry.signature, plain_view(entry.view), entry.plain, entry.problem, kinds])


def entries_in(data: bytes | bytearray) -> list[Entry]:
    """The entries of an answer."""
    entries: list[Entry] = []
    offset = 0
    while offset < len(data):
        (count, head, reads), arrays, offset = unpacked(data, offset)
        signature, plain_of_view, plain, problem, _ = json.loads(head)
        own = len(arrays) - sum(has for _, has in reads)
        values = iter(arrays[own:])
        seen = {variable: next(values) if has else None for variable, has in reads} or _NOTHING
        view = view_of(plain_of_view)
        for place in range(count):
            # With the ellipsis NumPy gives an array, of no axes as well.
            each = [stack[place, ...] for stack in arrays[:own]]
            entries.append(Entry(signature, view, plain, each, seen, problem))
    return entries


# Views, nests and arrays as bytes. Nothing here can make a newcomer run code that it has not.


def plain_view(view: View) -> list[Any]:
    """A view as JSON knows it."""
    return [view.number, view.members, view.exiles]


def view_of(plain: Sequence[Any]) -> View:
    """The inverse of `plain_view`."""
    number, *islands = plain
    members, exiles = (tuple(Island(*island) for island in each) for each in islands)
    return View(number, members, exiles)


def packed(plain: Any, arrays: Sequence[HostArray]) -> bytes:
    """Bytes of what JSON knows, and of arrays, with a checksum."""
    kinds = [(array.dtype.name, array.shape) for array in arrays]
    body = [json.dumps([plain, kinds]).encode()]
    size = len(body[0])
    body += [raw(array).tobytes() for array in arrays]
    whole = b"".join(body)
    return _HEAD.pack(size, zlib.crc32(whole)) + whole


def unpacked(data: bytes | bytearray, offset: int = 0) -> tuple[Any, list[HostArray], int]:
    """The inverse of `packed`; and where what follows begins.

    Raises:
      ValueError: the checksum is another.
    """
    size, check = _HEAD.unpack_from(data, offset)
    start = offset + _HEAD.size
    end = start + size
    plain, kinds = json.loads(bytes(data[start:end]))
    arrays: list[HostArray] = []
    for name, shape in kinds:
        dtype = np.dtype(name)
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, dtype, count, end).reshape(shape).copy())
        end += count * dtype.itemsize
    if zlib.crc32(memoryview(data)[start:end]) != check:
        raise ValueError("the checksum is another")
    return plain, arrays, end


def described(nest: Any, arrays: list[Any]) -> Any:
    """The structure of a nest, as JSON knows it; its arrays are added to `arrays`, where they are.

    Raises:
      CannotKeep: the arrays are too large, or something else is in the nest.
    """
    if nest is None or type(nest) in (bool, int, float, str):
        return ["=", nest]
    if isinstance(nest, IslandValue):
        return ["island", nest.rows, described(nest.data, arrays)]
    if isinstance(nest, (jax.Array, np.ndarray, np.generic)):
        if not jnp.issubdtype(nest.dtype, np.number) and nest.dtype != np.bool_:
            raise CannotKeep(f"an array of {nest.dtype}")
        arrays.append(nest)
        size = sum(array.nbytes for array in arrays)
        if size > LARGEST:
            raise CannotKeep(f"{size} bytes to Python, and {LARGEST} are kept")
        return ["jax" if isinstance(nest, jax.Array) else "numpy", len(arrays) - 1]
    if type(nest) in (list, tuple):
        return [type(nest).__name__, [described(each, arrays) for each in nest]]
    if type(nest) is dict and all(type(key) is str for key in nest):
        return ["dict", [[key, described(value, arrays)] for key, value in nest.items()]]
    raise CannotKeep(f"a {type(nest).__name__}")


_on_device = jax.jit(lambda array: array)
"""Puts an array on the device, as `jnp.asarray`, which takes several times as long."""


def rebuilt(plain: Any, arrays: Sequence[HostArray], mesh: Any, view: View) -> Any:
    """The nest of a structure and its arrays; the inverse of `described`."""
    kind, *content = plain
    if kind == "=":
        return content[0]
    if kind == "island":
        value = IslandValue(rebuilt(content[1], arrays, mesh, view), mesh, rows=FOREIGN)
        value.view = view
        return value
    if kind in ("jax", "numpy"):
        array = arrays[content[0]]
        return _on_device(array) if kind == "jax" else array
    if kind == "dict":
        return {key: rebuilt(value, arrays, mesh, view) for key, value in content[0]}
    made = [rebuilt(each, arrays, mesh, view) for each in content[0]]
    return tuple(made) if kind == "tuple" else made
