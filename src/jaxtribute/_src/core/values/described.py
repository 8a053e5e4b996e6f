"""`DescribedArray`: an array on devices that are only described, such as a TPU slice that programs are compiled for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxtribute._src.core.devices import is_described
from jaxtribute._src.core.jaxprs.core import ShapedArray, Tracer, in_words
from jaxtribute._src.core.jaxprs.unrun import made_of, methods_of_operations, take_without_value
from jaxtribute._src.core.types import Device, DType, Nest, Numeric
from jaxtribute.errors import DeviceError


class DescribedArray(jax.Array):
    """The shape, dtype and placement of an array that has no memory: what a compiler needs to know of one.

    Programs take and give such arrays where they are compiled and not run, and so do JAX's operations outside of
    programs. A single number that was given, such as a learning rate, is known; what is computed is not.

    Args:
      shape: the shape of the global array.
      dtype: the element type.
      sharding: which described device would hold which part.
      number: the single number that it holds, if that is known.
    """

    weak_type = False  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    committed = True  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    _committed = False  # else JAX would fill arrays that are to be like it on the same devices
    __array_priority__ = 100  # as JAX's arrays: NumPy's leave operations with them to them

    def __init__(
        self, shape: tuple[int, ...], dtype: DType, sharding: Sharding, number: np.ndarray[Any, Any] | None = None
    ) -> None:
        _tell_jax()
        self._shape, self._dtype, self._sharding = tuple(shape), np.dtype(dtype), sharding
        self.number = number

    @classmethod
    def of(cls, value: Numeric, dtype: DType, sharding: Sharding) -> DescribedArray:
        """Describes an array of the host or of real devices, or a `jax.ShapeDtypeStruct`, in a placement."""
        known = not isinstance(value, (Tracer, jax.ShapeDtypeStruct)) and np.size(value) == 1
        if isinstance(value, DescribedArray):
            number = value.number
        else:
            number = np.asarray(value, dtype) if known else None
        return cls(np.shape(value), dtype, sharding, number)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the global array."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self._dtype

    @property
    def sharding(self) -> Sharding:
        """The placement: which device would hold which part."""
        return self._sharding

    @property
    def aval(self) -> ShapedArray:
        """The shape and dtype that JAX traces."""
        return ShapedArray(self._shape, self._dtype)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the global array."""
        return self.size * self._dtype.itemsize

    @property
    def device(self) -> Any:
        """The device that would hold it, or the sharding if there are several."""
        devices = self._sharding.device_set
        return next(iter(devices)) if len(devices) == 1 else self._sharding

    @property
    def is_fully_addressable(self) -> bool:
        """True: nobody else holds any of it."""
        return True

    @property
    def is_fully_replicated(self) -> bool:
        """True if every device would hold all of it."""
        return self._sharding.is_fully_replicated

    def devices(self) -> set[Device]:
        """The devices that would hold it."""
        return self._sharding.device_set

    def is_deleted(self) -> bool:
        """False: there is nothing to give up."""
        return False

    def copy(self) -> DescribedArray:
        """The same: nothing can be written into it."""
        return self

    def copy_to_host_async(self) -> None:
        """Nothing: there are no values to copy."""

    def block_until_ready(self) -> DescribedArray:
        """The same: nobody computes it."""
        return self

    def on(self, device: Device) -> DescribedArray:
        """The part that a device would hold."""
        part = self._sharding.shard_shape(self._shape)
        number = self.number if part == self._shape else None
        return DescribedArray(part, self._dtype, SingleDeviceSharding(device), number)

    def __array__(self, dtype: DType = None, context: object = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The number, if it is known.

        Raises:
          DeviceError: there are no values.
        """
        if self.number is None:
            raise DeviceError(
                f"an array of shape {self._shape} and dtype {self._dtype} has no values: it lies on "
                f"{len(self.devices())} device(s) that programs are compiled for, and nothing runs. "
                "HINT: compute with it in a jd.function, or leave what needs numbers out while compiling."
            )
        return np.array(self.number.reshape(self._shape), dtype)

    def __len__(self) -> int:
        return self._shape[0]

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, index: Nest) -> Any:
        return jax.jit(lambda array: array[index])(self)

    def __format__(self, spec: str) -> str:
        return format(self.__array__().item(), spec) if spec or self.number is not None else repr(self)

    def __repr__(self) -> str:
        value = "no values: its program was compiled, not run" if self.number is None else str(self.number)
        return f"DescribedArray({in_words(self)}, {value})"


def nowhere(place: Any) -> bool:
    """True of a device or placement that programs are compiled for, and where nothing runs."""
    device = next(iter(place.device_set)) if isinstance(place, Sharding) else place
    return isinstance(device, Device) and is_described(device)


def _outputs(avals: Sequence[Any], inputs: Sequence[Any], places: Sequence[Any]) -> list[Any]:
    """The outputs of a program, where it was asked for, else on the devices of its inputs."""
    where = inputs[0].sharding if inputs else next(filter(nowhere, places))
    if isinstance(where, NamedSharding):
        where = NamedSharding(where.mesh, PartitionSpec())
    described = [partial(DescribedArray, sharding=place if nowhere(place) else where) for place in places]
    return [made_of(aval, make) for aval, make in zip(avals, described, strict=True)]


@cache
def _tell_jax() -> None:
    take_without_value(DescribedArray, _outputs, nowhere)


for _name, _member in methods_of_operations():
    if _name not in vars(DescribedArray):
        setattr(DescribedArray, _name, _member)
for _name in ("__float__", "__int__", "__bool__", "__complex__", "__index__", "item", "tolist"):
    setattr(DescribedArray, _name, lambda array, *args, _of=_name: getattr(array.__array__(), _of)(*args))
