"""Arithmetic, comparisons, reductions and products, by their names in `tf` and `tf.math`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.compat.tf import texts
from jaxtribute._src.addons.compat.tf.conversion import Axis, TensorLike, as_tensor, operands
from jaxtribute._src.addons.compat.tf.symbolic import allow_in_models
from jaxtribute.errors import ArgumentTypeError, ShapeError
from jaxtribute.typing import Array, DType, Leaf

__all__ = [
    "abs",
    "add",
    "add_n",
    "argmax",
    "argmin",
    "argsort",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "cos",
    "cumsum",
    "divide",
    "einsum",
    "equal",
    "exp",
    "floor",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "matmul",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "norm",
    "not_equal",
    "pow",
    "reduce_all",
    "reduce_any",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "round",
    "sigmoid",
    "sign",
    "sin",
    "sort",
    "sqrt",
    "square",
    "subtract",
    "tanh",
    "tensordot",
]
"""The names that `tf` has as well as `tf.math`."""


def _refuse_bools(operation: str, *values: Any) -> None:
    """Refuses to compute with bools, as TensorFlow does: JAX takes them for numbers, or gives a bool.

    Raises:
      ArgumentTypeError: a value is an array of bools.
    """
    if any(getattr(value, "dtype", None) == np.bool_ for value in values):
        raise ArgumentTypeError(f"{operation} of bools. HINT: make them numbers: tf.cast(x, tf.float32).")


def _unary(function: Callable[[Any], Any], name: str, bools: bool = False) -> Callable[..., Any]:
    operation = name

    def call(x: TensorLike, name: str | None = None) -> Any:
        array = as_tensor(x)
        if not bools:
            _refuse_bools(operation, array)
        return function(array)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Elementwise, on an array of any shape. Source: `tf.math.{name}`."
    return call


def _binary(function: Callable[[Any, Any], Any], name: str, bools: bool = False) -> Callable[..., Any]:
    operation = name

    def call(x: TensorLike, y: TensorLike, name: str | None = None) -> Any:
        x, y = operands(x, y)
        if texts.is_text(x) or texts.is_text(y):
            return texts.combined(operation, x, y)
        if not bools:
            _refuse_bools(operation, x, y)
        return function(x, y)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Elementwise, on two arrays that broadcast. Source: `tf.math.{name}`."
    return call


def _reduction(function: Callable[..., Any], name: str, bools: bool = False) -> Callable[..., Any]:
    operation = name

    def call(input_tensor: TensorLike, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Any:
        # JAX takes several axes in a tuple only.
        axes = tuple(axis) if isinstance(axis, (list, np.ndarray)) else axis
        array = as_tensor(input_tensor)
        if not bools:
            _refuse_bools(operation, array)
        return function(array, axis=axes, keepdims=keepdims)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Reduces the axes given, or all; the element type stays. Source: `tf.math.{name}`."
    return call


# The gradient where two branches meet is TensorFlow's: JAX's is 1 for |x| at 0, and half for each of two equal maxima.


def _abs(x: Array) -> Any:
    return x * jnp.sign(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.abs(x)


def _maximum(x: TensorLike, y: TensorLike) -> Any:
    # `x != x` holds for NaN alone, which is to win as in TensorFlow; one in `y` fails the comparison and wins too.
    return jnp.where((x >= y) | (x != x), x, y)


def _minimum(x: TensorLike, y: TensorLike) -> Any:
    return jnp.where((x <= y) | (x != x), x, y)


def _quotient(x: TensorLike, y: TensorLike) -> Any:
    kind = jnp.result_type(x, y)
    if jnp.issubdtype(kind, jnp.integer):  # of integers TensorFlow's is wider than JAX's
        wide = jax.dtypes.canonicalize_dtype(np.float64 if kind.itemsize >= 4 else np.float32)
        x, y = jnp.asarray(x, wide), jnp.asarray(y, wide)
    return jnp.true_divide(x, y)


def _extreme(function: Callable[..., Any], sign: int) -> Callable[..., Any]:
    """A maximum (-1) or minimum (1), which of nothing is the least or largest number, as in TensorFlow."""

    def reduce(x: Array, axis: Axis, keepdims: bool) -> Any:
        if not any(isinstance(length, int) and not length for length in x.shape):
            return function(x, axis=axis, keepdims=keepdims)
        least, most = (-np.inf, np.inf) if jnp.issubdtype(x.dtype, jnp.inexact) else _limits(x.dtype)
        return function(x, axis=axis, keepdims=keepdims, initial=least if sign < 0 else most)

    return reduce


def _limits(dtype: Any) -> tuple[int, int]:
    limits = jnp.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _sum(x: Array, axis: Axis, keepdims: bool) -> Any:
    # In the array's own type, as in TensorFlow: JAX would widen small integers and booleans.
    return jnp.sum(x, axis=axis, keepdims=keepdims, promote_integers=False)


def _mean(x: Array, axis: Axis, keepdims: bool) -> Any:
    # TensorFlow's mean of integers is one, cut off towards zero.
    mean = jnp.mean(x, axis=axis, keepdims=keepdims)
    return mean if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.trunc(mean).astype(x.dtype)


def _prod(x: Array, axis: Axis, keepdims: bool) -> Any:
    return jnp.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


abs: Callable[..., Any] = _unary(_abs, "abs")
ceil: Callable[..., Any] = _unary(jnp.ceil, "ceil")
cos: Callable[..., Any] = _unary(jnp.cos, "cos")
erf: Callable[..., Any] = _unary(jax.lax.erf, "erf")
exp: Callable[..., Any] = _unary(jnp.exp, "exp")
expm1: Callable[..., Any] = _unary(jnp.expm1, "expm1")
floor: Callable[..., Any] = _unary(jnp.floor, "floor")
is_finite: Callable[..., Any] = _unary(jnp.isfinite, "is_finite")
is_nan: Callable[..., Any] = _unary(jnp.isnan, "is_nan")
log: Callable[..., Any] = _unary(jnp.log, "log")
log1p: Callable[..., Any] = _unary(jnp.log1p, "log1p")
logical_not: Callable[..., Any] = _unary(jnp.logical_not, "logical_not", bools=True)
negative: Callable[..., Any] = _unary(jnp.negative, "negative")
reciprocal: Callable[..., Any] = _unary(jnp.reciprocal, "reciprocal")
round: Callable[..., Any] = _unary(jnp.round, "round")
rsqrt: Callable[..., Any] = _unary(jax.lax.rsqrt, "rsqrt")
sigmoid: Callable[..., Any] = _unary(jax.nn.sigmoid, "sigmoid")
sign: Callable[..., Any] = _unary(jnp.sign, "sign")
sin: Callable[..., Any] = _unary(jnp.sin, "sin")
softplus: Callable[..., Any] = _unary(jax.nn.softplus, "softplus")
sqrt: Callable[..., Any] = _unary(jnp.sqrt, "sqrt")
square: Callable[..., Any] = _unary(jnp.square, "square")
tanh: Callable[..., Any] = _unary(jnp.tanh, "tanh")

add: Callable[..., Any] = _binary(jnp.add, "add")
divide: Callable[..., Any] = _binary(_quotient, "divide")
# Divided by 1 where 0 is wanted: the gradient of a division that is thrown away would be NaN.
divide_no_nan: Callable[..., Any] = _binary(
    lambda x, y: jnp.where(y == 0, 0, _quotient(x, jnp.where(y == 0, 1, y))), "divide_no_nan"
)
equal: Callable[..., Any] = _binary(jnp.equal, "equal", bools=True)
floordiv: Callable[..., Any] = _binary(jnp.floor_divide, "floordiv")
floormod: Callable[..., Any] = _binary(jnp.mod, "floormod")
greater: Callable[..., Any] = _binary(jnp.greater, "greater")
greater_equal: Callable[..., Any] = _binary(jnp.greater_equal, "greater_equal")
less: Callable[..., Any] = _binary(jnp.less, "less")
less_equal: Callable[..., Any] = _binary(jnp.less_equal, "less_equal")
logical_and: Callable[..., Any] = _binary(jnp.logical_and, "logical_and", bools=True)
logical_or: Callable[..., Any] = _binary(jnp.logical_or, "logical_or", bools=True)
maximum: Callable[..., Any] = _binary(_maximum, "maximum")
minimum: Callable[..., Any] = _binary(_minimum, "minimum")
multiply: Callable[..., Any] = _binary(jnp.multiply, "multiply")
not_equal: Callable[..., Any] = _binary(jnp.not_equal, "not_equal", bools=True)
pow: Callable[..., Any] = _binary(jnp.power, "pow")
squared_difference: Callable[..., Any] = _binary(lambda x, y: jnp.square(x - y), "squared_difference")
subtract: Callable[..., Any] = _binary(jnp.subtract, "subtract")

reduce_all: Callable[..., Any] = _reduction(jnp.all, "reduce_all", bools=True)
reduce_any: Callable[..., Any] = _reduction(jnp.any, "reduce_any", bools=True)
reduce_logsumexp: Callable[..., Any] = _reduction(jax.nn.logsumexp, "reduce_logsumexp")
reduce_max: Callable[..., Any] = _reduction(_extreme(jnp.max, -1), "reduce_max")
reduce_mean: Callable[..., Any] = _reduction(_mean, "reduce_mean")
reduce_min: Callable[..., Any] = _reduction(_extreme(jnp.min, 1), "reduce_min")
reduce_prod: Callable[..., Any] = _reduction(_prod, "reduce_prod")
reduce_std: Callable[..., Any] = _reduction(jnp.std, "reduce_std")
reduce_sum: Callable[..., Any] = _reduction(_sum, "reduce_sum")
reduce_variance: Callable[..., Any] = _reduction(jnp.var, "reduce_variance")


def argmax(input: TensorLike, axis: int | None = None, output_type: DType = np.int64, name: str | None = None) -> Any:
    """Returns the place of the largest element along an axis, 0 by default. Source: `tf.math.argmax`."""
    return as_tensor(jnp.argmax(as_tensor(input), 0 if axis is None else axis), output_type)


def argmin(input: TensorLike, axis: int | None = None, output_type: DType = np.int64, name: str | None = None) -> Any:
    """Returns the place of the smallest element along an axis, 0 by default. Source: `tf.math.argmin`."""
    return as_tensor(jnp.argmin(as_tensor(input), 0 if axis is None else axis), output_type)


def add_n(inputs: TensorLike, name: str | None = None) -> Any:
    """Adds up arrays of one shape.

    Raises:
      ShapeError: they have several.

    Source: `tf.math.add_n`.
    """
    first, *rest = map(as_tensor, inputs)
    _refuse_bools("add_n", first)
    for part in rest:
        if part.shape != first.shape:
            raise ShapeError(f"add_n of arrays of shapes {first.shape} and {part.shape}. HINT: give one shape.")
        first = first + part
    return first


def clip_by_value(
    t: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Any:
    """Limits each element. Source: `tf.clip_by_value`."""
    array = as_tensor(t)
    _refuse_bools("clip_by_value", array)
    # The lower limit last: it wins where it is above the upper one.
    least, most = (operands(array, limit)[1] for limit in (clip_value_min, clip_value_max))
    return _maximum(_minimum(array, most), least)


def clip_by_norm(t: TensorLike, clip_norm: TensorLike, axes: Axis = None, name: str | None = None) -> Any:
    """Shrinks an array whose Euclidean norm is larger. Source: `tf.clip_by_norm`."""
    array = as_tensor(t)
    total = jnp.sum(jnp.square(array), axes, keepdims=True)
    # The root of 1 where it is thrown away: the gradient at 0 would be NaN.
    length = jnp.where(total > 0, jnp.sqrt(jnp.where(total > 0, total, 1)), total)
    return array * clip_norm / jnp.maximum(length, clip_norm)


def clip_by_global_norm(
    t_list: TensorLike, clip_norm: TensorLike, use_norm: TensorLike = None, name: str | None = None
) -> Any:
    """Shrinks arrays whose norm together is larger. Returns them, and that norm. Source: `tf.clip_by_global_norm`."""
    length = global_norm(t_list) if use_norm is None else as_tensor(use_norm)
    scale = clip_norm / jnp.maximum(length, clip_norm)
    # Infinite gradients become NaN, as in TensorFlow, so that nobody trains on.
    scale = jnp.where(jnp.isfinite(length), scale, jnp.nan)
    return [None if part is None else as_tensor(part) * scale for part in t_list], length


def sort(values: TensorLike, axis: int = -1, direction: str = "ASCENDING", name: str | None = None) -> Any:
    """Puts elements along an axis in order. Source: `tf.sort`."""
    return jnp.sort(as_tensor(values), axis, descending=direction == "DESCENDING")


def argsort(
    values: TensorLike, axis: int = -1, direction: str = "ASCENDING", stable: bool = False, name: str | None = None
) -> Any:
    """Returns the places of elements along an axis, in their order. Source: `tf.argsort`."""
    return jnp.argsort(as_tensor(values), axis, descending=direction == "DESCENDING").astype(jnp.int32)


def cumsum(
    x: TensorLike, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Any:
    """Adds up along an axis. Source: `tf.math.cumsum`."""
    array = as_tensor(x)
    _refuse_bools("cumsum", array)
    flipped = jnp.flip(array, axis) if reverse else array
    total = jnp.cumsum(flipped, axis, dtype=array.dtype)
    if exclusive:  # moved by one: taken off again, an infinity would be NaN
        first = (np.s_[:],) * (axis % array.ndim) + (np.s_[:1],)
        total = jnp.roll(total, 1, axis).at[first].set(0)
    return jnp.flip(total, axis) if reverse else total


class TopK(NamedTuple):
    """The largest entries of each row, and where they are."""

    values: Any
    indices: Any


def top_k(input: TensorLike, k: int = 1, sorted: bool = True, name: str | None = None) -> Any:
    """Returns the `k` largest elements of the last axis, and their places. Source: `tf.math.top_k`."""
    return TopK(*jax.lax.top_k(as_tensor(input), k))


def matvec(
    a: TensorLike, b: TensorLike, transpose_a: bool = False, adjoint_a: bool = False, name: str | None = None
) -> Any:
    """Multiplies a matrix by a vector, or stacks of them. Source: `tf.linalg.matvec`."""
    return jnp.squeeze(jnp.matmul(_turned(a, transpose_a, adjoint_a), as_tensor(b)[..., None]), -1)


def matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    *,
    name: str | None = None,
) -> Any:
    """Multiplies matrices, or stacks of them. That they are sparse changes nothing. Source: `tf.linalg.matmul`."""
    left, right = operands(a, b)
    _refuse_bools("matmul", left, right)
    return jnp.matmul(_turned(left, transpose_a, adjoint_a), _turned(right, transpose_b, adjoint_b))


def _turned(matrix: TensorLike, transposed: bool, adjoint: bool) -> Any:
    array = as_tensor(matrix)
    array = jnp.swapaxes(array, -1, -2) if transposed or adjoint else array
    return jnp.conj(array) if adjoint else array


def tensordot(a: TensorLike, b: TensorLike, axes: Leaf, name: str | None = None) -> Any:
    """Multiplies and adds up over the axes given. Source: `tf.tensordot`."""
    return jnp.tensordot(as_tensor(a), as_tensor(b), axes)


def einsum(equation: str, *inputs: TensorLike) -> Any:
    """Multiplies and adds up by Einstein's convention. Source: `tf.einsum`."""
    return jnp.einsum(equation, *map(as_tensor, inputs))


