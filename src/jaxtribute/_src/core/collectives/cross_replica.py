"""Reductions and gathers of whole distributed values, in cross-replica context."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec, Sharding

from jaxtribute._src.core import settings
from jaxtribute._src.core.collectives import in_replica
from jaxtribute._src.core.collectives.in_replica import elements_along
from jaxtribute._src.core.collectives.summation import Summation
from jaxtribute._src.core.jaxprs.core import Tracer, in_words, is_traced
from jaxtribute._src.core.types import Leaf, Nest, Numeric
from jaxtribute._src.core.values.agreement import exchanged
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica, ReplicaValues, without_padding
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from jaxtribute._src.core.values.mesh import AXIS, ReplicaMesh
from jaxtribute._src.core.values.numbers import summed
from jaxtribute._src.core.values.operators import operand
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError, VariableError

Axes = tuple[int, ...] | None


def check_axes(axis: int | tuple[int, ...] | None, rank: int) -> Axes:
    """The axes to reduce, not negative, or None.

    Raises:
      ArgumentError: an axis that an array of that rank does not have.
    """
    if axis is None:
        return None
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = [number.item() if isinstance(number, np.integer) else number for number in axes]
    for number in axes:
        # True and False are ints of Python's; an axis of such a name is a slip, such as `keepdims` in the wrong place.
        if not isinstance(number, int) or isinstance(number, bool):
            raise ArgumentTypeError(f"axis must be an int, a tuple of ints or None, not {axis!r}. HINT: axis=(0, 1).")
        if not -rank <= number < rank:
            raise ArgumentError(
                f"axis {number!r} is out of range for a value of rank {rank} on each replica. "
                "HINT: use axis=None to reduce over the replicas only."
            )
    # In one form, since axes are static arguments of kernels: another spelling would be compiled once more.
    return tuple(sorted({number % rank for number in axes}))


def reduce_value(value: Numeric, op: ReduceOp, axis: int | tuple[int, ...] | None, mesh: ReplicaMesh) -> Any:
    """Reduces one distributed or plain value over the replicas, and along `axis` within each.

    Returns:
      An array. MEAN along axes divides by the true number of elements, however uneven the replicas are.
    """
    if not isinstance(value, ReplicaValues) and not (op is ReduceOp.SUM and axis is None):
        value = of_workers(value, mesh)
    if isinstance(value, PerReplica):
        value = as_array(value)
        axes = check_axes(axis, value.component_ndim)
        _check_summable(value, axes)
        return _call(_reduce_split, value.data, _Layout.of(value), op, axes, value.mesh)
    if isinstance(value, Mirrored):
        data, replicas = value.data, value.mesh.size
    else:
        data, replicas = value, mesh.size
        if replicas > 1 and op is ReduceOp.SUM and axis is None:
            raise ArgumentError(
                f"reduce('SUM') over {replicas} replicas of {data!r}, which is not a distributed value, does not say "
                "whether each replica holds it. HINT: return arrays of the replicas, such as jnp.asarray(x.shape[0]), "
                "as equal numbers of Python become one; or use 'MEAN'."
            )
    reduction = reduction_of(op)
    array = reduction.prepared(data)
    axes = check_axes(axis, array.ndim)
    total = array if axes is None else summed(array, axes)
    # Each replica holds the same: nothing need be sent.
    count = 1 if axes is None else elements_along(array.shape, axes)
    return reduction.finish(reduction.of_equals(total, replicas), count, jnp.result_type(data))


def reduce_leaves(values: Sequence[Any], op: ReduceOp, mesh: ReplicaMesh, summation: Summation) -> list[Any]:
    """Reduces many values without an axis: the arrays go together, as every program and every message costs."""
    whole = [value for value in values if isinstance(value, PerReplica) and not value.is_ragged]
    # One program has one set of replicas that it leaves out.
    alike = all(value.idle == whole[0].idle for value in whole)
    # One process's compiled program brings them together by itself.
    worth = mesh.peers is not None or (len(whole) > 1 and not isinstance(whole[0].data, Tracer))
    if not (whole and alike and worth):
        return [reduce_value(value, op, None, mesh) for value in values]
    totals = iter(reduce_many(whole, op, summation))
    # By identity: `==` of values compares element by element.
    together = set(map(id, whole))
    return [next(totals).data if id(value) in together else reduce_value(value, op, None, mesh) for value in values]


def reduce_many(values: Sequence[PerReplica], op: ReduceOp, summation: Summation | None = None) -> list[Mirrored]:
    """Reduces several per-replica values over the replicas in one program; every device gets the results.

    Args:
      values: values of one strategy.
      op: the reduction.
      summation: how they are added up; by default as XLA does it best.

    Raises:
      ShapeError: a value whose shape or dtype differs between replicas.
    """
    mesh = values[0].mesh
    for value in values:
        if value.is_ragged:
            raise ShapeError(
                f"all_reduce needs equal arrays from all replicas, which gave "
                f"{list(map(_kind, value.values))}. HINT: reduce to one shape and dtype first."
            )
    scalars = tuple(value.scalar for value in values)
    arrays = [value.data for value in values]
    # Workers compare what they are about to do before they do it: after this line one that differs hangs with the
    # others.
    if not isinstance(arrays[0], Tracer):
        mesh.entering(f"all_reduce of {len(arrays)} values", lambda: _described(op, arrays))
    try:
        totals = _reduce_mapped(arrays, scalars, op, values[0].idle, summation, mesh)
    except (RuntimeError, ValueError) as error:
        mesh.explain(error)
        raise
    if not isinstance(totals[0], Tracer):
        mesh.throttle(lambda: totals)
    return [Mirrored(total, mesh) for total in totals]


def gather_value(value: Numeric, axis: int) -> Any:
    """Concatenates the replicas' arrays along `axis` into one array that every device holds.

    Raises:
      ArgumentError: scalars, or an axis that is negative or out of range.
    """
    value = as_array(value) if isinstance(value, PerReplica) else value
    array = value.data if isinstance(value, Mirrored) else value
    rank = value.component_ndim if isinstance(value, PerReplica) else np.ndim(array)
    axis = settings.gather_axis(axis, rank)
    if not isinstance(value, (PerReplica, Mirrored)):
        return value
    if isinstance(value, Mirrored):
        # Each replica has the same value: a gather would give its copies one after another.
        return _call(_repeat, array, axis, value.mesh.size, value.mesh)
    if value.shapes is None:
        return _call(_gather_split, value.data, axis, value.mesh)
    # Pieces may have different lengths along the axis on which they are joined, and along no other.
    if len({shape[:axis] + shape[axis + 1 :] for shape in value.shapes}) > 1:
        raise ShapeError(
            f"the replicas' values have shapes {list(value.shapes)} and cannot be joined along axis {axis}. "
            "HINT: gather along the axis in which they differ."
        )
    return _call(_gather_ragged, value.data, value.shapes, axis, value.mesh)


def pick_value(value: PerReplica, replica: int) -> Mirrored:
    """The component of one replica, on every replica's device, those of other workers too.

    Args:
      value: equal arrays from all replicas.
      replica: which one's.
    """
    return Mirrored(_pick(value.data, value.scalar, replica, value.mesh), value.mesh)


def of_workers(value: Numeric, mesh: ReplicaMesh) -> Any:
    """A value that a worker holds for all of its replicas; as a `PerReplica` if other workers may hold another."""
    # A program that is traced is the same for all workers, and so is an array over their devices.
    if mesh.peers is None or is_traced():
        return value
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return value
    return PerReplica.from_parts([np.asarray(value)] * len(mesh.local_ids), mesh)


def once_a_worker(value: Numeric, axis: int, mesh: ReplicaMesh) -> Any:
    """A value to gather along `axis`, for `gather_value`: of a plain array each worker's, once for its replicas."""
    if mesh.peers is None or isinstance(value, ReplicaValues):
        return value
    axis, replicas = settings.gather_axis(axis, np.ndim(value)), len(mesh.local_ids)
    if is_traced() or (isinstance(value, jax.Array) and not value.is_fully_addressable):
        return jnp.concatenate([value] * (mesh.size // replicas), axis)  # the same for all, as in `of_workers`
    array = np.asarray(value)
    return PerReplica.from_parts([array] + [np.take(array, [], axis)] * (replicas - 1), mesh)


def as_array(value: PerReplica) -> PerReplica:
    """The value as one global array, also if its components are Python numbers or lie on the host.

    Raises:
      ArgumentTypeError: components that are neither arrays nor numbers, or differ in dtype or rank.
    """
    if not value.is_tuple:
        return value
    # Traced ones would be one array if they fitted.
    apart = any(isinstance(part, Tracer) for part in value.values)
    whole = value if apart else PerReplica.from_parts(list(map(np.asarray, value.values)), value.mesh)
    if whole.is_tuple:
        raise ArgumentTypeError(
            f"the replicas' values {list(map(_kind, value.values))} cannot be combined. HINT: return arrays of one "
            "dtype and rank from every replica."
        )
    return whole


def _kind(part: Numeric) -> str:
    """The dtype and shape of an array, or the class of anything else, for a message."""
    return f"{part.dtype}{list(part.shape)}" if isinstance(part, (jax.Array, np.ndarray)) else type(part).__name__


def _check_summable(value: PerReplica, axes: Axes) -> None:
    kept: set[tuple[int, ...]] = set()
    for shape in value.shapes or ():
        # Axes that are reduced may differ from replica to replica, the others may not.
        kept.add(tuple(size for axis, size in enumerate(shape) if axis not in (axes or ())))
    if len(kept) > 1:
        raise ShapeError(
            f"the replicas' values have shapes {list(value.shapes or ())} and cannot be added up. "
            "HINT: reduce along the axis in which they differ, e.g. axis=0 for the batch."
        )


# A static argument of the kernels: hashed, and without arrays.
class _Layout(NamedTuple):
    """Layout of the replicas' components in a global array; see `PerReplica`."""

    scalar: bool
    shapes: tuple[tuple[int, ...], ...] | None
    idle: tuple[int, ...]

    @classmethod
    def of(cls, value: PerReplica) -> _Layout:
        return cls(value.scalar, value.shapes, value.idle)

    def stack(self, array: Numeric, replicas: int) -> Any:
        """One row a replica, with zeros in place of padding."""
        if self.scalar:
            return array
        stacked = array.reshape(replicas, array.shape[0] // replicas, *array.shape[1:])
        for axis, sizes in enumerate(zip(*(self.shapes or ()), strict=True)):
            if len(set(sizes)) > 1:
                shape = [1] * stacked.ndim
                shape[0], shape[axis + 1] = replicas, stacked.shape[axis + 1]
                inside = np.arange(stacked.shape[axis + 1])[None, :] < np.asarray(sizes)[:, None]
                # A mask for each axis that is padded; together they leave the corner that holds the component.
                mask = jnp.asarray(inside.reshape(shape))
                # Padding is zeros when it is made, but what was computed of it need not be.
                stacked = jnp.where(jnp.broadcast_to(mask, stacked.shape), stacked, jnp.zeros_like(stacked))
        return stacked

    def divisor(self, local: tuple[int, ...], axes: tuple[int, ...], replicas: int) -> int:
        """Number of elements of replicas with data that a mean along `axes` divides by."""
        count = 0
        for replica, shape in enumerate(self.shapes or (local,) * replicas):
            # Idle replicas have run on padding, whose elements are none of the data.
            if replica not in self.idle:
                count += elements_along(shape, axes)
        return count


def _call(kernel: Any, data: Leaf, *args: Nest) -> Any:
    """Runs a jitted kernel; outside a trace, bounds what is in flight on the mesh (its last argument)."""
    mesh: ReplicaMesh = args[-1]
    # Only of what runs: a program that is being traced is announced, and counted, when it is called.
    if not isinstance(data, Tracer):
        mesh.entering(kernel.__name__.strip("_"), lambda: _described(*args[:-1], [data]))
    try:
        result = kernel(data, *args)
    except (RuntimeError, ValueError) as error:
        mesh.explain(error)
        raise
    if not isinstance(result, Tracer):
        mesh.throttle(lambda: result)
    return result


def _described(*what: Nest) -> list[str]:
    """A reduction or gather in words, for workers to compare: its arguments, then its arrays."""
    return [*map(str, what[:-1]), *map(in_words, what[-1])]


def _everywhere(array: Numeric, mesh: ReplicaMesh) -> Any:
    sharding: Sharding = mesh.replicated
    return lax.with_sharding_constraint(array, sharding)


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def _reduce_mapped(
    data: list[Any],
    scalars: tuple[bool, ...],
    op: ReduceOp,
    idle: tuple[int, ...],
    summation: Summation | None,
    mesh: ReplicaMesh,
) -> list[Any]:
    def reduce(*parts: Nest) -> list[Any]:
        return in_replica.all_reduce(list(map(_component, parts, scalars)), op, mesh.size, summation, idle)

    return mesh.map_replicas(reduce, PartitionSpec(AXIS), PartitionSpec())(*data)


def _component(part: Numeric, scalar: bool) -> Any:
    """A replica's component; scalars lie in a global array as vectors of one element."""
    return part.reshape(()) if scalar else part


@partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _reduce_split(data: Leaf, layout: _Layout, op: ReduceOp, axes: Axes, mesh: ReplicaMesh) -> Any:
    reduction = reduction_of(op)
    # Idle replicas have run on padding.
    stacked = reduction.kept_rows(layout.stack(reduction.prepared(data), mesh.size), layout.idle)
    # No collective is written here: axis 0 lies over the devices, and XLA makes the sum along it an all-reduce.
    total = summed(stacked, (0, *(axis + 1 for axis in axes or ())))
    count = layout.divisor(stacked.shape[1:], axes or (), mesh.size)
    return _everywhere(reduction.finish(total, count, data.dtype), mesh)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _pick(data: Leaf, scalar: bool, replica: int, mesh: ReplicaMesh) -> Any:
    def pick(part: Numeric) -> Any:
        return in_replica.from_replica(_component(part, scalar), replica)

    return mesh.map_replicas(pick, PartitionSpec(AXIS), PartitionSpec())(data)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _gather_ragged(data: Leaf, shapes: tuple[tuple[int, ...], ...], axis: int, mesh: ReplicaMesh) -> Any:
    # Whole on every device first: pieces of uneven sizes do not lie along the mesh.
    stacked = _everywhere(data, mesh).reshape(mesh.size, data.shape[0] // mesh.size, *data.shape[1:])
    return _everywhere(jnp.concatenate(list(map(without_padding, stacked, shapes)), axis), mesh)


@partial(jax.jit, static_argnums=(1, 2))
def _gather_split(data: Leaf, axis: int, mesh: ReplicaMesh) -> Any:
    # Along axis 0 the replicas' slices follow each other already.
    if axis:
        stacked = data.reshape(mesh.size, data.shape[0] // mesh.size, *data.shape[1:])
        data = jnp.concatenate(list(stacked), axis)
    return _everywhere(data, mesh)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _repeat(data: Leaf, axis: int, times: int, mesh: ReplicaMesh) -> Any:
    return _everywhere(jnp.concatenate([data] * times, axis), mesh)


def same_of(value: PerReplica, what: str, mesh: ReplicaMesh) -> Any:
    """The array that all replicas gave; a `VariableError` if they gave different ones."""
    parts = list(map(np.asarray, value.values))
    own = [f"{part.shape} {hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest()}" for part in parts]
    told = [own] if mesh.peers is None else exchanged(mesh.peers, what, own)
    if len(set(chain.from_iterable(told))) > 1:
        raise VariableError(
            f"{what} differs between the replicas; here are {parts}. HINT: reduce it "
            "before (ctx.all_reduce), or have it reduced: reduce_op='SUM' or 'MEAN'; value= and grad= are as gradients."
        )
    return mesh.join_copies(value.values)


def joined_gradients(grads: Sequence[Leaf], op: ReduceOp | None, mesh: ReplicaMesh) -> list[Any]:
    """The gradients of a `merge_call` as what is still to be reduced: `PerReplica` values; all others are reduced.

    Args:
      grads: for each gradient all replicas' arrays, or the one array that all of them gave.
      op: how they are reduced; None if they are, and all replicas' arrays are equal.
      mesh: the replicas' devices.
    """
    joined: list[Any] = []
    for grad in grads:
        if isinstance(grad, PerReplica):
            joined.append(grad if op is not None else same_of(grad, "a gradient with reduce_op=None", mesh))
            continue
        array = operand(grad)  # all replicas gave this one
        joined.append(array if op is None else reduction_of(op).of_equals(array, mesh.size))
    return joined
