"""Reductions and gathers of whole distributed values, in cross-replica context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec, Sharding

from jaxtribute.collectives import manual
from jaxtribute.collectives.manual import divided, summable
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError
from jaxtribute.values.distributed import Mirrored, PerReplica
from jaxtribute.values.enums import ReduceOp
from jaxtribute.values.mesh import AXIS, ReplicaMesh

Axes = tuple[int, ...] | None


def check_axes(axis: int | tuple[int, ...] | None, rank: int) -> Axes:
    """The axes to reduce, not negative, or None.

    Raises:
      ArgumentError: an axis that an array of that rank does not have.
    """
    if axis is None:
        return None
    axes = axis if isinstance(axis, tuple) else (axis,)
    for one in axes:
        if not isinstance(one, int) or isinstance(one, bool):
            raise ArgumentTypeError(f"axis must be an int, a tuple of ints or None, not {axis!r}. HINT: axis=(0, 1).")
        if not -rank <= one < rank:
            raise ArgumentError(
                f"axis {one!r} is out of range for a value of rank {rank} on each replica. "
                "HINT: use axis=None to reduce over the replicas only."
            )
    return tuple(sorted({one % rank for one in axes}))


def reduce_value(value: Any, op: ReduceOp, axis: int | tuple[int, ...] | None, mesh: ReplicaMesh) -> Any:
    """Reduces one distributed or plain value over the replicas, and along `axis` within each.

    Returns:
      An array. MEAN along axes divides by the true number of elements, however uneven the replicas are.
    """
    if isinstance(value, PerReplica):
        if value.is_ragged:
            return _reduce_ragged(value, op, axis)
        rank = 0 if value.scalar else value.data.ndim
        return _call(_reduce_split, value.data, value.scalar, op, check_axes(axis, rank), value.mesh)
    if isinstance(value, Mirrored):
        data, replicas = value.data, value.mesh.size
    else:
        data, replicas = value, mesh.size
        if replicas > 1 and op is ReduceOp.SUM and axis is None:
            raise ArgumentError(
                f"reduce('SUM') over {replicas} replicas of {data!r}, which is not a distributed value, does not say "
                "whether each replica holds it. HINT: pass what strategy.run returned, or use 'MEAN'."
            )
    array = summable(data) if op is ReduceOp.SUM or axis is not None else jnp.asarray(data)
    axes = check_axes(axis, array.ndim)
    if op is ReduceOp.SUM:
        total = array if axes is None else array.sum(axes, dtype=array.dtype)
        return total * jnp.asarray(replicas, total.dtype) if replicas > 1 else total
    if axes is None:
        return array
    return divided(array.sum(axes, dtype=array.dtype), math.prod(array.shape[one] for one in axes))


def reduce_many(values: Sequence[PerReplica], op: ReduceOp) -> list[Mirrored]:
    """Reduces several per-replica values over the replicas in one program; every device gets the results.

    Raises:
      ShapeError: a value whose shape or dtype differs between replicas.
    """
    mesh = values[0].mesh
    for value in values:
        if value.is_ragged:
            raise ShapeError(
                f"all_reduce needs equal arrays from all replicas, which gave "
                f"{[getattr(part, 'shape', part) for part in value.values]}. HINT: reduce to equal shapes first."
            )
    scalars = tuple(value.scalar for value in values)
    totals = _reduce_mapped([value.data for value in values], scalars, op, mesh)
    mesh.throttle(totals)
    return [Mirrored(total, mesh) for total in totals]


def gather_value(value: Any, axis: int, mesh: ReplicaMesh) -> Any:
    """Concatenates the replicas' arrays along `axis` into one array that every device holds.

    Raises:
      ArgumentError: scalars, or an axis that is negative or out of range.
    """
    if not isinstance(value, (PerReplica, Mirrored)):
        return value
    parts: Any = value.values if isinstance(value, Mirrored) or value.is_ragged else None
    rank = _rank(value)
    if rank == 0 or not isinstance(axis, int) or not 0 <= axis < rank:
        raise ArgumentError(
            f"cannot gather values of rank {rank} along axis {axis!r}. "
            f"HINT: gather needs 0 <= axis < rank; give scalars an axis first, e.g. x[None]."
        )
    if isinstance(value, Mirrored):
        return _call(_repeat, value.data, axis, value.mesh.size, value.mesh)
    if parts is not None:
        return _concatenate_ragged(parts, axis)
    return _call(_gather_split, value.data, axis, value.mesh)


def _rank(value: PerReplica | Mirrored) -> int:
    if isinstance(value, PerReplica):
        return 0 if value.scalar else value.values[0].ndim if value.is_ragged else value.data.ndim
    return value.data.ndim


def _call(kernel: Any, data: Any, *args: Any) -> Any:
    """Runs a jitted kernel; outside a trace, bounds what is in flight on the mesh (its last argument)."""
    result = kernel(data, *args)
    if not isinstance(result, jax.core.Tracer):
        args[-1].throttle(result)
    return result


def _everywhere(array: Any, mesh: ReplicaMesh) -> Any:
    sharding: Sharding = mesh.replicated
    return lax.with_sharding_constraint(array, sharding)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _reduce_mapped(data: list[Any], scalars: tuple[bool, ...], op: ReduceOp, mesh: ReplicaMesh) -> list[Any]:
    def reduce(*parts: Any) -> list[Any]:
        local = [part.reshape(()) if scalar else part for part, scalar in zip(parts, scalars, strict=True)]
        return manual.all_reduce(local, op, mesh.size)

    mapped = jax.shard_map(
        reduce, mesh=mesh.mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(), check_vma=False
    )
    return mapped(*data)


@partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _reduce_split(data: Any, scalar: bool, op: ReduceOp, axes: Axes, mesh: ReplicaMesh) -> Any:
    array = summable(data)
    stacked = array if scalar else array.reshape(mesh.size, array.shape[0] // mesh.size, *array.shape[1:])
    over = (0, *(axis + 1 for axis in axes or ()))
    total = stacked.sum(over, dtype=array.dtype)
    if op is ReduceOp.MEAN:
        total = divided(total, math.prod(stacked.shape[axis] for axis in over))
    return _everywhere(total, mesh)


@partial(jax.jit, static_argnums=(1, 2))
def _gather_split(data: Any, axis: int, mesh: ReplicaMesh) -> Any:
    if axis:
        stacked = data.reshape(mesh.size, data.shape[0] // mesh.size, *data.shape[1:])
        data = jnp.concatenate(list(stacked), axis)
    return _everywhere(data, mesh)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _repeat(data: Any, axis: int, times: int, mesh: ReplicaMesh) -> Any:
    return _everywhere(jnp.concatenate([data] * times, axis), mesh)


def _reduce_ragged(value: PerReplica, op: ReduceOp, axis: int | tuple[int, ...] | None) -> Any:
    home = value.mesh.local_devices[0]
    parts = [jax.device_put(summable(part), home) for part in value.values]
    axes = check_axes(axis, parts[0].ndim)
    sums = [part if axes is None else part.sum(axes, dtype=part.dtype) for part in parts]
    shapes = [part.shape for part in sums]
    if any(shape != shapes[0] for shape in shapes):
        raise ShapeError(
            f"the replicas' values have shapes {[part.shape for part in parts]} and cannot be added up. "
            "HINT: reduce along the axis in which they differ, e.g. axis=0 for the batch."
        )
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    if op is ReduceOp.SUM:
        return total
    return divided(total, sum(math.prod(part.shape[axis] for axis in axes or ()) for part in parts))


def _concatenate_ragged(parts: tuple[Any, ...], axis: int) -> Any:
    home = next(iter(parts[0].devices()))
    return jnp.concatenate([jax.device_put(part, home) for part in parts], axis)
