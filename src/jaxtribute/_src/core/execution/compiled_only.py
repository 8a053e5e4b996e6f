"""Programs for described devices, which are compiled and not run."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Sharding

from jaxtribute._src.core.types import Leaf, Nest
from jaxtribute._src.core.values.described import DescribedArray


class CompiledOnly:
    """A stand-in for the function that `jax.jit` made: a call compiles it and tells what it would give.

    Args:
      jitted: the function.
      home: where inputs go that lie on no described device, such as batches and keys on the host.
    """

    def __init__(self, jitted: Any, home: Sharding) -> None:
        self.jitted, self._home = jitted, home
        self._known: dict[Any, tuple[Any, ...]] = {}

    def __call__(self, *inputs: Nest) -> Any:
        """The outputs as `DescribedArray`s.

        Raises:
          jax.errors.JaxRuntimeError: the compiler's own error, such as for a program that does not fit.
        """
        leaves, tree = jax.tree.flatten(self._described(inputs))
        key = tree, tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)
        if key not in self._known:
            lowered = self.lower(*inputs)
            shapes, structure = jax.tree.flatten(lowered.out_info)
            placed = jax.tree.leaves(lowered.compile().output_shardings)
            arrays = [DescribedArray(s.shape, s.dtype, place) for s, place in zip(shapes, placed, strict=True)]
            self._known[key] = structure, arrays
        structure, arrays = self._known[key]
        return structure.unflatten(arrays)

    def lower(self, *inputs: Nest) -> Any:
        """The program lowered for the described devices."""
        return self.jitted.lower(*self._described(inputs))

    def _described(self, inputs: tuple[Any, ...]) -> Any:
        """Shapes and placements of the inputs."""

        def one(leaf: Leaf) -> Any:
            if isinstance(leaf, DescribedArray):
                return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            on_devices = getattr(getattr(leaf, "sharding", None), "device_set", None) == self._home.device_set
            where = leaf.sharding if on_devices else self._home
            dtype = jax.dtypes.canonicalize_dtype(jax.numpy.result_type(leaf))
            return jax.ShapeDtypeStruct(jax.numpy.shape(leaf), dtype, sharding=where)

        return jax.tree.map(one, inputs)
