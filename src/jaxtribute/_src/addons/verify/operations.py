"""Operations of a traced program on arrays of NumPy, with all floating-point numbers in float64.

A step is computed operation by operation. JAX would compile each for every shape; NumPy needs no compiler, so these
tables have what programs mostly consist of. All else goes to JAX, in 64 bits too. What depends on how a number is
stored (`bitcast_convert_type`) sees the dtype that the program has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special as special

from jaxtribute._src.addons.verify import indexing
from jaxtribute.extending import JaxprEqn, Programs

Operation = Callable[..., Any]
"""A function of the operands and, by name, the parameters."""


def is_key(value: object) -> bool:
    """True if a value is a random key, of which NumPy knows nothing."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended)


def key_numbers(key: Any) -> Any:
    """The numbers that a random key is made of, an old one too."""
    return np.asarray(jax.random.key_data(key)) if is_key(key) else np.asarray(key)


def is_float(dtype: Any) -> bool:
    """True for real floating-point dtypes, those of 8 and 16 bits too."""
    return jnp.issubdtype(dtype, jnp.floating)


def as_wide(value: Any) -> Any:
    """An array of NumPy with floating-point numbers in float64, complex ones in complex128; keys as they are."""
    if is_key(value):
        return value
    array = np.asarray(value)
    if array.dtype == np.float64 or array.dtype == np.complex128 or array.dtype.kind in "biu":
        return array
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return array.astype(np.complex128)
    return array.astype(np.float64) if is_float(array.dtype) else array


def _wide_dtype(dtype: Any) -> Any:
    if is_float(dtype):
        return np.dtype(np.float64)
    return np.dtype(np.complex128) if jnp.issubdtype(dtype, jnp.complexfloating) else np.dtype(dtype)


def _divided(a: Any, b: Any) -> Any:
    if np.issubdtype(np.asarray(a).dtype, np.inexact):
        return a / b
    quotient = np.trunc(np.asarray(a, np.float64) / np.where(b == 0, 1, b))
    return np.where(b == 0, -1, quotient)


def _remainder(a: Any, b: Any) -> Any:
    return np.fmod(a, b) if np.issubdtype(np.asarray(a).dtype, np.inexact) else np.fmod(a, np.where(b == 0, 1, b))


def _selected(which: Any, *cases: Any) -> Any:
    if np.asarray(which).dtype == bool:
        return np.where(which, cases[1], cases[0])
    return np.choose(np.broadcast_to(which, cases[0].shape), cases)


def _power(a: Any, *, y: int) -> Any:
    return np.power(a, y) if y >= 0 else 1 / np.power(a, -y)


def _rounded(a: Any, *, rounding_method: Any) -> Any:
    if int(rounding_method) == 1:
        return np.rint(a)
    return np.sign(a) * np.floor(np.abs(a) + 0.5)


def _logistic(a: Any, **_: Any) -> Any:
    return special.expit(a)


def _converted(a: Any, *, new_dtype: Any, **_: Any) -> Any:
    target, a = _wide_dtype(new_dtype), np.asarray(a)
    if a.dtype.kind == "c" and target.kind in "iuf":
        a = a.real
    if target.kind in "iu" and a.dtype.kind == "f":
        limits = np.iinfo(target)
        return np.clip(np.nan_to_num(np.trunc(a)), limits.min, limits.max).astype(target)
    return a.astype(target)


