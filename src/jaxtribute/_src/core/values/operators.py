"""Array operators for values that stand for one array: `Mirrored` and `Variable`."""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import DType, Numeric
from jaxtribute.errors import ArgumentTypeError

# The functions here are the mixin's own.
# pyright: reportPrivateUsage=false


COMPARABLE = (jax.Array, np.ndarray, np.generic, bool, int, float, complex, list, tuple)
"""Types that `==` compares by value; JAX refuses lists and tuples with a sentence. Anything else is not equal."""


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: ArrayOperators, other: Numeric) -> Any:
        return function(self._operand(), operand(other))

    return method


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: ArrayOperators, other: Numeric) -> Any:
        return function(operand(other), self._operand())

    return method


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def method(self: ArrayOperators) -> Any:
        return function(self._operand())

    return method


def _compared(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`==` or `!=`, element by element; a search for another variable or value goes by identity instead."""

    def method(self: ArrayOperators, other: Numeric) -> Any:
        if isinstance(other, ArrayOperators):
            asking = Asking(sys._getframe(1))
            if asking.wants_identity():
                return function(id(self), id(other))
            if not asking.compares():
                return Sought(self, other, function, asking)
        elif not isinstance(other, COMPARABLE):
            return NotImplemented
        return function(self._operand(), operand(other))

    return method


def operand(value: Numeric) -> Any:
    """The array that `value` stands for, if it stands for one, else `value` itself.

    Args:
      value: a variable, a `Mirrored` value, an array or a number.
    """
    return value._operand() if isinstance(value, ArrayOperators) else value


_ARRAY_ATTRIBUTES = (
    "T mT all any argmax argmin argsort astype at clip conj cumprod cumsum dot flatten imag item itemsize max mean min "
    "nbytes prod ptp ravel real repeat reshape round sort squeeze std sum swapaxes take tolist transpose var".split()
)


class ArrayOperators:
    """Mixin: Python's operators and array conversions, applied to the array that `_operand()` gives."""

    __slots__ = ()

    __array_priority__: ClassVar[int] = 100
    """The priority of `jax.Array`: NumPy's arrays and numbers on the left of an operator leave it to the value."""

    def _operand(self) -> Any:
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value on one replica."""
        return self._operand().shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self._operand().dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the value as a NumPy array of its own memory, waiting until it is computed.

        Raises:
          ArgumentTypeError: it is computed in a program, or differentiated.
        """
        return self.__array__()

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self._operand())

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        value = self._operand()
        if isinstance(value, Tracer):
            raise ArgumentTypeError(
                f"NumPy was given a {type(self).__name__} of shape {self.shape} in a function that is compiled or "
                "differentiated, where it has no numbers yet. HINT: use jax.numpy, as in jnp.matmul(x, w), or an "
                "operator, as in x @ w."
            )
        # A copy: what NumPy is handed must not change, nor be given up, with the variable's next step.
        return np.array(value, dtype=dtype)

    def __float__(self) -> float:
        return float(self._operand())

    def __int__(self) -> int:
        return int(self._operand())

    def __complex__(self) -> complex:
        return complex(self._operand())

    def __index__(self) -> int:
        return operator.index(self._operand())

    def __bool__(self) -> bool:
        return bool(self._operand())

    def __round__(self, ndigits: int = 0) -> jax.Array:
        return round(self._operand(), ndigits)

    def __len__(self) -> int:
        return len(self._operand())

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self._operand())

    def __getitem__(self, key: Numeric) -> jax.Array:
        return self._operand()[key]

    def __format__(self, spec: str) -> str:
        return format(self._operand(), spec) if spec else str(self)

    if TYPE_CHECKING:  # what `_binary`, `_unary` and `_as_array` make below, with their types

        def __getattr__(self, name: str) -> Any: ...
        @property
        def T(self) -> jax.Array: ...  # noqa: N802
        @property
        def at(self) -> Any: ...
        @property
        def nbytes(self) -> int: ...
        def all(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def any(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def argmax(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def argmin(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def astype(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def clip(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def cumsum(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def dot(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def flatten(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def max(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def mean(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def min(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def prod(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def ravel(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def repeat(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def reshape(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def round(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def squeeze(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def std(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def sum(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def transpose(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def var(self, *args: Any, **kwargs: Any) -> jax.Array: ...
        def item(self) -> bool | int | float | complex: ...
        def tolist(self) -> Any: ...
        def __add__(self, other: Numeric, /) -> jax.Array: ...
        def __radd__(self, other: Numeric, /) -> jax.Array: ...
        def __sub__(self, other: Numeric, /) -> jax.Array: ...
        def __rsub__(self, other: Numeric, /) -> jax.Array: ...
        def __mul__(self, other: Numeric, /) -> jax.Array: ...
        def __rmul__(self, other: Numeric, /) -> jax.Array: ...
        def __truediv__(self, other: Numeric, /) -> jax.Array: ...
        def __rtruediv__(self, other: Numeric, /) -> jax.Array: ...
        def __floordiv__(self, other: Numeric, /) -> jax.Array: ...
        def __rfloordiv__(self, other: Numeric, /) -> jax.Array: ...
        def __mod__(self, other: Numeric, /) -> jax.Array: ...
        def __rmod__(self, other: Numeric, /) -> jax.Array: ...
        def __pow__(self, other: Numeric, /) -> jax.Array: ...
        def __rpow__(self, other: Numeric, /) -> jax.Array: ...
        def __lshift__(self, other: Numeric, /) -> jax.Array: ...
        def __rlshift__(self, other: Numeric, /) -> jax.Array: ...
        def __rshift__(self, other: Numeric, /) -> jax.Array: ...
        def __rrshift__(self, other: Numeric, /) -> jax.Array: ...
        def __matmul__(self, other: Numeric, /) -> jax.Array: ...
        def __rmatmul__(self, other: Numeric, /) -> jax.Array: ...
        def __and__(self, other: Numeric, /) -> jax.Array: ...
        def __rand__(self, other: Numeric, /) -> jax.Array: ...
        def __or__(self, other: Numeric, /) -> jax.Array: ...
        def __ror__(self, other: Numeric, /) -> jax.Array: ...
        def __xor__(self, other: Numeric, /) -> jax.Array: ...
        def __rxor__(self, other: Numeric, /) -> jax.Array: ...
        def __lt__(self, other: Numeric, /) -> jax.Array: ...
        def __le__(self, other: Numeric, /) -> jax.Array: ...
        def __gt__(self, other: Numeric, /) -> jax.Array: ...
        def __ge__(self, other: Numeric, /) -> jax.Array: ...
        def __divmod__(self, other: Numeric, /) -> tuple[jax.Array, jax.Array]: ...
        def __rdivmod__(self, other: Numeric, /) -> tuple[jax.Array, jax.Array]: ...
        def __eq__(self, other: object, /) -> jax.Array: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __ne__(self, other: object, /) -> jax.Array: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __neg__(self) -> jax.Array: ...
        def __pos__(self) -> jax.Array: ...
        def __abs__(self) -> jax.Array: ...
        def __invert__(self) -> jax.Array: ...
        def __hash__(self) -> int: ...
    else:
        __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
        __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
        __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
        __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
        __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
        __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
        __divmod__, __rdivmod__ = _binary(divmod), _reflected(divmod)
        __pow__, __rpow__ = _binary(operator.pow), _reflected(operator.pow)
        __lshift__, __rlshift__ = _binary(operator.lshift), _reflected(operator.lshift)
        __rshift__, __rrshift__ = _binary(operator.rshift), _reflected(operator.rshift)
        __matmul__, __rmatmul__ = _binary(operator.matmul), _reflected(operator.matmul)
        __and__, __rand__ = _binary(operator.and_), _reflected(operator.and_)
        __or__, __ror__ = _binary(operator.or_), _reflected(operator.or_)
        __xor__, __rxor__ = _binary(operator.xor), _reflected(operator.xor)
        __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
        __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
        __neg__, __pos__, __abs__ = _unary(operator.neg), _unary(operator.pos), _unary(operator.abs)
        __invert__ = _unary(operator.invert)
        # `v == w` compares elements, as in TensorFlow. But variables are keys of dictionaries and members of lists,
        # where Python asks for `==` too and needs one truth: there only the same object is equal. See `Asking`.
        __eq__, __ne__ = _compared(operator.eq), _compared(operator.ne)
        __hash__ = object.__hash__


class Sought(ArrayOperators):
    """`left == right` where something else than `==` asks for it: `operator.eq`, or a search; `!=` likewise.

    It is the array of what is equal, computed when it is first needed. But the instruction that asked gets the truth
    of a search: whether both are the same object.

    Args:
      left: a variable or distributed value.
      right: another one.
      function: `operator.eq` or `operator.ne`.
      asking: the instruction.
    """

    __slots__ = ("_array", "_asking", "_function", "_pair")

    def __init__(
        self, left: ArrayOperators, right: ArrayOperators, function: Callable[[Any, Any], Any], asking: Asking
    ) -> None:
        self._pair, self._function, self._asking = (left, right), function, asking
        self._array: Any = None

    def _operand(self) -> Any:
        if self._array is None:
            left, right = self._pair
            self._array = self._function(left._operand(), right._operand())
        return self._array

    def __bool__(self) -> bool:
        if self._asking.again(sys._getframe(1)):
            left, right = self._pair
            return self._function(id(left), id(right))
        return bool(self._operand())

    def __repr__(self) -> str:
        return repr(self._operand())


def _as_array(name: str) -> property:
    """The attribute `name` of the array; one that is the stored array's own business only says where it is."""

    def attribute(self: ArrayOperators) -> Any:
        if name in _ARRAY_ATTRIBUTES:
            return getattr(jnp.asarray(self._operand()), name)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}. HINT: use read_value().{name}."
        )

    return property(attribute, doc=f"`{name}` of the array.")


# Not `__getattr__`: a class that has one reads all its attributes three times slower, and a step reads every variable.
for _name in {*_ARRAY_ATTRIBUTES, *(name for name in dir(jax.Array) if not name.startswith("_"))}:
    if not hasattr(ArrayOperators, _name):
        setattr(ArrayOperators, _name, _as_array(_name))

jax.tree_util.register_pytree_node(Sought, lambda sought: ((sought._operand(),), None), lambda _, children: children[0])


_COMPARES = dis.opmap["COMPARE_OP"]


class Asking:
    """The instruction that asks for a comparison: `v == w` itself, or a search such as `v in variables`.

    Python does not tell `__eq__` which it is. The byte code of the caller does: `==` is an instruction of its own.

    Args:
      frame: the frame of the code that asks.
    """

    __slots__ = ("_frame", "_place")

    def __init__(self, frame: FrameType) -> None:
        # The frame itself, not its id: Python makes frame objects when they are asked for.
        self._frame, self._place = frame, frame.f_lasti

    def compares(self) -> bool:
        """True for `==` and `!=` themselves."""
        return self._frame.f_code.co_code[self._place] == _COMPARES

    def wants_identity(self) -> bool:
        """True if the code compares what holds both, for which one truth is needed: an `__eq__` or JAX's tables."""
        # JAX's tables compare keys by `==` of nests that hold variables: an array as the answer would be an error
        # there.
        package = self._frame.f_globals.get("__name__", "").partition(".")[0]
        return package == "jax" or self._frame.f_code.co_name in ("__eq__", "__ne__")

    def searches(self) -> bool:
        """True unless code compares two values by `==` or `!=`."""
        return self.wants_identity() or not self.compares()

    def again(self, frame: FrameType) -> bool:
        """True if `frame` is still at that instruction."""
        return frame is self._frame and frame.f_lasti == self._place
