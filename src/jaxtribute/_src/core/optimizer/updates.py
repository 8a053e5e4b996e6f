"""Computing an update: on whole arrays, or with each replica's slice of the large ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxtribute._src.core.collectives.in_replica import all_reduce, contributions
from jaxtribute._src.core.optimizer.parameters import Parameters
from jaxtribute._src.core.optimizer.slicing import NotSliceable, Slice, own_slice, run_on_slices, whole
from jaxtribute._src.core.optimizer.slots import Slots, leaves_of, optax_rules
from jaxtribute._src.core.types import Array, Nest, Numeric
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from jaxtribute._src.core.values.slices import Cut
from jaxtribute._src.core.values.variable import Variable

Update = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], dict[str, Any]], list[Any]]
"""Maps gradients, the slots' values, the parameters and further arguments to the new parameters and new slots, in one
list."""


def whole_update(
    transform: optax.GradientTransformation, slots: Slots, parameters: Parameters, gradients: Any
) -> Update:
    """The transformation's update as a function of flat lists.

    Args:
      transform: the transformation, which sees parameters and gradients in the user's nest.
      slots: its state.
      parameters: the nest of the parameters.
      gradients: the structure of the gradients: the same, or that of some of the parameters.
    """

    def update(grads: Sequence[Any], values: Sequence[Any], params: Sequence[Any], extra: dict[str, Any]) -> list[Any]:
        nest = parameters.nest(params)
        with optax_rules():
            updates, state = transform.update(gradients.unflatten(grads), slots.state(values), nest, **extra)
            # Under these rules as well: an update may have another dtype than its parameter.
            fresh = parameters.tree.flatten_up_to(optax.apply_updates(nest, updates))
        parameters.check_shapes(fresh)
        return [*fresh, *leaves_of(state)]

    return update


class LossScale(Protocol):
    """A loss scale of mixed precision, as optimizers see it."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its state."""
        ...

    def adjusted(self, values: Sequence[Any], finite: Array, /) -> list[Any]:
        """The new values of `variables` after a step whose gradients were finite, or not."""
        ...


def guarded_update(update: Update, scale: LossScale) -> Update:
    """The update where the gradients are finite, and the old arrays where not; adjusts the loss scale behind the slots.

    Args:
      update: the update of parameters and slots.
      scale: the loss scale, whose variables' values come behind the slots' and are returned behind them.
    """
    extra = len(scale.variables)

    def guarded(grads: Sequence[Any], values: Sequence[Any], params: Sequence[Any], more: dict[str, Any]) -> list[Any]:
        # The loss scale has no part in the update of the slots before it.
        count = len(values) - extra
        finite = all_finite(grads)
        old, new = [*params, *values[:count]], update(grads, values[:count], params, more)
        kept = [lax.select_n(finite, jnp.asarray(a), jnp.asarray(b)) for a, b in zip(old, new, strict=True)]
        return [*kept, *scale.adjusted(values[count:], finite)]

    return guarded


def replaced_at(
    places: Sequence[int], values: Sequence[Any], change: Callable[[list[Any]], Sequence[Any]]
) -> list[Any]:
    """The values, with what `change` makes of some of them, all in one call, in their places.

    Args:
      places: indices of the values to replace; without any, `change` is not called.
      values: the values.
      change: a function of a list of values that gives as many others, in their order.
    """
    found = list(values)
    if places:
        for place, value in zip(places, change([found[place] for place in places]), strict=True):
            found[place] = value
    return found


def all_finite(nest: Nest) -> jax.Array:
    """True if no element of a nest of arrays is infinite or NaN: a boolean scalar."""
    bad = jnp.zeros((), jnp.int32)
    for array in jax.tree.leaves(nest):
        if jnp.issubdtype(array.dtype, jnp.inexact):
            bad = bad + jnp.sum(~jnp.isfinite(array), dtype=jnp.int32)
    return bad == 0


def sliced_update(
    update: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]],
    sliced: Mapping[int, Cut],
    grads: Sequence[Any],
    pieces: Sequence[Any],
    params: Sequence[Any],
) -> list[Any]:
    """Updates, in one replica's program, with the slots of `sliced` parameters in slices.

    Args:
      update: the whole update of gradients, slots and parameters.
      sliced: the parameters that are updated in slices, by index, with the way they are cut.
      grads: the reduced gradients and what else is reduced with them: `Slice`s, or whole arrays.
      pieces: the slots as the replica holds them, likewise.
      params: the parameters, likewise.

    Returns:
      The new parameters and the new slots, each as it was given: the vector of a slice, or whole.
    """
    given = list(grads), list(pieces), list(params)
    try:
        # The update is traced for whole arrays, as Optax knows no other, and then evaluated on pieces.
        closed = jax.make_jaxpr(update)(*jax.tree.map(_whole_shape, given))
        results = run_on_slices(closed, [*grads, *pieces, *_all_cut(params, sliced)])
    except NotSliceable:
        # Exact all the same: everything is gathered, updated whole by each replica, and cut again.
        results = update(*jax.tree.map(whole, given))
    return [_as_given(new, old) for new, old in zip(results, [*params, *pieces], strict=True)]


def _all_cut(values: Sequence[Any], sliced: Mapping[int, Cut]) -> list[Any]:
    """Values of all parameters, with this replica's piece of each that is sliced."""
    return [_cut(value, sliced.get(place)) for place, value in enumerate(values)]


def _cut(value: Any, cut: Cut | None) -> Any:
    """This replica's piece of what is not cut yet, if it is to be."""
    # Gradients for each example have another shape.
    if cut is None or isinstance(value, Slice) or value.shape != cut.shape:
        return value
    return own_slice(value, cut)


def _as_given(value: Numeric, given: Any) -> Any:
    """A result in the form that its old value has."""
    if not isinstance(given, Slice):
        return whole(value)
    return (value if isinstance(value, Slice) else own_slice(value, given.cut)).data


def _whole_shape(value: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array, or of the whole one that a `Slice` is a piece of."""
    return jax.ShapeDtypeStruct(value.shape, _dtype(value))


def _dtype(value: Numeric) -> Any:
    return value.data.dtype if isinstance(value, Slice) else value.dtype


def reduce_to_slices(
    grads: Sequence[Any], sliced: Mapping[int, Cut], replicas: int, op: ReduceOp | None, idle: tuple[int, ...] = ()
) -> list[Any]:
    """All-reduced gradients, and reduce-scattered ones for sliced parameters.

    Args:
      grads: this replica's gradients; a `Slice` is one of a reduced gradient.
      sliced: those for parameters that are updated in slices, by index, with the way these are cut.
      replicas: how many replicas there are.
      op: how they are reduced; None if they are reduced already.
      idle: the replicas that got no data; see `contributions`.
    """
    if op is None:
        # Reduced gradients are the same everywhere: each replica cuts its own piece, and nothing is sent.
        given = [grad if isinstance(grad, Slice) else jnp.asarray(grad) for grad in grads]
        return _all_cut(given, sliced)
    small = [i for i, grad in enumerate(grads) if i not in sliced and not isinstance(grad, Slice)]
    results = replaced_at(small, grads, lambda some: all_reduce(some, op, replicas, idle=idle))
    # Sorted: every replica must come to the collectives in the same order.
    large = [i for i in sorted(sliced) if not isinstance(grads[i], Slice)]
    arrays, count = contributions([grads[i] for i in large], op, replicas, idle)
    for i, array in zip(large, arrays, strict=True):
        piece = sliced[i].scattered(array)
        results[i] = Slice(reduction_of(op).finish(piece, count, _dtype(grads[i])), sliced[i])
    return results
