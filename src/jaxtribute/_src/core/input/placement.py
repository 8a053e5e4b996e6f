"""Putting a step's data on the replicas' devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import jax
import numpy as np

from jaxtribute._src.core import settings
from jaxtribute._src.core.callers import warn
from jaxtribute._src.core.execution.nests import leaves_of
from jaxtribute._src.core.input.batches import as_batch, path_name
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.input.worker_steps import WorkerStep, worker_step
from jaxtribute._src.core.types import Array, Foreign, Leaf, Nest
from jaxtribute._src.core.values.described import DescribedArray
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute._src.core.values.placing import Transfer
from jaxtribute.errors import InputError

Placement = Callable[[WorkerStep], Nest]
"""Turns a step into the element that the user gets."""


def to_devices(mesh: ReplicaMesh) -> Placement:
    """Elements on the replicas' devices: `PerReplica` leaves, or plain arrays for one replica."""
    if mesh.described:
        return _Watched(lambda step: _describe(step, mesh))
    put = partial(_put_share, mesh=mesh) if mesh.peers is not None else partial(_put, where=Transfer(mesh.split))
    if mesh.size == 1:
        return _Watched(lambda step: put(step.tree if step.parts is None else step.parts[0]))
    if len(mesh.local_ids) < mesh.size:
        put = partial(_put_share, mesh=mesh)
    return _Watched(lambda step: _place(step, mesh, put))


def to_program(mesh: ReplicaMesh) -> Placement:
    """Elements as a compiled program takes them: numbers of NumPy as they are, for one device; else on the devices."""
    if mesh.size > 1 or mesh.peers is not None or mesh.described or mesh.group:
        return to_devices(mesh)
    put = Transfer(mesh.split)

    def place(step: WorkerStep) -> Nest:
        tree = step.tree if step.parts is None else step.parts[0]
        # JAX puts them onto the device in C, on the way to the program.
        return tree if all(map(_is_numbers, jax.tree.leaves(tree))) else _put(tree, put)

    return _Watched(place)


def even_arrays(mesh: ReplicaMesh, compiled: bool) -> Callable[[np.ndarray[Any, Any]], Any] | None:
    """Places one array as `to_devices` does, or `to_program` if `compiled`, and asks nothing about it.

    It must be one of `is_small_number`, with equally many rows for each replica, and at least one. None if `mesh` has
    devices of other processes, or such as are only described.
    """
    if mesh.peers is not None or mesh.described or mesh.group or len(mesh.local_ids) < mesh.size:
        return None
    if mesh.size == 1:
        return (lambda array: array) if compiled else Transfer(mesh.split)
    transfer = Transfer(mesh.split)
    return lambda array: PerReplica.from_split(transfer(array), mesh)


class BatchPlacer:
    """Cuts batches of all replicas' examples and puts the slices on their devices.

    Most batches have the shapes of the one before; of those nothing is asked again.

    Args:
      mesh: the replicas' devices.
      shard: this worker's share, and the number of replicas.
      compiled: True if a compiled program takes the batches, which may then stay on the host for one device.
    """

    def __init__(self, mesh: ReplicaMesh, shard: Shard, *, compiled: bool) -> None:
        self._replicas, self._shard = mesh.size, shard
        self._place = to_program(mesh) if compiled else to_devices(mesh)
        self._even = even_arrays(mesh, compiled)
        self._rows: dict[Any, int] = {}
        """The numbers of examples in batches that `_even` may place, by their structure, shapes and dtypes."""

    def __call__(self, batch: Nest) -> tuple[Any, int]:
        """The batch with `PerReplica` leaves (arrays, for one replica), and its number of examples."""
        leaves, structure = leaves_of(batch)
        kind = None
        if self._even is not None and set(map(type, leaves)) == _NUMPY:
            kind = structure, *map(_shape_and_dtype, leaves)
            rows = self._rows.get(kind)
            if rows is not None:
                return structure.unflatten(map(self._even, leaves)), rows
        whole = as_batch(batch)
        placed = self._place(worker_step(whole, self._shard))
        if kind is not None and whole.total and not whole.total % self._replicas and all(map(is_small_number, leaves)):
            if len(self._rows) >= _KINDS:
                self._rows.clear()
            self._rows[kind] = whole.total
        return placed, whole.total or 0


