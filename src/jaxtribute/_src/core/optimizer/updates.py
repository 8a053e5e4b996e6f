"""Parts of an update: on each replica's slice of large arrays, and left out if a loss scale says so.

Optimizers update most arrays element by element. A replica that holds one slice of the flattened gradient,
parameter and slots can then compute its slice of the result alone; a norm over a whole array is a local sum
and a `psum`. `run_on_slices` interprets an update's jaxpr that way, and says so if it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core.collectives.in_replica import all_reduce, contributions
from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, JaxprEqn, aval, bind
from jaxtribute._src.core.jaxprs.kinds import ELEMENTWISE
from jaxtribute._src.core.jaxprs.walking import Handler, called, evaluate
from jaxtribute._src.core.types import Array, DType, Nest, Numeric
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from jaxtribute._src.core.values.mesh import AXIS, reduced
from jaxtribute._src.core.values.slices import Cut, alike
from jaxtribute._src.core.values.variable import Variable

Update = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], dict[str, Any]], list[Any]]
"""Maps gradients, the slots' values, the parameters and further arguments to the new parameters and new slots, in one
list."""
# Maxima are gathered, as the all-reduce of some devices would lose a NaN.
_COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": lambda local: reduced(lax.psum, local),
    "reduce_max": lambda local: jnp.max(lax.all_gather(local, AXIS)),
    "reduce_min": lambda local: jnp.min(lax.all_gather(local, AXIS)),
}


_RESHAPING = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")


class NotSliceable(Exception):  # noqa: N818
    """The update mixes elements in a way that slices do not allow."""


@dataclass(frozen=True)
class Slice:
    """This replica's piece of an array that is cut by `cut`."""

    data: Any
    cut: Cut

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return self.cut.shape


def own_slice(array: Numeric, cut: Cut) -> Slice:
    """This replica's piece of an array that every replica holds."""
    return Slice(cut.piece_of(array), cut)


def as_cut(array: Numeric, cut: Cut | None) -> Any:
    """An array that holds this replica's piece as such a piece; another one as it is."""
    return array if cut is None else Slice(array, cut)


def whole(value: Any) -> Any:
    """The array whose pieces the replicas hold, on every replica; what is whole already as it is."""
    return value.cut.joined(value.data) if isinstance(value, Slice) else value


