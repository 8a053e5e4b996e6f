"""`tf.function`, placement, control flow and the switches that mean nothing on JAX."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any, TextIO

import jax
import numpy as np

import jaxtribute as jd
from jaxtribute import DistributedDataset
from jaxtribute._src.addons.compat.tf.absences import telling_absent
from jaxtribute._src.addons.compat.tf.concrete import Concrete
from jaxtribute._src.addons.compat.tf.conversion import as_tensor
from jaxtribute._src.addons.compat.tf.dataset import Dataset
from jaxtribute._src.addons.compat.tf.specs import TensorSpec
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Context, Eager, Function, Nests, Tracer, operand, resolve_device
from jaxtribute.typing import Array, Device, Leaf, Nest

__all__ = [
    "control_dependencies",
    "device",
    "enable_eager_execution",
    "executing_eagerly",
    "function",
    "get_logger",
    "group",
    "no_op",
    "print",
]


def function(func: Callable[..., Any] | None = None, input_signature: Nest = None, **options: object) -> Any:
    """Compiles a function; as `jd.function`, with TensorFlow's types for Python numbers that it returns.

    Python's `if`, `for` and `while` run while it is traced, as with `autograph=False`: where they depend on an
    array's value use `tf.cond`, `tf.where`, `tf.while_loop` or a loop outside. Called with a dataset, to loop over it,
    the function itself runs as Python, and each function that `strategy.run` calls in it is compiled; also if it loops
    over a distributed dataset of the code around it. After `tf.config.run_functions_eagerly(True)` all of it runs as
    Python.

    Args:
      func: the function; without it a decorator is returned.
      input_signature: a nest of specs that the arguments must fit.
      **options: TensorFlow's further options, which mean nothing here: everything is compiled by XLA.

    Raises:
      TypeError: an option that TensorFlow does not have.

    Source: `tf.function`.
    """
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise TypeError(f"tf.function got {sorted(unknown)}, which it does not have. HINT: {sorted(_OPTIONS)}.")
    if func is None:
        # The options need not be passed on: none of them means anything on JAX.
        return lambda func: function(func, input_signature)

    @functools.wraps(func)
    def converted(*args: Nest, **kwargs: Nest) -> Any:
        return Nests.map_leaves(_as_result, func(*args, **kwargs))

    return _Function(converted, input_signature)


class _Eagerly:
    """Switch of `tf.config.run_functions_eagerly`, for all functions and threads."""

    on = False


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Lets all `tf.function`s run as Python, to look into them, or compiles them again.

    Replica functions that they call run as Python too. What is compiled otherwise stays so: `jd.function`, and Keras's
    `fit` without `compile(run_eagerly=True)`. A worker of a parameter server strategy has a switch of its own.

    Args:
      run_eagerly: True for Python.

    Source: `tf.config.run_functions_eagerly`.
    """
    _Eagerly.on = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Returns whether all `tf.function`s run as Python. Source: `tf.config.functions_run_eagerly`."""
    return _Eagerly.on


@telling_absent("tf.function")
class _Function(Function[..., Any]):
    """A compiled function that may be called with datasets.

    Attributes:
      ran_as_python: whether it has been, and so run as Python.
    """

    ran_as_python = False

    def __init__(
        self, python_function: Callable[..., Any], input_signature: Nest = None, donate_argnums: Sequence[int] = ()
    ) -> None:
        self._open = jax.tree.map(_opened, input_signature, is_leaf=_is_spec)
        super().__init__(python_function, self._open, donate_argnums)
        # Compiled forms are found again at the next call, and go with the function or the object that they belong to.
        self._replicas: weakref.WeakKeyDictionary[Any, dict[Any, Callable[..., Any]]] = weakref.WeakKeyDictionary()
        self._around = _Around(python_function)

    def __call__(self, *args: Nest, **kwargs: Nest) -> Any:
        """Calls the compiled function; if it loops over a dataset, the Python function."""
        context = Context.current()
        # Within a program that is being traced the function is part of that one.
        if _Eagerly.on and not context.executor.traced:
            self.ran_as_python = True
            return self.python_function(*args, **kwargs)
        given = (*args, *kwargs.values())
        loops = any(isinstance(value, (DistributedDataset, Dataset)) for value in given)
        if context.executor.traced or not (loops or self._around.has_distributed()):
            if any(isinstance(spec, _OfAnyRank) for spec in jax.tree.leaves(self._open, is_leaf=_is_spec)):
                bound = inspect.signature(self.python_function).bind(*args, **kwargs).args
                fitted = [_fitted_nest(*pair) for pair in zip(self._open, bound, strict=False)]
                args, kwargs = (*fitted, *bound[len(fitted) :]), {}
            return super().__call__(*args, **kwargs)
        executor, self.ran_as_python = Eager(self._compiled), True
        with Context.entered(Context(context.strategy, context.replica, executor)):
            return self.python_function(*args, **kwargs)

    def get_concrete_function(self, *args: Nest, **kwargs: Nest) -> _Concrete:
        """Makes the function for arguments of declared shapes and types, which it checks in each call.

        It takes the arguments for which a spec or an array is given here; the others stay as they are given. It is
        compiled when it is first called, and is no graph.

        Args:
          *args: `tf.TensorSpec`s, arrays or Python values, in nests too; none if there is an `input_signature`.
          **kwargs: the same by keyword.

        Raises:
          TypeError: they are not the function's arguments.

        Source: `tf.function`.
        """
        if not args and not kwargs and self.input_signature is not None:
            args = tuple(self.input_signature)
        return _Concrete(Concrete(self.python_function, args, kwargs))

    def _compiled(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled form of a replica function, which it does not keep alive; the same one each time."""
        if isinstance(run, Function):
            return run
        # A bound method is a new object each time that it is asked for: its object and function are what stays.
        method = isinstance(run, MethodType)
        owner, key = (run.__self__, run.__func__) if method else (run, None)
        try:
            known = self._replicas.setdefault(owner, {})
        except TypeError:  # an object that cannot be a key
            return jd.function(run)
        if key not in known:
            # Strong, it would keep its own key alive, and the table would grow with each function that a loop makes.
            reference = weakref.WeakMethod(run) if method else weakref.ref(run)

            def replica(*args: Nest, **kwargs: Nest) -> Any:
                alive = reference()
                assert alive is not None
                return alive(*args, **kwargs)

            replica.__name__ = getattr(run, "__name__", "replica")
            known[key] = jd.function(replica)
        return known[key]


