"""Computing an update: on whole arrays, or with each replica's slice of the large ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxtribute.collectives.manual import all_reduce, contributions, divided
from jaxtribute.optimizer.slicing import NotSliceable, Slice, flat, own_slice, run_on_slices, whole
from jaxtribute.optimizer.slots import Slots, leaves_of, optax_rules
from jaxtribute.values.enums import ReduceOp
from jaxtribute.values.mesh import AXIS

Update = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]
"""Maps gradients, the slots' values and the parameters to the new parameters and new slots, in one list."""


def whole_update(transform: optax.GradientTransformation, slots: Slots) -> Update:
    """The transformation's update as a function of flat lists."""

    def update(grads: Sequence[Any], values: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        params = list(params)
        with optax_rules():
            updates, state = transform.update(list(grads), slots.state(values), params)
            fresh = jax.tree.leaves(optax.apply_updates(params, updates))
        return [*fresh, *leaves_of(state)]

    return update


def sliced_update(
    update: Update,
    slots: Slots,
    sliced: frozenset[int],
    replicas: int,
    grads: Sequence[Any],
    pieces: Sequence[Any],
    params: Sequence[Any],
    op: ReduceOp | None,
    idle: tuple[int, ...] = (),
) -> list[Any]:
    """Reduces the gradients and updates, in one replica's program, with the slots of `sliced` parameters in slices.

    Args:
      update: the whole update.
      slots: the slots' variables and owners.
      sliced: indices of the parameters whose slots are slices.
      replicas: how many replicas there are.
      grads: this replica's gradients.
      pieces: the slots as the replica holds them: vectors of slices, or whole arrays.
      params: the parameters.
      op: how gradients are reduced; None if they are reduced already.
      idle: the replicas that got no data; see `contributions`.

    Returns:
      The new parameters, whole, and the new slots as `pieces` were.
    """
    shapes = [params[owner].shape if owner is not None and owner in sliced else None for owner in slots.owners]
    state = [piece if shape is None else Slice(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]
    reduced = _reduce_gradients(grads, sliced, replicas, op, idle)
    try:
        avals = [[jax.ShapeDtypeStruct(x.shape, _dtype(x)) for x in xs] for xs in (reduced, state, params)]
        closed = jax.make_jaxpr(update)(*avals)
        cut = [own_slice(p, replicas) if i in sliced else p for i, p in enumerate(params)]
        results = run_on_slices(closed, [*reduced, *state, *cut], replicas)
    except NotSliceable:
        everything = [[whole(x) if isinstance(x, Slice) else x for x in xs] for xs in (reduced, state)]
        results = update(everything[0], everything[1], params)
    count = len(params)
    fresh = [whole(x) if isinstance(x, Slice) else x for x in results[:count]]
    kept: list[Any] = []
    for result, shape in zip(results[count:], shapes, strict=True):
        if shape is None:
            kept.append(whole(result) if isinstance(result, Slice) else result)
        else:
            kept.append((result if isinstance(result, Slice) else own_slice(result, replicas)).data)
    return [*fresh, *kept]


def _dtype(value: Any) -> Any:
    return value.data.dtype if isinstance(value, Slice) else value.dtype


def _reduce_gradients(
    grads: Sequence[Any], sliced: frozenset[int], replicas: int, op: ReduceOp | None, idle: tuple[int, ...]
) -> list[Any]:
    """All-reduced gradients, and reduce-scattered ones for the sliced parameters."""
    if op is None:
        return [own_slice(grad, replicas) if i in sliced else grad for i, grad in enumerate(map(jnp.asarray, grads))]
    results: list[Any] = list(grads)
    small = [i for i in range(len(grads)) if i not in sliced]
    for i, total in zip(small, all_reduce([grads[i] for i in small], op, replicas, idle=idle), strict=True):
        results[i] = total
    large = sorted(sliced)
    arrays, count = contributions([grads[i] for i in large], op, replicas, idle)
    for i, array in zip(large, arrays, strict=True):
        piece = lax.psum_scatter(flat(array, replicas), AXIS, scatter_dimension=0, tiled=True)
        results[i] = Slice(piece if op is ReduceOp.SUM else divided(piece, count), array.shape)
    return results