def norm(tensor: TensorLike, ord: Leaf = "euclidean", axis: Axis = None, keepdims: bool = False) -> Any:
    """Returns a norm, of all elements by default. Source: `tf.norm`."""
    array = as_tensor(tensor)
    # By hand, as JAX's norm takes two axes at most.
    if ord == "euclidean":
        return jnp.sqrt(_sum(jnp.square(array), tuple(axis) if isinstance(axis, list) else axis, keepdims))
    return jnp.linalg.norm(array.reshape(-1) if axis is None else array, ord, axis, keepdims)


def l2_normalize(x: TensorLike, axis: Axis = None, epsilon: float = 1e-12, name: str | None = None) -> Any:
    """Divides by the root of the sum of squares, of at least `epsilon`. Source: `tf.math.l2_normalize`."""
    array = as_tensor(x)
    axes = tuple(axis) if isinstance(axis, (list, np.ndarray)) else axis
    return array * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(array), axis=axes, keepdims=True), epsilon))


def global_norm(t_list: TensorLike, name: str | None = None) -> Any:
    """Returns the Euclidean norm of all elements of several arrays. Source: `tf.linalg.global_norm`."""
    # None stands for a variable that had no gradient.
    return jnp.sqrt(add_n([jnp.sum(jnp.square(as_tensor(part))) for part in t_list if part is not None]))


# Last, once every name is there: each is replaced by a function that looks for symbols first.
allow_in_models(__name__, "jaxtribute.compat.tf.math")
