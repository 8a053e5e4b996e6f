"""`Wire`: changes of parameters in a small type, as they travel between islands that train alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.wires.formats import Format
from jaxtribute.typing import Array, HostArray

_LEAST = 256
"""Elements of the smallest array that is rounded."""


class Wire:
    """A type in which changes travel; float32 arrays of 256 elements or more alone are rounded.

    Args:
      wire: how elements travel; None for all as they are.
    """

    def __init__(self, wire: Format | None) -> None:
        self._wire = wire
        self._encode = jax.jit(self._encoded)

    def _encoded(self, arrays: list[Array]) -> list[Array]:
        wire = self._wire
        assert wire is not None
        return [wire.encode(jnp.pad(array.reshape(-1), (0, -array.size % wire.block))) for array in arrays]

    def takes(self, array: Any) -> bool:
        """True for an array that is rounded."""
        return self._wire is not None and array.dtype == np.float32 and array.size >= _LEAST

    def sent(self, arrays: Sequence[HostArray]) -> list[HostArray]:
        """Arrays as they travel."""
        places = [place for place, array in enumerate(arrays) if self.takes(array)]
        found = list(arrays)
        for place, array in zip(places, _on_host(self._encode, [arrays[at] for at in places]), strict=True):
            found[place] = array
        return found

    def received(self, arrays: Sequence[HostArray], like: Sequence[Any]) -> list[HostArray]:
        """The arrays that an island has sent, which were like these; waits for no step that is still computed."""
        return [self._arrived(array, given) for array, given in zip(arrays, like, strict=True)]

    def _arrived(self, array: HostArray, like: Any) -> HostArray:
        if self._wire is None or not self.takes(like):
            return array
        return self._wire.decode(array, np)[: like.size].reshape(like.shape)


def _on_host(call: Callable[[Any], Any], arrays: list[HostArray]) -> list[HostArray]:
    if not arrays:
        return []
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return list(map(np.asarray, call(arrays)))
