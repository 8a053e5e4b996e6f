"""An update computed on slices: each replica's share of large arrays, with reductions over all of them.

Optimizers update most arrays element by element. A replica that holds one slice of the flattened gradient,
parameter and slots can then compute its slice of the result alone; a norm over a whole array is a local sum
and a `psum`. `run_on_slices` interprets an update's jaxpr that way, and says so where it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, JaxprEqn, aval, bind
from jaxtribute._src.core.jaxprs.kinds import ELEMENTWISE
from jaxtribute._src.core.jaxprs.walking import Handler, called, evaluate
from jaxtribute._src.core.types import DType, Numeric
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.slices import Cut

# Maxima are gathered, as the all-reduce of some devices would lose a NaN.
_COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": lambda local: lax.psum(local, AXIS),
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
        return _equation(eqn, operands, handle) if _has_slices(operands) else None

    return evaluate(closed, inputs, handle)


def _has_slices(operands: Sequence[Any]) -> bool:
    return any(isinstance(operand, Slice) for operand in operands)


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
    flat = name in _RESHAPING and all(not isinstance(one, Slice) or not one.cut.axis for one in arguments)
    if flat and name != "broadcast_in_dim" and eqn.params.get("dimensions") in (None, *_dims(eqn)):
        return [_reshaped(arguments[0], _shape(eqn))]
    if flat and name == "broadcast_in_dim" and math.prod(eqn.params["shape"]) == math.prod(arguments[0].shape):
        return [_reshaped(arguments[0], eqn.params["shape"])]  # new axes of length 1
    inner = called(eqn)
    if inner is not None:
        return evaluate(inner, arguments, handle)
    raise NotSliceable(name)


def _reshaped(piece: Slice, shape: tuple[int, ...]) -> Slice:
    """A flat piece, or one of rows, as one of an array with the same elements."""
    # Rows stay rows where they can still be dealt out equally; the elements are the same either way.
    by_rows = piece.cut.axis == 0 and shape and shape[0] % piece.cut.replicas == 0
    cut = replace(piece.cut, shape=shape, axis=0 if by_rows else None)
    return Slice(piece.data.reshape(cut.piece_shape), cut)


def _dims(eqn: JaxprEqn) -> tuple[Any, ...]:
    """`squeeze` lists the axes that it drops; `reshape` may not permute any."""
    return (eqn.params.get("dimensions"),) if eqn.primitive.name == "squeeze" else ()


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
    info = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(-jnp.inf if name == "reduce_max" else jnp.inf, dtype)
    return jnp.asarray(info.min if name == "reduce_max" else info.max, dtype)
