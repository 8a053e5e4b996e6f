"""Types in which float32 arrays travel: how they are rounded to them, and made float32 again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute.typing import Array

SMALLEST = float(jnp.finfo(jnp.float32).tiny)
"""Smallest scale; blocks that would have a smaller one are zero."""


class Format(ABC):
    """A type in which float32 arrays travel.

    Attributes:
      block: what the number of elements of a row must be a multiple of.
      bytes_per_element: what travels of each, on average.
    """

    block = 1
    bytes_per_element: float

    @abstractmethod
    def encode(self, values: Array) -> Array:
        """Rounds rows of float32 elements; what travels is integers, which no compiler widens or leaves out."""

    @abstractmethod
    def decode(self, sent: Any, xp: Any = jnp) -> Any:
        """Returns what was sent as float32, exactly: the same bits by NumPy, on the host, as by JAX.

        Args:
          sent: arrays of `encode`.
          xp: `jax.numpy`, or `numpy`, which waits for no device.
        """


class Floats(Format):
    """Floats of 16 bits, rounded to the nearest, ties to even. What is too large becomes infinite.

    Args:
      dtype: of the floats.
    """

    bytes_per_element = 2.0

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def encode(self, values: Array) -> Array:
        """Rounds each element."""
        # As their bits: a compiler may take a float to a wider one for a collective, or skip two conversions.
        return lax.bitcast_convert_type(values.astype(self._dtype), jnp.uint16)

    def decode(self, sent: Any, xp: Any = jnp) -> Any:
        return _bitcast(sent, self._dtype, xp).astype(xp.float32)


class Integers(Format):
    """Integers of 8 or 4 bits with a scale for each block of elements, a bfloat16 that travels behind them.

    An integer has up to 7 bits and a scale 8, so that their product is exact in float32: whatever a compiler makes of
    it and what it is added to, the bits are the same. A block with an element that is not finite comes out as NaN.

    Args:
      bits: of an integer. Two of 4 share a byte.
      block: number of elements that share a scale.
    """

    def __init__(self, bits: int, block: int) -> None:
        self._each, self.block = 8 // bits, block
        self._largest = 2 ** (bits - 1) - 1
        """Largest integer that travels: as far from zero as the smallest."""
        self._sent = block // self._each + 2
        """Bytes of a block."""
        self.bytes_per_element = self._sent / block

    def encode(self, values: Array) -> Array:
        """Rounds each block to integers of up to 127, or 7, times its scale."""
        largest = self._largest
        blocks = values.reshape(*values.shape[:-1], -1, self.block)
        peak = jnp.max(jnp.abs(blocks), axis=-1)
        finite = jnp.all(jnp.isfinite(blocks), axis=-1)
        wanted = peak * jnp.float32(1 / largest)
        # Below the smallest normal number nothing can be divided by, and some processors take what is there for zero.
        scale = jnp.where(wanted < SMALLEST, 0, jnp.where(finite, wanted, jnp.nan)).astype(jnp.bfloat16)
        # Rounded to the nearest, a scale may be a little small: the largest element is then cut off, by less than the
        # others are rounded. Multiplied by the inverse, as compilers do with some quotients and not with others.
        steps = jnp.round(blocks * _inverse(scale)[..., None])
        integers = jnp.clip(steps, -largest, largest).astype(jnp.int8)
        if self._each == 2:  # the second half of a block in the upper bits
            half = self.block // 2
            integers = (integers[..., :half] & jnp.int8(15)) | (integers[..., half:] << jnp.int8(4))
        bits = lax.bitcast_convert_type(scale, jnp.int8).reshape(*values.shape[:-1], -1)
        return jnp.concatenate([integers.reshape(*values.shape[:-1], -1), bits], -1)

    def decode(self, sent: Any, xp: Any = jnp) -> Any:
        blocks = sent.shape[-1] // self._sent
        of_integers, rest = blocks * (self._sent - 2), sent.shape[:-1]
        integers = sent[..., :of_integers].reshape(*rest, blocks, -1)
        if self._each == 2:  # shifted back, so that the sign is that of the upper bit
            four = xp.int8(4)
            integers = xp.concatenate([(integers << four) >> four, integers >> four], -1)
        bits = sent[..., of_integers:].reshape(*rest, blocks, 2)
        scale = _bitcast(bits, jnp.bfloat16, xp).astype(xp.float32)
        return (integers.astype(xp.float32) * scale[..., None]).reshape(*rest, -1)


def _bitcast(array: Any, dtype: Any, xp: Any) -> Any:
    """An array's bits as elements of another type; if these are larger, those of the last axis make up one."""
    if xp is jnp:
        return lax.bitcast_convert_type(array, dtype)
    found = np.ascontiguousarray(array).view(dtype)
    return found if found.shape == array.shape else found[..., 0]


def _inverse(scale: Array) -> Array:
    """One by each scale, as float32; 1 for those that nothing can be divided by: zeros, and NaN of lost blocks."""
    wide = scale.astype(jnp.float32)
    return 1 / jnp.where(wide > 0, wide, jnp.float32(1))


FORMATS: dict[str, Format] = {
    "bfloat16": Floats(jnp.bfloat16),
    "float16": Floats(jnp.float16),
    "int8": Integers(8, 256),
    "int4": Integers(4, 64),
}
"""By the names that `CommunicationOptions` takes."""
