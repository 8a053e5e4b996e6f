"""`jd.debug`: checks for programs that go wrong without an error."""

from __future__ import annotations

import hashlib
import itertools
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute import Mirrored, Variable
from jaxtribute.errors import DivergenceError
from jaxtribute.extending import Nests, ReplicaMesh, settings
from jaxtribute.typing import Array, Leaf, Nest

__all__ = ["check_replicas"]


def check_replicas(tree: Nest, *, every: int = 1, step: int = 0) -> None:
    """Checks that values which should be the same on all replicas still are, to the bit.

    Copies drift apart where a replica computes with other numbers than the rest: values that were assigned without
    an aggregation, memory errors, workers that run different programs. Every worker must call it.

    Args:
      tree: a nest of variables, optimizers' variables and `Mirrored` values; what else is in it is not looked at.
      every: with `step`, check at every so many steps only.
      step: the number of the step.

    Raises:
      ArgumentError: `every` is less than 1, or `step` negative.
      DivergenceError: a value differs; it names the first, the replicas that differ from replica 0, and by how much.

    Examples:
      >>> with jd.MirroredStrategy(2).scope():
      ...     w = jd.Variable(jnp.zeros(3))
      >>> jd.debug.check_replicas([w])  # raises if copies differ
    """
    if settings.whole("step", step) % settings.whole("every", every, 1):
        return
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=Nests.is_whole)[0]:
        found = _mirrored(leaf)
        if found is None:
            continue
        array, mesh = found
        digests = _digests(array, mesh)
        apart = [replica for replica, digest in enumerate(digests) if digest != digests[0]]
        if apart:
            name = leaf.name if isinstance(leaf, Variable) else "a Mirrored value"
            raise DivergenceError(
                f"{name} at {jax.tree_util.keystr(path) or 'the root'}, of shape {array.shape}, is not the same on all "
                f"{mesh.size} replicas: {_amount(array, mesh, apart)}. HINT: look for a value that was assigned "
                "without an aggregation, or for a worker with other data or another program."
            )


def _mirrored(leaf: Leaf) -> tuple[jax.Array, ReplicaMesh] | None:
    """The array and the replicas of a value that has a copy on each, if it has."""
    if isinstance(leaf, Mirrored):
        return leaf.data, leaf.mesh
    if not isinstance(leaf, Variable) or leaf.policy.split or leaf.policy.mesh is None:
        return None
    mesh = leaf.policy.mesh
    return (leaf.stored, mesh) if mesh.size > 1 and leaf.policy.parameter_device is None else None


def _digests(array: jax.Array, mesh: ReplicaMesh) -> list[str]:
    """A digest of each replica's copy, those of other workers too."""
    # Of the bytes: by value a NaN would differ from itself, and -0.0 equal 0.0.
    own = [hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest() for part in mesh.local_parts(array)]
    if mesh.peers is None:
        return own
    # Workers tell their replicas in order, and the workers' order is that of the replicas.
    told = mesh.peers.exchange("jd.debug.check_replicas", json.dumps(own))
    return list(itertools.chain.from_iterable(map(json.loads, told)))


def _amount(array: jax.Array, mesh: ReplicaMesh, apart: list[int]) -> str:
    """By how much replicas differ from replica 0."""
    largest = np.asarray(_differences(array, mesh))
    return ", ".join(f"replica {i} differs from replica 0 by up to {largest[i]:.3g}" for i in apart)


@partial(jax.jit, static_argnums=1)
def _differences(array: Array, mesh: ReplicaMesh) -> Array:
    """The largest absolute difference of each replica's copy from replica 0's, on every device."""

    def local(copy: Array) -> Array:
        # In float32: differences of unsigned integers would wrap around, and those of half precision overflow.
        wide = copy.astype(jnp.float32)
        first = lax.psum(jnp.where(lax.axis_index(AXIS) == 0, wide, jnp.zeros_like(wide)), AXIS)
        return lax.all_gather(jnp.max(jnp.abs(wide - first)), AXIS)

    whole = PartitionSpec()
    return mesh.map_replicas(local, whole, whole)(array)