_NUMPY = {np.ndarray}
_KINDS = 256
"""Number of shapes of batches that are remembered."""
_shape_and_dtype = attrgetter("shape", "dtype")


def is_small_number(array: np.ndarray[Any, Any]) -> bool:
    """True for numbers that keep their values under JAX, whatever they are."""
    return _is_numbers(array) and not _is_wide(array)


def _is_numbers(leaf: Leaf) -> bool:
    return type(leaf) is np.ndarray and leaf.dtype.kind in "biuf"


class _Watched:
    """A placement that says once if integers of 64 bits do not fit into the 32 that JAX has by default.

    Args:
      place: the placement.
    """

    def __init__(self, place: Placement) -> None:
        self._place, self._said = place, False

    def __call__(self, step: WorkerStep) -> Nest:
        """Places the step's data."""
        # Once is enough, and to look at every integer of every step would take time.
        if not self._said and not jax.config.read("jax_enable_x64"):
            self._look(step.tree if step.parts is None else step.parts)
        return self._place(step)

    def _look(self, tree: Nest) -> None:
        if not any(map(_is_wide, jax.tree.leaves(tree))):
            return
        for path, leaf in jax.tree.leaves_with_path(tree):
            if not _is_wide(leaf):
                continue
            # Only integers turn into other numbers; floats lose digits, of which nobody needs to hear.
            dtype = jax.dtypes.canonicalize_dtype(leaf.dtype) if leaf.dtype.kind in "iu" else leaf.dtype
            worst = settings.out_of_range(np.asarray(leaf), dtype)
            if worst is not None:
                self._said = True
                warn(
                    f"{path_name(path)} holds {worst}, of which {dtype} keeps the last bits, and so another number. "
                    "HINT: map ids into its range in the pipeline, or call jax.config.update('jax_enable_x64', True)."
                )
                return


def _is_wide(leaf: Leaf) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.itemsize >= np.dtype(np.int64).itemsize


def to_host(mesh: ReplicaMesh) -> Placement:
    """Elements left on the host: `PerReplica` leaves of NumPy arrays, or plain NumPy arrays for one replica."""

    def place(step: WorkerStep) -> Nest:
        parts = step.cut() if mesh.size > 1 or step.parts is not None else [step.tree]
        parts = [jax.tree.map(np.asarray, part) for part in parts]
        return parts[0] if mesh.size == 1 else _join(parts, mesh)

    return place


def _place(step: WorkerStep, mesh: ReplicaMesh, put: Callable[[Nest], Nest]) -> Nest:
    # One call for an array: device by device it takes several times as long.
    if step.even and step.parts is None:
        leaves, structure = jax.tree.flatten(put(step.tree))
        return structure.unflatten([PerReplica.from_split(leaf, mesh) for leaf in leaves])
    if len(mesh.local_ids) == mesh.size and step.parts is None:
        return jax.tree.map(lambda *leaves: PerReplica.from_host(leaves, mesh), *map(_numeric, step.cut()))
    parts = [_put_by_jax(part, device) for part, device in zip(step.cut(), mesh.local_places, strict=True)]
    if step.rows is None:
        # The shapes of the other workers' parts are not known here.
        if len(mesh.local_ids) < mesh.size:
            return Apart(parts, mesh)
        return jax.tree.map(lambda *leaves: PerReplica.from_parts(leaves, mesh), *parts)
    rows = step.rows

    def whole(*leaves: Array) -> PerReplica:
        first = leaves[0]
        # The rows tell the shapes of the other workers' parts, which need not be asked for.
        signatures = [((count, *first.shape[1:]) if first.ndim else (), str(first.dtype)) for count in rows]
        return PerReplica.from_parts(leaves, mesh, signatures)

    return jax.tree.map(whole, *parts)