def run_on_slices(closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
    """Evaluates a program whose inputs are `Slice`s or whole arrays; its outputs are either.

    Raises:
      NotSliceable: some operation on slices is neither elementwise nor a reduction of a whole array.
    """

    def handle(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
        return _equation(eqn, operands, handle) if any(isinstance(one, Slice) for one in operands) else None

    return evaluate(closed, inputs, handle)


def _equation(eqn: JaxprEqn, arguments: list[Any], handle: Handler) -> Sequence[Any]:
    name = eqn.primitive.name
    if name in ELEMENTWISE:
        return _elementwise(eqn, arguments)
    # A reduction of some axes only would mix, in flat pieces, elements of several replicas.
    every_axis = name in _COLLECTIVES and len(eqn.params["axes"]) == len(arguments[0].shape)
    # The collectives, and the neutral values for padding, are those of numbers.
    if every_axis and arguments[0].data.dtype != np.bool_:
        return [_reduce(eqn, arguments[0])]
    # The elements of a flat piece, and of rows, are in order whatever the shape; a cut of another axis has others.
    flat = name in _RESHAPING and all(
        not isinstance(argument, Slice) or not argument.cut.axis for argument in arguments
    )
    if flat and _keeps_elements(eqn, arguments[0].shape):
        return [_reshaped(arguments[0], _shape(eqn))]
    inner = called(eqn)
    if inner is not None:
        return evaluate(inner, arguments, handle)
    raise NotSliceable(name)


def _reshaped(piece: Slice, shape: tuple[int, ...]) -> Slice:
    """A flat piece, or one of rows, as one of an array with the same elements."""
    # Rows stay rows if they can still be dealt out equally; the elements are the same either way.
    by_rows = piece.cut.axis == 0 and shape and shape[0] % piece.cut.replicas == 0
    cut = replace(piece.cut, shape=shape, axis=0 if by_rows else None)
    return Slice(piece.data.reshape(cut.piece_shape), cut)


def _keeps_elements(eqn: JaxprEqn, shape: tuple[int, ...]) -> bool:
    """True if a change of the shape keeps each element once, in order."""
    if eqn.primitive.name == "broadcast_in_dim":
        return math.prod(_shape(eqn)) == math.prod(shape)  # new axes of length 1
    # `squeeze` lists the axes that it drops; `reshape` may not permute any.
    return eqn.primitive.name == "squeeze" or eqn.params.get("dimensions") is None


def _shape(eqn: JaxprEqn) -> tuple[int, ...]:
    return aval(eqn.outvars[0]).shape


def _elementwise(eqn: JaxprEqn, arguments: list[Any]) -> Sequence[Any]:
    shape = _shape(eqn)
    cuts = {argument.cut for argument in arguments if isinstance(argument, Slice)}
    cut = cuts.pop()
    # Elements of other cuts are not the same ones, and a cut array that is broadcast would be another array.
    if cuts or cut.shape != shape:
        raise NotSliceable(f"{eqn.primitive.name} of arrays that are cut differently")
    local: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Slice):
            local.append(argument.data)
        # A scalar meets every element alike.
        elif jnp.shape(argument) == ():
            local.append(argument)
        else:
            # Every replica holds this array whole, and takes the part of it that meets its piece.
            local.append(cut.piece_of(jnp.broadcast_to(argument, shape)))
    return [Slice(result, cut) for result in bind(eqn, local)]


def _reduce(eqn: JaxprEqn, piece: Slice) -> Any:
    """A reduction of the whole array; the padding takes part with a neutral value."""
    name, data, size = eqn.primitive.name, piece.data, piece.cut.size
    if math.prod(piece.cut.stored_shape) > size:
        place = lax.axis_index(AXIS) * np.int32(data.size) + lax.iota(np.int32, data.size)
        data = jnp.where(place < np.int32(size), data, _neutral(name, data.dtype))
    (local,) = bind(eqn.replace(params={**eqn.params, "axes": tuple(range(data.ndim))}), [data])
    return _COLLECTIVES[name](local)


def _neutral(name: str, dtype: DType) -> jax.Array:
    if name == "reduce_sum":
        return jnp.zeros((), dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(-jnp.inf if name == "reduce_max" else jnp.inf, dtype)
    info = jnp.iinfo(dtype)
    return jnp.asarray(info.min if name == "reduce_max" else info.max, dtype)


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
    """The update if the gradients are finite, else the old arrays; adjusts the loss scale, which follows the slots.

    Args:
      update: the update of parameters and slots.
      scale: the loss scale, whose variables' values follow the slots', in the results too.
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
    replaced = list(values)
    if places:
        for place, value in zip(places, change([replaced[place] for place in places]), strict=True):
            replaced[place] = value
    return replaced


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
    arrays = list(grads), list(pieces), list(params)
    try:
        # The update is traced for whole arrays, as Optax knows no other, and then evaluated on pieces.
        shapes = jax.tree.map(lambda value: jax.ShapeDtypeStruct(value.shape, _dtype(value)), arrays)
        closed = jax.make_jaxpr(update)(*shapes)
        results = run_on_slices(closed, [*grads, *pieces, *_all_cut(params, sliced)])
    except NotSliceable:
        # Exact all the same: everything is gathered, updated whole by each replica, and cut again.
        results = update(*jax.tree.map(whole, arrays))
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


def _as_given(value: Numeric, like: Any) -> Any:
    """A result in the form that its old value has."""
    if not isinstance(like, Slice):
        return whole(value)
    return (value if isinstance(value, Slice) else own_slice(value, like.cut)).data


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
        named = ((grad, f"the variable of gradient {i}") for i, grad in enumerate(grads))
        return _all_cut([grad if isinstance(grad, Slice) else alike(jnp.asarray(grad), n) for grad, n in named], sliced)
    small = [i for i, grad in enumerate(grads) if i not in sliced and not isinstance(grad, Slice)]
    results = replaced_at(small, grads, lambda some: all_reduce(some, op, replicas, idle=idle))
    # Sorted: every replica must come to the collectives in the same order.
    large = [i for i in sorted(sliced) if not isinstance(grads[i], Slice)]
    arrays, count = contributions([grads[i] for i in large], op, replicas, idle)
    for i, array in zip(large, arrays, strict=True):
        piece = sliced[i].scattered(array)
        results[i] = Slice(reduction_of(op).finish(piece, count, _dtype(grads[i])), sliced[i])
    return results


class Slicing:
    """Updates of arrays of which each replica has a piece."""

    Piece = Slice
    as_cut = staticmethod(as_cut)
    reduction_of = staticmethod(reduction_of)
    reduced = staticmethod(reduce_to_slices)
    replaced_at = staticmethod(replaced_at)
    update = staticmethod(sliced_update)