class _Concrete(_Function):
    """Result of `get_concrete_function`."""

    def __init__(self, concrete: Concrete) -> None:
        super().__init__(concrete.function, concrete.specs)
        self._concrete = concrete

    def __call__(self, *args: Nest, **kwargs: Nest) -> Any:
        """Calls the function with the arguments that are open."""
        return super().__call__(*self._concrete.opened(args, kwargs))


class _Around:
    """Names of the code around a function over which it may loop: those that it uses as they are.

    Args:
      function: the function, or one that wraps it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._cells: list[CellType] = []
        self._names: set[str] = set()
        self._globals: dict[str, Any] = {}
        inner = inspect.unwrap(function)
        inner = inner.__func__ if isinstance(inner, MethodType) else inner
        if not isinstance(inner, FunctionType):
            return
        pairs = itertools.pairwise(dis.get_instructions(inner))
        taken = {one.argval for one, then in pairs if one.opname in _FROM_AROUND and then.opname not in _ASKS_IT}
        cells = dict(zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True))
        self._cells = [cell for name, cell in cells.items() if name in taken]
        self._names, self._globals = taken - cells.keys(), inner.__globals__

    def has_distributed(self) -> bool:
        """True if one of them is a distributed dataset now."""
        return any(isinstance(self._globals.get(name), DistributedDataset) for name in self._names) or any(
            isinstance(cell.cell_contents, DistributedDataset) for cell in self._cells if _is_set(cell)
        )


_FROM_AROUND = {"LOAD_DEREF", "LOAD_GLOBAL"}
_ASKS_IT = {"LOAD_ATTR", "LOAD_METHOD"}
"""Instructions behind the one that loads a name, which take something else: `dataset.element_spec`."""


def _is_set(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # the code around has not come to it yet
        return False
    return True


def _as_result(leaf: Leaf) -> Any:
    if isinstance(leaf, np.ndarray) and leaf.dtype == np.object_ and Context.current().executor.traced:
        return leaf.tolist()  # texts, which a compiled program gives as they are
    return as_tensor(leaf) if isinstance(leaf, (bool, int, float, complex)) else leaf


@dataclass(frozen=True)
class _OfAnyRank:
    """Stands for a spec of unknown rank: a value without a shape, of which nothing more is to be checked."""

    dtype: np.dtype[Any]


def _opened(spec: Leaf) -> Any:
    return _OfAnyRank(spec.dtype) if isinstance(spec, TensorSpec) and spec.shape.rank is None else spec


def _is_spec(node: Nest) -> bool:
    return isinstance(node, (TensorSpec, _OfAnyRank))


def _fitted_nest(specs: Nest, value: Nest) -> Nest:
    """An argument with `_fitted` leaves; one of another structure as it is, which the signature refuses."""
    leaves, tree = jax.tree.flatten(specs, is_leaf=_is_spec)
    try:
        values = tree.flatten_up_to(value)
    except ValueError:
        return value
    return tree.unflatten(map(_fitted, leaves, values))


def _fitted(spec: Leaf, value: Nest) -> Any:
    """An argument as an array of the type that a spec of unknown rank promises.

    Raises:
      ArgumentError: it is of another type.
    """
    if not isinstance(spec, _OfAnyRank) or isinstance(value, jd.DistributedValues):
        return value
    array = as_tensor(value, spec.dtype) if isinstance(value, (bool, int, float, complex, list)) else as_tensor(value)
    if array.dtype != jax.dtypes.canonicalize_dtype(spec.dtype):
        raise ArgumentError(f"an argument is of {array.dtype}, not {spec.dtype}. HINT: tf.cast it.")
    return array


_OPTIONS = {
    "autograph",
    "experimental_attributes",
    "experimental_autograph_options",
    "experimental_compile",
    "experimental_follow_type_hints",
    "experimental_implements",
    "experimental_relax_shapes",
    "jit_compile",
    "reduce_retracing",
}


def device(device_name: str | Device | None) -> AbstractContextManager[Any]:
    """Makes arrays that nothing else places lie on a device, within a `with` block.

    Raises:
      DeviceError: no such device.

    Source: `tf.device`.
    """
    return nullcontext() if device_name is None else jax.default_device(resolve_device(device_name))


def control_dependencies(control_inputs: Nest) -> AbstractContextManager[None]:
    """Does nothing: the order of a program's effects is that of its lines. Source: `tf.control_dependencies`."""
    return nullcontext()


