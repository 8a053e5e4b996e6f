"""Finds the part of each array that each device holds; drawn elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import starmap
from typing import Any, cast

import jax
import numpy as np

from jaxtribute import Mirrored, PerReplica, Variable, VariableSynchronization
from jaxtribute._src.addons.tools.tables import shape_text
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.extending import ReplicaMesh, device_name
from jaxtribute.typing import Device, Leaf, Nest

Bounds = tuple[tuple[int, int], ...]
"""The elements `[start, stop)` of each axis."""


class How(Enum):
    """Layout of an array on the devices; the value is its name in a picture."""

    COPY = "a copy on each"
    SPLIT = "a part on each"
    OWN = "a value of its own on each"
    ONE = "on one device"
    HOST = "on the host"


@dataclass(frozen=True, slots=True)
class Cell:
    """One device's part of one array.

    Attributes:
      bounds: its elements among those of the whole.
      content: cells of a row with the same number hold the same elements.
      nbytes: bytes on the device.
    """

    bounds: Bounds
    content: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One array, and the cell of each column; None if the device holds nothing of it.

    Attributes:
      shape: the shape that the cells' bounds refer to; of an array that is stored flat, the flat one.
      flat: the true shape of an array that is stored flat, else None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    how: How
    cells: tuple[Cell | None, ...]
    flat: tuple[int, ...] | None = None

    def kind(self) -> str:
        """Shape and dtype, such as `64 x 256 float32`."""
        if self.flat is None:
            return f"{shape_text(self.shape)} {self.dtype}"
        return f"{shape_text(self.flat)} {self.dtype}, stored flat"


@dataclass(frozen=True, slots=True)
class Placement:
    """Finds the places of everything in a nest.

    Attributes:
      title: the strategy.
      columns: names of the devices: those of the replicas in order, then others that hold something.
      rows: the arrays.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def bytes_per_column(self) -> tuple[int, ...]:
        """Bytes of all rows on each device."""
        sums = [0] * len(self.columns)
        for row in self.rows:
            for place, cell in enumerate(row.cells):
                if cell is not None:
                    sums[place] += cell.nbytes
        return tuple(sums)


