"""`PerReplica` and `Mirrored`: one global array each, with a placement over the replicas."""

# What `==` means depends on the code that asks: see `operators.Asking`.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from jaxtribute._src.core.jaxprs.core import ArrayImpl, Tracer, is_traced
from jaxtribute._src.core.types import Device, DType, Leaf, Nest, Numeric, T
from jaxtribute._src.core.values.agreement import Signature, all_parts, all_signatures
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute._src.core.values.numbers import check_cut
from jaxtribute._src.core.values.operators import COMPARABLE, ArrayOperators, Asking, operand
from jaxtribute._src.core.values.placing import own
from jaxtribute.errors import ArgumentError, ArgumentTypeError

_HOSTED = (np.ndarray, np.generic)
_ARRAYS = (jax.Array, *_HOSTED)
META = ["mesh", "scalar", "shapes", "idle", "wrong_mean"]
"""The fields of `PerReplica` that are no arrays."""


class DistributedValues:
    """Base of what has one component a replica: `PerReplica` and `Mirrored` values, and variables.

    Examples:
      >>> value = jd.MirroredStrategy(2).run(lambda: jd.get_replica_context().replica_id_in_sync_group)
      >>> isinstance(value, jd.DistributedValues), value.values
      (True, (Array(0, dtype=int32), Array(1, dtype=int32)))

    Source: `tf.distribute.DistributedValues`.
    """

    __slots__ = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """The components of this process's replicas, in replica order."""
        raise NotImplementedError

    def __repr__(self) -> str:
        ids = self._replica_ids()
        lines = ",\n".join(f"  {i}: {value!r}" for i, value in zip(ids, self.values, strict=True))
        return f"{type(self).__name__}:{{\n{lines}\n}}"

    def _repr_html_(self) -> str:
        from jaxtribute._src.core.drawing import html_of

        return html_of(self)

    def _replica_ids(self) -> Sequence[int]:
        raise NotImplementedError