def _describe(step: WorkerStep, mesh: ReplicaMesh) -> Nest:
    """Shapes on devices that are only described: every replica has as many rows as the one with most, at least 1."""
    rows = max(1, *step.sizes)

    def one(leaf: Leaf) -> Any:
        _check_numeric(leaf, ())
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        if mesh.size == 1:
            return DescribedArray(leaf.shape, dtype, mesh.split)
        return PerReplica.from_split(DescribedArray((rows * mesh.size, *leaf.shape[1:]), dtype, mesh.split), mesh)

    return jax.tree.map(one, step.tree if step.parts is None else step.parts[0])


class Apart:
    """The local replicas' parts of an element. The other workers' shapes are asked for where it is used.

    That takes an exchange of all workers, which a thread that prefetches cannot hold.
    """

    def __init__(self, parts: Sequence[Nest], mesh: ReplicaMesh) -> None:
        self._parts, self._mesh = parts, mesh

    def join(self) -> Nest:
        """The element; all workers must call it."""
        return jax.tree.map(lambda *leaves: PerReplica.from_parts(leaves, self._mesh), *self._parts)


def _join(parts: Sequence[Nest], mesh: ReplicaMesh) -> Nest:
    """Ragged values. Replicas of another worker may differ where the local ones agree, so nobody looks at shapes."""
    return jax.tree.map(lambda *leaves: PerReplica(leaves, mesh), *parts)


def _put_share(tree: Nest, mesh: ReplicaMesh) -> Nest:
    """This worker's rows as its part of an array over all workers."""
    # All workers have as many replicas as this one.
    workers = mesh.size // len(mesh.local_ids)

    def put(leaf: Leaf) -> jax.Array:
        _check_numeric(leaf, ())
        whole = (leaf.shape[0] * workers, *leaf.shape[1:])
        return jax.make_array_from_process_local_data(mesh.split, np.asarray(leaf), whole)

    return jax.tree.map(put, tree)


def _put(tree: Nest, where: Transfer) -> Nest:
    leaves, structure = jax.tree.flatten(tree)
    if not all(type(leaf) is np.ndarray for leaf in leaves):
        return _put_by_jax(tree, where.sharding)
    try:
        return structure.unflatten(map(where, leaves))
    except TypeError:
        return _put_by_jax(tree, where.sharding)  # which tells the place of what is no number


def _put_by_jax(tree: Nest, where: Foreign) -> Nest:
    try:
        return jax.device_put(tree, where)
    except TypeError:
        # Looked for only now: a check of each leaf would cost time in every step.
        for path, leaf in jax.tree.leaves_with_path(tree):
            _check_numeric(leaf, path)
        raise


def _numeric(tree: Nest) -> Nest:
    for path, leaf in jax.tree.leaves_with_path(tree):
        _check_numeric(leaf, path)
    return jax.tree.map(np.asarray, tree)


def _check_numeric(leaf: Leaf, path: Sequence[Any]) -> None:
    if leaf.dtype.kind in "OSU":
        raise InputError(
            f"{path_name(path)} has dtype {leaf.dtype}, which no device can hold. HINT: turn it into numbers in the "
            "pipeline, or pass InputOptions(experimental_fetch_to_device=False)."
        )


def check_shard(mesh: ReplicaMesh, shard: Shard) -> None:
    """Checks that the workers of an input context are those of the mesh.

    Raises:
      InputError: if the replicas cannot be dealt out equally, or the context tells another number of them.
    """
    if shard.replicas != mesh.size or shard.replicas % shard.workers:
        raise InputError(
            f"the input context tells of {shard.replicas} replicas on {shard.workers} workers, and the strategy has "
            f"{mesh.size}. HINT: every worker needs the same number of replicas."
        )
