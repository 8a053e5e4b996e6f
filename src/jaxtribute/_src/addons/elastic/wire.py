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
_BY_NUMPY = 1 << 18
"""Elements up to which arrays that have come are read by NumPy: a program has to wait for the steps before it."""


class Wire:
    """A type in which changes travel; float32 arrays of 256 elements or more alone are rounded.

    Args:
      wire: how elements travel; None for all as they are.
    """

    def __init__(self, wire: Format | None) -> None:
        self._wire = wire
        self._encode, self._decode = jax.jit(self._encoded), jax.jit(self._decoded)

    def _encoded(self, arrays: list[Array]) -> list[Array]:
        wire = self._wire
        assert wire is not None
        return [wire.encode(jnp.pad(array.reshape(-1), (0, -array.size % wire.block))) for array in arrays]

    def _decoded(self, arrays: list[Any], xp: Any = jnp) -> list[Any]:
        wire = self._wire
        return [] if wire is None else [wire.decode(array, xp) for array in arrays]

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
        """The arrays that an island has sent, which were like these."""
        places = [place for place, array in enumerate(like) if self.takes(array)]
        found = list(arrays)
        came = [np.ascontiguousarray(arrays[place]) for place in places]
        few = sum(like[place].size for place in places) <= _BY_NUMPY
        decoded = self._decoded(came, np) if few else _on_host(self._decode, came)
        for place, array in zip(places, decoded, strict=True):
            found[place] = array[: like[place].size].reshape(like[place].shape)
        return found


def _on_host(call: Callable[[Any], Any], arrays: list[HostArray]) -> list[HostArray]:
    if not arrays:
        return []
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return list(map(np.asarray, call(arrays)))
