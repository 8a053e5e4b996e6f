"""Arrays stored in slices, one a replica: cut, and put together again inside one replica's program."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec, Sharding

from jaxtribute._src.core.jaxprs.making import identity, linear_with_probe
from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.layouts import names_of, parts_along
from jaxtribute._src.core.values.mesh import AXIS, Layout, ReplicaMesh, reduced
from jaxtribute._src.core.values.numbers import summed

alike_p = identity("jd_alike")
"""The identity on a value that must be the same on every replica; inference raises an error where it is not."""


@dataclass(frozen=True)
class Cut:
    """The way in which an array is cut into one equal piece for each replica.

    Attributes:
      shape: the array's shape.
      replicas: how many pieces there are.
      axis: the axis that is cut; None cuts the flattened array, padded with zeros at its end.
      unit: a number that the size of a flat piece is a multiple of, so that the devices of a replica can share it.
    """

    shape: tuple[int, ...]
    replicas: int
    axis: int | None = None
    unit: int = 1

    @classmethod
    def of(cls, shape: tuple[int, ...], mesh: ReplicaMesh, layout: Layout = ()) -> Cut:
        """Makes the cut of a variable: along an axis where the devices of a replica share the value, else flat.

        Raises:
          NotCuttable: a value that they share has no axis that can be cut further.
        """
        # Flat pieces fit every shape. Only where devices keep arrays in tiles is an axis better.
        if not layout:
            axis = axis_in_tiles(shape, mesh.size) if mesh.in_tiles and not mesh.group else None
            return cls(shape, mesh.size, axis, unit=mesh.group_size)
        parts = _parts_of(layout, len(shape), mesh)

        def merit(axis: int) -> tuple[bool, bool, int]:
            # Axes that the replica's devices leave whole come first: a piece of another one has to be brought together.
            # Then those that all devices divide: whichever axis another layout splits, the cut can stay.
            return parts[axis] > 1, shape[axis] % (mesh.size * mesh.group_size) != 0, axis

        for axis in sorted(range(len(shape)), key=merit):
            if shape[axis] % (mesh.size * parts[axis]) == 0 and shape[axis]:
                return cls(shape, mesh.size, axis)
        raise NotCuttable(f"{shape} over {mesh.size} replicas")

    @property
    def size(self) -> int:
        """Number of elements of the array."""
        return math.prod(self.shape)

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """The shape of one piece."""
        if self.axis is None:
            each = self.replicas * self.unit
            # Rounded up: all pieces have one size, and the last ones may hold padding.
            return (-(-self.size // each) * self.unit,)
        return (*self.shape[: self.axis], self.shape[self.axis] // self.replicas, *self.shape[self.axis + 1 :])

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the array that the pieces form."""
        return (self.replicas * self.piece_shape[0],) if self.axis is None else self.shape

    @property
    def spec(self) -> PartitionSpec:
        """The axis of that array which lies over the replicas."""
        return PartitionSpec(*[None] * (self.axis or 0), AXIS)

    def laid_out(self, layout: Layout, mesh: ReplicaMesh) -> Sharding:
        """The placement of that array, whose pieces the devices of a replica share.

        What the layout leaves whole within a replica is stored in parts all the same, where an axis can be divided.
        """
        if self.axis is None:
            return mesh.laid_out(((AXIS, *mesh.group),) if mesh.group else (AXIS,))
        axes = list(map(names_of, (*layout, *[None] * (len(self.shape) - len(layout)))))
        parts = _parts_of(layout, len(self.shape), mesh)
        parts[self.axis] *= mesh.size
        axes[self.axis] = (AXIS, *axes[self.axis])
        taken = set(chain.from_iterable(axes))
        left = tuple([name for name in mesh.group if name not in taken])
        count = parts_along(left, mesh.group)
        # An axis of its own comes first: the pieces of the replicas are then joined part by part.
        for axis in sorted(range(len(axes)), key=lambda axis: len(axes[axis])):
            if left and self.shape[axis] % (parts[axis] * count) == 0:
                axes[axis] += left
                break
        return mesh.laid_out(tuple([names[0] if len(names) == 1 else names or None for names in axes]))

    def stored(self, array: Numeric) -> Any:
        """The array that the pieces of `array` form."""
        if self.axis is not None:
            return array
        vector = array.reshape(-1)
        # Padding takes part in nothing: `value` cuts it off, and reductions of pieces put a neutral value there.
        missing = self.stored_shape[0] - vector.size
        return jnp.pad(vector, (0, missing)) if missing else vector

    def value(self, stored: Numeric) -> Any:
        """The array whose pieces form `stored`: the inverse of `stored`."""
        return stored if self.axis is not None else stored[: self.size].reshape(self.shape)

    @property
    def by_rows(self) -> bool:
        """True if the flat pieces, of elements in order, are equal numbers of whole rows of the array.

        Such an array is cut and joined by rows: where devices lay arrays out in tiles, as TPUs do, making a vector of
        it would copy all of it, and the TPU compiler has no reduce-scatter of vectors.
        """
        return self.axis is None and self.unit == 1 and len(self.shape) > 1 and self.shape[0] % self.replicas == 0

    def piece_of(self, array: Numeric) -> Any:
        """This replica's piece of an array that every replica holds."""
        if self.by_rows or self.axis is not None:
            axis = self.axis or 0
            rows = self.shape[axis] // self.replicas
            start = lax.axis_index(AXIS) * np.int32(rows)
            return lax.dynamic_slice_in_dim(array, start, rows, axis).reshape(self.piece_shape)
        (size,) = self.piece_shape
        start = lax.axis_index(AXIS) * np.int32(size)
        return lax.dynamic_slice_in_dim(self.stored(array), start, size)

    def scattered(self, array: Numeric) -> Any:
        """This replica's piece of the sum of the replicas' arrays.

        Between processes on CPU the replicas send each other their slices, and each adds up its own. Gloo's
        reduce-scatter takes longer for large arrays, and up to JAX 0.11 it fails where a process comes 30 s late.
        """
        direct = jax.process_count() == 1 or jax.default_backend() != "cpu"
        if direct:
            axis = self.axis or 0
            whole = array if self.by_rows else self.stored(array)
            tiled = self.axis is None or _is_whole_tiles(self.shape, axis, self.replicas)
            if not tiled:
                # Of pieces that end within tiles the TPU compiler would sum all: they get an axis of their own.
                whole = whole.reshape(*self.shape[:axis], self.replicas, -1, *self.shape[axis + 1 :])
            scatter = partial(lax.psum_scatter, scatter_dimension=axis, tiled=tiled)
            return reduced(scatter, whole).reshape(self.piece_shape)
        rows = self.stored(array) if self.axis is None else jnp.moveaxis(array, self.axis, 0)
        rows = rows.reshape(self.replicas, -1, *rows.shape[1:])
        total = summed(lax.all_to_all(rows, AXIS, 0, 0, tiled=True), 0)
        return total if self.axis is None else jnp.moveaxis(total, 0, self.axis)

    def joined(self, piece: Numeric) -> Any:
        """The array whose pieces the replicas hold, on every replica."""
        if self.by_rows:
            piece = piece.reshape(self.shape[0] // self.replicas, *self.shape[1:])
            return lax.all_gather(piece, AXIS, axis=0, tiled=True)
        return self.value(lax.all_gather(piece, AXIS, axis=self.axis or 0, tiled=True))

    def whole(self, piece: Numeric, probe: Numeric = None) -> Any:
        """Puts pieces together like `joined`, as one operation of the program.

        Args:
          piece: this replica's piece.
          probe: zeros of the array's shape, whose gradient will be this replica's own gradient of the array. The
            gradient of `piece` is the piece of the sum over the replicas.
        """
        operands = (piece,) if probe is None else (piece, probe)
        return whole_p.bind(*operands, shape=self.shape, cut=self, axis_name=AXIS)


def axis_in_tiles(shape: tuple[int, ...], replicas: int) -> int | None:
    """The axis along which an array is cut where devices keep arrays in tiles; None for flat pieces.

    Pieces of whole tiles come first, then any equal ones: a flat piece would be a copy of what is laid out in tiles,
    and the TPU compiler sums all of a vector where a replica needs a piece.
    """
    # A vector is its own flat form.
    if len(shape) < 2:
        return None
    divided = [axis for axis, size in enumerate(shape) if size and size % replicas == 0]
    in_tiles = [axis for axis in divided if _is_whole_tiles(shape, axis, replicas)]
    return next(iter(in_tiles or divided), None)


def _is_whole_tiles(shape: tuple[int, ...], axis: int, parts: int) -> bool:
    """True if an axis is divided between tiles, which have 8 of the last but one axis and 128 of the last."""
    unit = {len(shape) - 1: 128, len(shape) - 2: 8}.get(axis, 1)
    return shape[axis] % (parts * unit) == 0


def _parts_of(layout: Layout, rank: int, mesh: ReplicaMesh) -> list[int]:
    """The number of parts into which a layout splits each axis."""
    parts = [parts_along(names_of(axis), mesh.group) for axis in layout]
    return parts + [1] * (rank - len(parts))


class NotCuttable(Exception):  # noqa: N818
    """An array has no axis that can be divided among the replicas."""


def alike(value: Numeric, name: str) -> Any:
    """`value`, which variable `name` takes as the same on all replicas."""
    return alike_p.bind(value, name=name)


whole_p = linear_with_probe(
    "jd_whole", lambda piece, *, cut, **_: cut.joined(piece), lambda cotangent, *, cut, **_: cut.scattered(cotangent)
)
"""The array whose slices the replicas hold, on every replica. One operation, so that it can be told apart: it may be
computed again in the backward pass rather than kept. A second operand adds nothing, and gets the replica's own
gradient of the array."""