def group(*inputs: Nest, **kwargs: Nest) -> None:
    """Does nothing: what has been called has happened. Source: `tf.group`."""


def no_op(name: str | None = None) -> None:
    """Does nothing. Source: `tf.no_op`."""


def executing_eagerly() -> bool:
    """Returns whether the code runs as Python, and is not being traced. Source: `tf.executing_eagerly`."""
    return not Context.current().executor.traced


def get_logger() -> logging.Logger:
    """Returns Python's logger of the name `tensorflow`; nothing here writes to it. Source: `tf.get_logger`."""
    return logging.getLogger("tensorflow")


def enable_eager_execution(config: Nest = None, device_policy: Nest = None, execution_mode: Nest = None) -> None:
    """Does nothing: everything is eager unless a `tf.function` traces it.

    Source: `tf.compat.v1.enable_eager_execution`.
    """


def print(*inputs: Nest, end: str = "\n", sep: str = " ", output_stream: TextIO | None = None) -> None:
    """Writes values to stderr, in a compiled program each time that it runs. Source: `tf.print`."""
    stream = sys.stderr if output_stream is None else output_stream

    def write(*values: Nest) -> None:
        stream.write(sep.join(map(_shown, values)) + end)

    leaves, tree = jax.tree.flatten(jax.tree.map(_by_replica, inputs, is_leaf=_is_distributed))
    # A variable of Keras's stands for what it holds, too.
    leaves = list(map(operand, (getattr(leaf, "value", leaf) if _is_keras(leaf) else leaf for leaf in leaves)))
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        # Texts cannot be arguments of a callback: they are put in where the arrays come back.
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def write_traced(*arrays: Array) -> None:
            values = dict(enumerate(leaves)) | dict(zip(places, arrays, strict=True))
            write(*tree.unflatten(values.values()))

        jax.debug.callback(write_traced, *(leaves[place] for place in places))
    else:
        write(*tree.unflatten(leaves))


def _is_keras(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "keras" or hasattr(value, "__jd_variable__")


def _is_distributed(value: Nest) -> bool:
    return isinstance(value, jd.DistributedValues)


def _by_replica(value: Nest) -> Any:
    """A value that replicas share, or else the replicas' values by their numbers: a callback gets no placed ones."""
    if isinstance(value, jd.Variable):
        return value.read_value()
    if isinstance(value, jd.DistributedValues):
        same = len(value.values) == 1 or isinstance(value, jd.Mirrored)
        return value.values[0] if same else dict(enumerate(value.values))
    return value


class _Text(str):
    """A text that nests show without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _shown(value: Nest) -> str:
    if _is_nest(value):  # arrays within as those beside it, in place of `array([1, 2])`
        return str(jax.tree.map(lambda leaf: _Text(_shown(leaf)), value, is_leaf=lambda leaf: not _is_nest(leaf)))
    return str(np.asarray(value)) if isinstance(value, jax.Array) else str(value)


def _is_nest(value: Nest) -> bool:
    return isinstance(value, (list, tuple, dict))