class ReplicaValues(DistributedValues):
    """Base of the results that have one component a replica: all but variables, which are places to keep one."""

    __slots__ = ()

    data: Any

    def __repr__(self) -> str:
        # `jax.tree.map` puts whatever its function returns in an array's place: a flag, a shape, a label.
        return DistributedValues.__repr__(self) if self._holds_values() else f"{type(self).__name__}({self.data!r})"

    def _holds_values(self) -> bool:
        return isinstance(self.data, jax.Array)


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=META)
@dataclass(slots=True, repr=False, eq=False, init=True)
class PerReplica(ReplicaValues, Generic[T]):
    """A value that may differ from replica to replica; `PerReplica[T]` has components of type `T`.

    While the replicas agree on shape and dtype it is one global array: components of shape `s` are slices
    of axis 0 of an array of shape `(replicas * s[0], *s[1:])`, and scalars the elements of a vector. When
    they disagree in shape alone (the last partial batch) it is *ragged*: each slice is padded to the largest,
    and `shapes` tells the true ones; nobody sees the padding. Python values, and arrays that differ in dtype or
    rank, are kept as they are in a tuple, one a local replica.

    Made by strategies and datasets; a pytree whose leaves are those arrays.

    Examples:
      >>> strategy = jd.MirroredStrategy(2)
      >>> value = strategy.run(lambda: jd.get_replica_context().replica_id_in_sync_group)
      >>> type(value), value.values
      (<class 'jaxtribute.PerReplica'>, (Array(0, dtype=int32), Array(1, dtype=int32)))

    Source: `tf.distribute.DistributedValues` (the results of `Strategy.run`).
    """

    data: Any
    mesh: ReplicaMesh
    scalar: bool = False
    shapes: tuple[tuple[int, ...], ...] | None = None
    """The true shape of each replica's component, if they differ."""
    idle: tuple[int, ...] = ()
    """The replicas that had no data to compute their component from: a mean leaves them out."""
    wrong_mean: str = ""
    """Warning for whoever takes the mean of the components, each counted once; empty if it is not known to be wrong."""
    total: Any = field(default=None, init=False)
    """The sum over the replicas, where a program knows it already; it is not part of the pytree."""

    @classmethod
    def from_split(cls, array: Numeric, mesh: ReplicaMesh) -> PerReplica[Any]:
        """Wraps a global array of rank 1 or more whose axis 0 holds the replicas' equal slices in order."""
        return cls(array, mesh)

    @classmethod
    def from_parts(
        cls, parts: Sequence[Any], mesh: ReplicaMesh, signatures: Sequence[Signature] | None = None
    ) -> PerReplica[Any]:
        """Wraps one value a local replica: one global array if all agree in rank and dtype, else a tuple.

        Args:
          parts: arrays, or any Python values. Arrays of NumPy, or on another device, are copied to the replica's. In a
            program that is traced they may be those of all replicas.
          mesh: the replicas' devices. Where it spans several workers all must call it.
          signatures: shape and dtype of all replicas' arrays, if they are known already.
        """
        if mesh.described:
            return cls(mesh.assemble(parts), mesh, not np.shape(parts[0]))
        plain = None if signatures else mesh.assemble_plain(parts)
        if plain is not None:
            return cls(plain, mesh)
        if is_traced() and all(isinstance(part, _HOSTED) for part in parts):
            return cls._constant(parts, mesh)
        if len(parts) > len(mesh.local_ids):  # of all replicas, for a program that is traced
            parts = [jnp.asarray(part) if isinstance(part, _ARRAYS) else part for part in parts]
        else:
            parts = [_on_device(part, device) for part, device in zip(parts, mesh.local_places, strict=True)]
        if signatures is None:
            signatures = all_signatures([parts], "a per-replica value", mesh)[0]
        # Padding makes up for lengths alone: arrays of different rank or dtype do not fit into one.
        if signatures is None or len({(len(shape), dtype) for shape, dtype in signatures}) > 1:
            return cls(tuple(parts), mesh)
        shapes = tuple(shape for shape, _ in signatures)
        if len(set(shapes)) == 1:
            return cls(mesh.assemble(parts), mesh, not shapes[0])
        if len(shapes) < mesh.size:  # nobody to ask for the other workers' shapes
            return cls(tuple(parts), mesh)
        largest = _largest(shapes)
        return cls(mesh.assemble([_padded(part, largest) for part in parts]), mesh, shapes=shapes)

    @classmethod
    def _constant(cls, parts: Sequence[Any], mesh: ReplicaMesh) -> PerReplica[Any]:
        """Wraps arrays of the host in a program that is traced, in which nothing lies on a device yet."""
        # The program is one for all workers: their arrays are constants of it, each worker's alike.
        whole = all_parts(parts, mesh)
        if len({(part.ndim, part.dtype) for part in whole}) > 1:
            return cls(tuple(parts), mesh)
        shapes = tuple(part.shape for part in whole)
        if not shapes[0]:
            return cls(jnp.asarray(np.stack(whole)), mesh, scalar=True)
        largest = _largest(shapes)
        padded = [
            np.pad(part, [(0, size - have) for size, have in zip(largest, part.shape, strict=True)]) for part in whole
        ]
        data = jnp.asarray(np.concatenate(padded))
        return cls(data, mesh) if len(set(shapes)) == 1 else cls(data, mesh, shapes=shapes)

    @classmethod
    def from_host(cls, parts: Sequence[np.ndarray[Any, Any]], mesh: ReplicaMesh) -> PerReplica[Any]:
        """Puts one host array for each replica on its device, all in one transfer.

        Args:
          parts: arrays of one dtype and rank, at least 1; they may differ in shape and be empty.
          mesh: the replicas' devices, all of this process.
        """
        shapes = tuple(part.shape for part in parts)
        if len(set(shapes)) == 1:
            return cls(jax.device_put(np.concatenate(parts), mesh.split), mesh)
        largest = _largest(shapes)
        # One array and one transfer: a transfer to each device costs more than the copy on the host.
        padded: np.ndarray[Any, Any] = np.zeros((mesh.size, *largest), parts[0].dtype)
        for row, part in zip(padded, parts, strict=True):
            row[_corner(part.shape)] = part
        whole = padded.reshape(mesh.size * largest[0], *largest[1:])
        return cls(jax.device_put(whole, mesh.split), mesh, shapes=shapes)

    def _holds_values(self) -> bool:
        if isinstance(self.data, tuple):
            return len(cast("tuple[Any, ...]", self.data)) == len(self._replica_ids())
        return isinstance(self.data, jax.Array)

    @property
    def is_ragged(self) -> bool:
        """True if the components differ in shape or dtype, or are Python values."""
        return self.shapes is not None or isinstance(self.data, tuple)

    @property
    def is_tuple(self) -> bool:
        """True if the components are kept in a tuple: Python values, or arrays that fit into no one array."""
        return isinstance(self.data, tuple)

    @property
    def component_ndim(self) -> int:
        """The number of axes of each component."""
        if isinstance(self.data, tuple):
            return np.ndim(cast("tuple[Any, ...]", self.data)[0])
        return 0 if self.scalar else self.data.ndim

    @property
    def values(self) -> tuple[T, ...]:
        """The components of this process's replicas: arrays on their devices, without a copy."""
        if isinstance(self.data, tuple):
            return cast("tuple[Any, ...]", self.data)
        if isinstance(self.data, Tracer):
            # A program that is traced has the components of all replicas, those of other processes too.
            parts = list(self.data.reshape(self.mesh.size, self.data.shape[0] // self.mesh.size, *self.data.shape[1:]))
        else:
            parts = self.mesh.local_parts(self.data)
            if not self.data.size:  # XLA does not split what is empty
                parts = [part[: self.data.shape[0] // self.mesh.size] for part in parts]
        if self.shapes is not None:
            ids = range(self.mesh.size) if isinstance(self.data, Tracer) else self.mesh.local_ids
            return tuple(without_padding(part, self.shapes[i]) for part, i in zip(parts, ids, strict=True))
        return cast("tuple[T, ...]", tuple(part.reshape(()) for part in parts) if self.scalar else tuple(parts))

    def _replica_ids(self) -> Sequence[int]:
        return self.mesh.local_ids

    def _no_operand(self, *_: Nest) -> NoReturn:
        raise ArgumentTypeError(
            f"a PerReplica value of {self.mesh.size} replicas is no single array to compute with here. "
            "HINT: compute in the function passed to strategy.run, or reduce the value first."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> PerReplica[T]:
        return replace(self, data=deepcopy(self.data, memo))

    def __reduce__(self) -> Any:
        if not isinstance(self.data, tuple):
            return _split_again, (_on_host(self), self.mesh, self.scalar, self.shapes, self.idle)
        parts = tuple(np.asarray(part) if isinstance(part, jax.Array) else part for part in self.values)
        return PerReplica.from_parts, (parts, self.mesh)

    def __eq__(self, other: object) -> Any:
        """A `PerReplica` of what is equal in each component; containers search by identity instead."""
        if isinstance(other, (DistributedValues, ArrayOperators)) and Asking(sys._getframe(1)).searches():
            return self is other
        return self._compared(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        """A `PerReplica` of what is not equal in each component; otherwise as `==`."""
        if isinstance(other, (DistributedValues, ArrayOperators)) and Asking(sys._getframe(1)).searches():
            return self is not other
        return self._compared(operator.ne, other)

    def _compared(self, function: Callable[[Any, Any], Any], other: Numeric) -> Any:
        """`function` of each component and of `other`, or of its component."""
        if not isinstance(other, (PerReplica, ArrayOperators, *COMPARABLE, *((str,) if self.is_tuple else ()))):
            return NotImplemented
        if isinstance(other, PerReplica) and (other.mesh != self.mesh or other.shapes != self.shapes):
            raise ArgumentTypeError(
                f"the components of {self.mesh.size} and of {other.mesh.size} replicas, of shapes {self.shapes or ''} "
                f"and {other.shapes or ''}, cannot be compared. HINT: compare values of one strategy and of equal "
                "shapes."
            )
        if isinstance(self.data, tuple) or isinstance(getattr(other, "data", None), tuple):
            theirs = other.values if isinstance(other, PerReplica) else (operand(other),) * len(self.mesh.local_ids)
            equal = tuple(function(mine, their) for mine, their in zip(self.values, theirs, strict=True))
            return PerReplica(equal, self.mesh)
        theirs = other.data if isinstance(other, PerReplica) else self._repeated(operand(other))
        return PerReplica(function(self.data, theirs), self.mesh, self.scalar, self.shapes, self.idle)

    def _repeated(self, other: Numeric) -> Any:
        """`other`, which broadcasts to the shape of each component, as broadcasts to the global array."""
        # Axis 0 holds the replicas' rows, replica by replica. What has fewer axes broadcasts along the rest, as it is.
        if np.ndim(other) < self.component_ndim or not self.component_ndim:
            return other
        rows = self.data.shape[0] // self.mesh.size
        whole = jnp.broadcast_to(other, (rows, *self.data.shape[1:]))
        return jnp.tile(whole, (self.mesh.size, *[1] * (self.component_ndim - 1)))

    __array_priority__: ClassVar[int] = ArrayOperators.__array_priority__

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...
        def __add__(self, *_: Any) -> NoReturn: ...
        def __radd__(self, *_: Any) -> NoReturn: ...
        def __sub__(self, *_: Any) -> NoReturn: ...
        def __rsub__(self, *_: Any) -> NoReturn: ...
        def __mul__(self, *_: Any) -> NoReturn: ...
        def __rmul__(self, *_: Any) -> NoReturn: ...
        def __truediv__(self, *_: Any) -> NoReturn: ...
        def __rtruediv__(self, *_: Any) -> NoReturn: ...
        def __matmul__(self, *_: Any) -> NoReturn: ...
        def __rmatmul__(self, *_: Any) -> NoReturn: ...
        def __pow__(self, *_: Any) -> NoReturn: ...
        def __rpow__(self, *_: Any) -> NoReturn: ...
        def __floordiv__(self, *_: Any) -> NoReturn: ...
        def __mod__(self, *_: Any) -> NoReturn: ...
        def __neg__(self, *_: Any) -> NoReturn: ...
        def __lt__(self, *_: Any) -> NoReturn: ...
        def __le__(self, *_: Any) -> NoReturn: ...
        def __gt__(self, *_: Any) -> NoReturn: ...
        def __ge__(self, *_: Any) -> NoReturn: ...
        def __float__(self, *_: Any) -> NoReturn: ...
        def __int__(self, *_: Any) -> NoReturn: ...
        def __bool__(self, *_: Any) -> NoReturn: ...
        def __getitem__(self, *_: Any) -> NoReturn: ...
    else:
        # A class that defines `==` loses its hash. Values are keys by identity.
        __hash__ = object.__hash__
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_operand
        __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __floordiv__ = __mod__ = __neg__ = _no_operand
        __lt__ = __le__ = __gt__ = __ge__ = __float__ = __int__ = __bool__ = __getitem__ = _no_operand

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise ArgumentTypeError(
            f"a PerReplica value holds one component for each of {self.mesh.size} replicas and is no single array. "
            "HINT: use strategy.reduce(...), strategy.gather(value, axis=0) or "
            "strategy.experimental_local_results(value)."
        )

    def __jax_array__(self) -> jax.Array:
        return cast("jax.Array", self.__array__())


@jax.tree_util.register_dataclass
@dataclass(slots=True, repr=False, eq=False, init=True)
class Mirrored(ArrayOperators, ReplicaValues):
    """A value that is the same on every replica: one global array with a copy on each device.

    It can be used wherever an array can: in operators, `jax.numpy`, `float()` and `numpy()`. A pytree with
    the global array as its leaf.

    Examples:
      >>> strategy = jd.MirroredStrategy(2)
      >>> value = strategy.run(lambda: jd.get_replica_context().all_reduce("SUM", jnp.float32(1)))
      >>> type(value), value + 1
      (<class 'jaxtribute.Mirrored'>, Array(3., dtype=float32))

    Source: `tf.distribute.DistributedValues` (the results of `Strategy.run` that are kept in sync).
    """

    data: Any
    mesh: ReplicaMesh = field(metadata={"static": True})

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """The copies of this process's replicas: arrays on their devices, without a copy."""
        if isinstance(self.data, Tracer):
            return (self.data,) * len(self.mesh.local_ids)
        return tuple(self.mesh.local_parts(self.data))

    def _replica_ids(self) -> Sequence[int]:
        return self.mesh.local_ids

    def _operand(self) -> Any:
        return self.data

    def __deepcopy__(self, memo: dict[int, Any]) -> Mirrored:
        # A later step may take the original's memory over.
        return replace(self, data=self.data.copy())

    def __reduce__(self) -> Any:
        return _mirrored_again, (_on_host(self), self.mesh)


Distributed: TypeAlias = PerReplica[T] | Mirrored | T
"""Form of an array that a strategy returns: a value for each replica, the same value on all, or itself with one."""


def _on_host(value: PerReplica[Any] | Mirrored) -> np.ndarray[Any, Any]:
    """The global array, for a pickle.

    Raises:
      ArgumentError: this process has no value, or not all of it.
    """
    if isinstance(value.data, Tracer) or not (value.data.is_fully_addressable or value.data.is_fully_replicated):
        raise ArgumentError(
            f"a {type(value).__name__} value of {value.mesh.size} replicas cannot be pickled in a compiled function, "
            "or where other workers hold parts of it. HINT: pickle what strategy.reduce or strategy.gather returns."
        )
    return np.asarray(value.data)


def _split_again(data: Leaf, mesh: ReplicaMesh, *layout: Nest) -> PerReplica[Any]:
    return PerReplica(jax.device_put(data, mesh.split), mesh, *layout)


def _mirrored_again(data: Leaf, mesh: ReplicaMesh) -> Mirrored:
    return Mirrored(mesh.replicate(data), mesh)


def idle_replicas(values: Iterable[Any]) -> tuple[int, ...]:
    """The replicas that have no data in `values`, where others have some.

    Those are the replicas whose component of every ragged value is empty, or was computed without data.
    """
    without: set[int] | None = None
    replicas = 0
    for value in values:
        if isinstance(value, PerReplica) and (value.shapes is not None or value.idle):
            replicas = value.mesh.size
            empty = {i for i, shape in enumerate(value.shapes or ()) if 0 in shape}.union(value.idle)
            # A replica that has rows of one argument is not idle, though another argument of its is empty.
            without = empty if without is None else without & empty
    # Where no replica has data a mean over none of them would be 0 / 0: they all count, as for empty arrays.
    return () if not without or len(without) == replicas else tuple(sorted(without))


def _padded(part: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`part` with zeros after it, on its device."""
    if part.shape == shape:
        return part
    if isinstance(part, Tracer) or jnp.issubdtype(part.dtype, jax.dtypes.prng_key):
        return jnp.zeros_like(jax.ShapeDtypeStruct(shape, part.dtype)).at[_corner(part.shape)].set(part)
    widths = [(0, size - have) for size, have in zip(shape, part.shape, strict=True)]
    # On the host: on the device every shape would compile a program of its own, in the last batch of an epoch.
    return jax.device_put(np.pad(np.asarray(part), widths), part.sharding)


def _largest(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The smallest shape that has room for each of some shapes of one rank."""
    return tuple(map(max, zip(*shapes, strict=True)))


def _corner(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The index of the part of a padded array that holds its component."""
    return tuple(map(slice, shape))


def without_padding(part: Numeric, shape: tuple[int, ...]) -> Any:
    """The component of shape `shape`, which is padded at the end of each axis."""
    return part if part.shape == shape else part[_corner(shape)]


def _on_device(value: Numeric, place: Device | Sharding) -> Any:
    """`value` in `place` if it is an array, else as it is."""
    # Objects, strings and times are no arrays to JAX, and stay what they are.
    if isinstance(value, _HOSTED) and value.dtype.kind not in "OSUMm":
        check_cut(value, "a component of a distributed value")
        return own(value, place)
    if isinstance(value, Tracer):
        return value
    devices = {place} if isinstance(place, Device) else place.device_set
    if not isinstance(value, jax.Array) or (value.committed and value.devices() == devices):
        return value
    plain = type(value) is ArrayImpl and type(value.sharding) is SingleDeviceSharding
    if plain and value.devices() == devices:
        # As `jax.device_put` does it if nothing is to be moved, in a tenth of the time.
        return ArrayImpl(value.aval, value.sharding, [value], committed=True, _skip_checks=True)
    return jax.device_put(value, place)
