"""`DescribedArray`: an array on devices that are only described, such as a TPU slice that programs are compiled for."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from jaxtribute._src.core.jaxprs.core import ShapedArray
from jaxtribute._src.core.types import Device, DType, Nest
from jaxtribute.errors import DeviceError


class DescribedArray(jax.Array):
    """The shape, dtype and placement of an array that has no memory: what a compiler needs to know of one.

    Programs take and give such arrays where they are compiled and not run.

    Args:
      shape: the shape of the global array.
      dtype: the element type.
      sharding: which described device would hold which part.
    """

    weak_type = False  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    committed = True  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def __init__(self, shape: tuple[int, ...], dtype: DType, sharding: Sharding) -> None:
        self._shape, self._dtype, self._sharding = tuple(shape), np.dtype(dtype), sharding

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
        """The device that would hold it, or the sharding where there are several."""
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

    def block_until_ready(self) -> DescribedArray:
        """The same: nobody computes it."""
        return self

    def on(self, device: Device) -> DescribedArray:
        """The part that a device would hold."""
        return DescribedArray(self._sharding.shard_shape(self._shape), self._dtype, SingleDeviceSharding(device))

    def __len__(self) -> int:
        return self._shape[0]

    def __repr__(self) -> str:
        return f"DescribedArray({self._dtype}{list(self._shape)}, no values: its program was compiled, not run)"

    def _no_value(self, *_: Nest, **__: Nest) -> NoReturn:
        raise DeviceError(
            f"an array of shape {self._shape} and dtype {self._dtype} has no values: it lies on "
            f"{len(self.devices())} device(s) that programs are compiled for, and nothing runs. "
            "HINT: compute with it in a jd.function, or leave what needs numbers out while compiling."
        )


_NEED_VALUES = """
__array__ __float__ __int__ __bool__ __complex__ __index__ __iter__ __getitem__ __format__ item tolist
__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__
__pow__ __rpow__ __matmul__ __rmatmul__ __neg__ __pos__ __abs__ __lt__ __le__ __gt__ __ge__
addressable_data astype reshape sum mean max min
"""
# A subclass of `jax.Array`, so that it passes for one where only shapes are asked for. What needs values says so here:
# inside JAX the error would be one of its own insides.
for _name in _NEED_VALUES.split():
    setattr(DescribedArray, _name, DescribedArray._no_value)  # pyright: ignore[reportPrivateUsage]