def _broadcast(a: Any, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> Any:
    a = np.asarray(a)
    middle = [1] * len(shape)
    for axis, place in enumerate(broadcast_dimensions):
        middle[place] = a.shape[axis]
    return np.broadcast_to(a.reshape(middle), shape)


def _padded(a: Any, fill: Any, *, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    shape: list[int] = []
    target: list[slice] = []
    source: list[slice] = []
    for size, (low, high, inner) in zip(a.shape, padding_config, strict=True):
        whole = size + max(size - 1, 0) * inner
        total = max(low + high + whole, 0)
        shape.append(total)
        # The places of the elements in the result; those outside are cut off.
        places = [low + index * (inner + 1) for index in range(size)]
        kept = [index for index, place in enumerate(places) if 0 <= place < total]
        if not kept:
            return (
                np.full([*shape, *[0] * (a.ndim - len(shape))], fill, a.dtype)
                if 0 in shape
                else _blank(a, fill, padding_config)
            )
        source.append(slice(kept[0], kept[-1] + 1))
        target.append(slice(places[kept[0]], places[kept[-1]] + 1, inner + 1))
    result = np.full(shape, fill, a.dtype)
    result[tuple(target)] = a[tuple(source)]
    return result


def _blank(a: Any, fill: Any, padding: Sequence[tuple[int, int, int]]) -> Any:
    shape = [
        max(low + high + size + max(size - 1, 0) * inner, 0)
        for size, (low, high, inner) in zip(a.shape, padding, strict=True)
    ]
    return np.full(shape, fill, a.dtype)


def _sliced(a: Any, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Any) -> Any:
    steps = strides or [1] * a.ndim
    return a[tuple(map(slice, start_indices, limit_indices, steps))]


def _starts(starts: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
    return [int(np.clip(int(start), 0, whole - size)) for start, whole, size in zip(starts, shape, sizes, strict=True)]


def _dynamic_slice(a: Any, *starts: Any, slice_sizes: Sequence[int], **_: Any) -> Any:
    first = _starts(starts, a.shape, slice_sizes)
    return a[tuple(slice(start, start + size) for start, size in zip(first, slice_sizes, strict=True))]


def _dynamic_update(a: Any, update: Any, *starts: Any, **_: Any) -> Any:
    first = _starts(starts, a.shape, update.shape)
    result = np.array(a)
    result[tuple(slice(start, start + size) for start, size in zip(first, update.shape, strict=True))] = update
    return result


def _iota(*, dtype: Any, shape: Sequence[int], dimension: int, **_: Any) -> Any:
    numbers = np.arange(shape[dimension]).astype(_wide_dtype(dtype))
    return np.broadcast_to(numbers.reshape([-1 if axis == dimension else 1 for axis in range(len(shape))]), shape)


def _reduction(function: Callable[..., Any], empty: Any = None) -> Operation:
    def reduce(a: Any, *, axes: Sequence[int], **_: Any) -> Any:
        a = np.asarray(a)
        if empty is not None and not a.size:
            shape = [size for axis, size in enumerate(a.shape) if axis not in axes]
            return np.full(shape, empty(a.dtype), a.dtype)
        return function(a, axis=tuple(axes))

    return reduce


def _lowest(dtype: Any) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def _place_of(function: Callable[..., Any]) -> Operation:
    def place(a: Any, *, axes: Sequence[int], index_dtype: Any) -> Any:
        return function(a, axis=axes[0]).astype(index_dtype)

    return place


def _running(function: Any) -> Operation:
    def run(a: Any, *, axis: int, reverse: bool) -> Any:
        if reverse:
            return np.flip(function(np.flip(a, axis), axis=axis), axis)
        return function(a, axis=axis)

    return run


def _dot(a: Any, b: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    (left, right), (left_batch, right_batch) = dimension_numbers
    left_free = [axis for axis in range(a.ndim) if axis not in (*left, *left_batch)]
    right_free = [axis for axis in range(b.ndim) if axis not in (*right, *right_batch)]
    batch = [a.shape[axis] for axis in left_batch]
    shape = [*batch, *(a.shape[axis] for axis in left_free), *(b.shape[axis] for axis in right_free)]
    inner = int(np.prod([a.shape[axis] for axis in left], dtype=int))
    rows = int(np.prod([a.shape[axis] for axis in left_free], dtype=int))
    columns = int(np.prod([b.shape[axis] for axis in right_free], dtype=int))
    one = a.transpose([*left_batch, *left_free, *left]).reshape([*batch, rows, inner])
    other = b.transpose([*right_batch, *right, *right_free]).reshape([*batch, inner, columns])
    return np.matmul(one, other).reshape(shape)


def _split(a: Any, *, sizes: Sequence[int], axis: int) -> Any:
    return np.split(a, np.cumsum(sizes)[:-1], axis=axis)


def _same(a: Any, **_: Any) -> Any:
    return a


def _clamped(low: Any, a: Any, high: Any) -> Any:
    return np.minimum(np.maximum(a, low), high)


TABLE: dict[str, Operation] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": _rounded,
    "is_finite": np.isfinite,
    "not": np.invert,
    "square": np.square,
    "integer_pow": _power,
    "logistic": _logistic,
    "rsqrt": lambda a, **_: 1 / np.sqrt(a),
    "erf": lambda a, **_: special.erf(a),
    "erfc": lambda a, **_: special.erfc(a),
    "erf_inv": lambda a, **_: special.erfinv(a),
    "lgamma": lambda a, **_: special.gammaln(a),
    "digamma": lambda a, **_: special.digamma(a),
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divided,
    "rem": _remainder,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "atan2": np.arctan2,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "select_n": _selected,
    "clamp": _clamped,
    "convert_element_type": _converted,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda a, *, new_sizes, **_: np.reshape(a, new_sizes),
    "transpose": lambda a, *, permutation: np.transpose(a, permutation),
    "squeeze": lambda a, *, dimensions: np.squeeze(a, tuple(dimensions)),
    "expand_dims": lambda a, *, dimensions: np.expand_dims(a, tuple(dimensions)),
    "rev": lambda a, *, dimensions: np.flip(a, tuple(dimensions)),
    "concatenate": lambda *parts, dimension: np.concatenate(parts, dimension),
    "pad": _padded,
    "slice": _sliced,
    "split": _split,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "iota": _iota,
    "reduce_sum": _reduction(np.sum),
    "reduce_prod": _reduction(np.prod),
    "reduce_max": _reduction(np.max, _lowest),
    "reduce_min": _reduction(np.min, _highest),
    "reduce_and": _reduction(np.all),
    "reduce_or": _reduction(np.any),
    "argmax": _place_of(np.argmax),
    "argmin": _place_of(np.argmin),
    "cumsum": _running(np.cumsum),
    "cumprod": _running(np.cumprod),
    "cummax": _running(np.maximum.accumulate),
    "cummin": _running(np.minimum.accumulate),
    "dot_general": _dot,
    "gather": indexing.gather,
    "sort": indexing.sort,
    "top_k": indexing.top_k,
    **{
        f"scatter{mark}{kind}": indexing.scatter(how)
        for mark in "-_"
        for kind, how in {"add": np.add.at, "sub": np.subtract.at, "mul": np.multiply.at, "min": np.minimum.at}.items()
    },
    "scatter": indexing.scatter(None),
    "scatter_max": indexing.scatter(np.maximum.at),
    "scatter-max": indexing.scatter(np.maximum.at),
    "shift_left": np.left_shift,
    "shift_right_logical": lambda a, b: np.right_shift(
        a.view(f"u{a.dtype.itemsize}"), b.astype(f"u{b.dtype.itemsize}")
    ),
    "shift_right_arithmetic": np.right_shift,
    **dict.fromkeys(
        "stop_gradient copy copy_p reduce_precision sharding_constraint name pvary jd_idle_guard jd_equal jd_alike "
        "jd_state layout_constraint jd_whole_state mesh_cast".split(),
        _same,
    ),
    **{
        name: (lambda function: lambda a, **_: function(a))(getattr(np, name))
        for name in "sin cos tan tanh sinh cosh exp exp2 log log1p expm1 sqrt cbrt real imag conj".split()
    },
    "asin": lambda a, **_: np.arcsin(a),
    "acos": lambda a, **_: np.arccos(a),
    "atan": lambda a, **_: np.arctan(a),
    "asinh": lambda a, **_: np.arcsinh(a),
    "acosh": lambda a, **_: np.arccosh(a),
    "atanh": lambda a, **_: np.arctanh(a),
}
"""By the name of the operation; the parameters that it does not need are swallowed."""
_STORED = frozenset({"bitcast_convert_type", "nextafter"})
"""Operations that depend on how a number is stored."""
_PLAIN = frozenset(
    "neg abs sign floor ceil not square add add_any sub mul div rem max min pow atan2 and or xor eq ne lt le gt ge "
    "shift_left shift_right_arithmetic shift_right_logical is_finite".split()
)
"""Operations whose parameters mean nothing here."""


def apply(eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Returns the results of one operation without programs inside it, in float64 where they are floating-point."""
    name = eqn.primitive.name
    own = TABLE.get(name)
    if (
        len(eqn.outvars) == 1
        and 0 in getattr(Programs.aval(eqn.outvars[0]), "shape", ())
        and not is_key_type(eqn.outvars[0])
    ):
        return [np.zeros(Programs.aval(eqn.outvars[0]).shape, _wide_dtype(Programs.aval(eqn.outvars[0]).dtype))]
    if name in ("optimization_barrier", "device_put"):
        return list(operands)
    if own is None or any(map(is_key, operands)) or not eqn.outvars or is_key_type(eqn.outvars[0]):
        return _by_jax(eqn, operands)
    parameters = {} if name in _PLAIN else eqn.params
    found = own(*operands, **parameters)
    results = list(found) if eqn.primitive.multiple_results else [found]
    return [_fitted(result, var) for result, var in zip(results, eqn.outvars, strict=True)]


def is_key_type(var: Any) -> bool:
    """True if a value of a program is a random key."""
    return jnp.issubdtype(Programs.aval(var).dtype, jax.dtypes.extended)


def _fitted(result: Any, var: Any) -> Any:
    """A result in the dtype that it has: the program's for whole numbers, float64 for others."""
    array, dtype = np.asarray(result), _wide_dtype(Programs.aval(var).dtype)
    return array if array.dtype == dtype else array.astype(dtype)


def _by_jax(eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """The results by JAX: in 64 bits, or as the program says where that cannot be."""
    name = eqn.primitive.name
    if name not in _STORED:
        wide = {key: _wide_parameter(value) for key, value in eqn.params.items()}
        try:
            with jax.enable_x64(True):
                return _bound(eqn, list(map(_given, operands)), wide)
        except (TypeError, ValueError, NotImplementedError):
            pass  # an operation that wants the dtypes that it was traced with
    narrow = [
        value if is_key(value) else jnp.asarray(value, Programs.aval(atom).dtype)
        for value, atom in zip(operands, eqn.invars, strict=True)
    ]
    return _bound(eqn, narrow, eqn.params)


def _bound(eqn: JaxprEqn, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    with eqn.ctx.manager:
        found = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(params))
    results = found if eqn.primitive.multiple_results else [found]
    return [value if is_key(value) else as_wide(value) for value in results]


def _given(value: Any) -> Any:
    return value if is_key(value) else jnp.asarray(value)


def _wide_parameter(value: Any) -> Any:
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return _wide_dtype(value)
    return value