@dataclass(frozen=True)
class _Found:
    """An array before the columns are known."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    how: How
    parts: dict[Device, Cell]
    flat: tuple[int, ...] | None = None


def placement(title: str, mesh: ReplicaMesh, nest: Nest) -> Placement:
    """Finds out where the leaves of a nest lie.

    Args:
      title: the strategy's name.
      mesh: the devices that always have a column.
      nest: variables, distributed values, arrays, and objects with `variables`, such as an optimizer or a Keras model.

    Raises:
      ArgumentTypeError: a leaf that holds no array.
    """
    found = list(starmap(_find, _leaves(nest, "")))
    others: set[Device] = set()
    for one in found:
        others.update(one.parts)
    others.difference_update(mesh.devices)
    # Those of the replicas first, in their order, which is that of the batch's parts.
    devices = (*mesh.devices, *sorted(others, key=lambda device: (device.platform, device.id)))
    rows: list[Row] = []
    for one in found:
        cells = tuple(map(one.parts.get, devices))
        rows.append(Row(one.name, one.shape, one.dtype, one.how, cells, one.flat))
    return Placement(title, tuple(map(short_name, devices)), tuple(rows))


def short_name(device: Device) -> str:
    """`CPU:0`, or `worker 1 GPU:0` if there are several processes."""
    long = device_name(device).split("/")
    name = long[-1].removeprefix("device:")
    return name if jax.process_count() == 1 else f"worker {device.process_index} {name}"


def _leaves(nest: Nest, prefix: str) -> Iterator[tuple[str, Any]]:
    """Names and leaves, variables whole, objects with variables opened."""
    stop = (Variable, PerReplica, Mirrored)
    for path, leaf in jax.tree_util.tree_flatten_with_path(nest, is_leaf=lambda value: isinstance(value, stop))[0]:
        name = prefix + jax.tree_util.keystr(path, simple=True, separator="/") or "value"
        # Optimizers and models of Keras are leaves to JAX, and hold what is to be drawn.
        inner = None if isinstance(leaf, stop) else getattr(leaf, "variables", None)
        if isinstance(inner, (list, tuple)):
            yield from _leaves(list(cast("Sequence[Any]", inner)), f"{name}/")
        elif isinstance(leaf, Variable):
            yield leaf.name.removesuffix(":0"), leaf
        else:
            inner = None if isinstance(leaf, stop) else getattr(leaf, "value", None)  # a variable of Keras
            yield (str(getattr(leaf, "path", name)), inner) if isinstance(inner, jax.Array) else (name, leaf)


def _find(name: str, leaf: Leaf) -> _Found:
    if isinstance(leaf, Variable):
        return _variable(name, leaf)
    if isinstance(leaf, PerReplica):
        return _per_replica(name, leaf)
    array = leaf.data if isinstance(leaf, Mirrored) else leaf
    if isinstance(array, jax.Array):
        return _array(name, array)
    if isinstance(array, (np.ndarray, np.generic, bool, int, float, complex)):
        return _Found(name, np.shape(array), np.asarray(array).dtype.name, How.HOST, {})
    raise ArgumentTypeError(
        f"{name} is a {type(leaf).__name__}, which holds no array to draw. HINT: pass variables, "
        "arrays, nests of them, an optimizer, or a dataset."
    )


def _variable(name: str, variable: Variable) -> _Found:
    if not variable.policy.split or variable.policy.mesh is None:
        return _array(name, variable.stored)
    mesh, nbytes = variable.policy.mesh, _size(variable.policy.local_shape(variable)) * variable.dtype.itemsize
    if variable.synchronization is VariableSynchronization.ON_READ:
        whole = _all_of(variable.shape)
        # The devices of one replica hold its value together, so their cells have one colour.
        parts = {device: Cell(whole, i // mesh.group_size, nbytes) for i, device in enumerate(mesh.devices)}
        return _Found(name, variable.shape, variable.dtype.name, How.OWN, parts)
    # Variables that no axis of theirs divides are stored as one line of numbers, in equal pieces.
    stored = _array(name, variable.stored)
    policy: Any = variable.policy
    by_rows = policy.by_rows
    # A table's rows stay rows, in the order in which they are dealt out.
    dtype = f"{stored.dtype}, rows in turn" if by_rows and policy.places.stripes > 1 else stored.dtype
    if stored.shape == variable.shape:
        return _Found(name, stored.shape, dtype, How.SPLIT, stored.parts)
    # The last piece may end in zeros that are none of the variable's elements.
    shape = variable.shape if by_rows else (_size(variable.shape),)
    parts = {
        device: replace(
            cell,
            bounds=tuple((min(start, n), min(stop, n)) for (start, stop), n in zip(cell.bounds, shape, strict=True)),
        )
        for device, cell in stored.parts.items()
    }
    return _Found(name, shape, dtype, How.SPLIT, parts, None if by_rows else variable.shape)


def _array(name: str, array: jax.Array) -> _Found:
    contents: dict[Bounds, int] = {}
    parts: dict[Device, Cell] = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        slices = index or ()
        bounds = tuple(piece.indices(size)[:2] for piece, size in zip(slices, array.shape, strict=True))
        # Equal elements get one number, and so one colour: copies are seen as copies.
        content = contents.setdefault(bounds, len(contents))
        parts[device] = Cell(bounds, content, _size(stop - start for start, stop in bounds) * array.dtype.itemsize)
    how = How.ONE if len(parts) == 1 else How.COPY if len(contents) == 1 else How.SPLIT
    return _Found(name, tuple(array.shape), array.dtype.name, how, parts)


def _per_replica(name: str, value: PerReplica) -> _Found:
    """Parts in the order in which `gather` joins them."""
    mesh = value.mesh
    local = dict(zip(mesh.local_ids, value.values, strict=True)) if value.shapes is None else {}
    # Components that are no rows of one array: each replica's own.
    if value.is_tuple or value.scalar:
        cells: dict[Device, Cell] = {}
        for i, one in local.items():
            cells.update(dict.fromkeys(mesh.devices_of(i), Cell((), i, _nbytes(one))))
        first = next(iter(local.values()))
        kind = getattr(getattr(first, "dtype", None), "name", type(first).__name__)
        return _Found(name, tuple(np.shape(first)), kind, How.OWN, cells)
    rows = value.data.shape[0] // mesh.size
    shapes = value.shapes or ((rows, *value.data.shape[1:]),) * mesh.size
    parts: dict[Device, Cell] = {}
    start = 0
    for replica, shape in enumerate(shapes):
        bounds = ((start, start + shape[0]), *_all_of(shape[1:]))
        cell = Cell(bounds, replica, _size(shape) * value.data.dtype.itemsize)
        parts.update(dict.fromkeys(mesh.devices_of(replica), cell))
        start += shape[0]
    return _Found(name, (start, *value.data.shape[1:]), value.data.dtype.name, How.SPLIT, parts)


def _all_of(shape: Iterable[int]) -> Bounds:
    """The bounds of all elements."""
    return tuple([(0, size) for size in shape])


def _nbytes(value: object) -> int:
    return int(getattr(value, "nbytes", 0))


def _size(shape: Iterable[int]) -> int:
    return int(np.prod(list(shape), dtype=np.int64))
