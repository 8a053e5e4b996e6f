"""Messages between the runner and its processes, over a pair of sockets that the process inherits.

Functions go by module and name. One that has no such name (a lambda, a function inside another, one of a notebook)
goes by value, which takes cloudpickle. Nothing that came over a network is ever read here.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxtribute.errors import ArgumentTypeError

Function = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """Request to a process.

    Attributes:
        path: `sys.path` of the caller.
        module: The name and file of the module that the function is written in.
        payload: Function, arguments and keyword arguments, pickled.
    """

    path: list[str]
    module: tuple[str, str | None]
    payload: bytes


@dataclass(frozen=True)
class Answer:
    """Answer of a process: a pickled value, or an error with its traceback as text."""

    value: bytes = b""
    error: str = ""
    traceback: str = field(default="", repr=False)


class _Pickler(pickle.Pickler):
    """Arrays of JAX travel as those of NumPy: the reader need not start a backend to look at them."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, jax.Array):
            return np.asarray(obj).__reduce__()
        return NotImplemented


def dump(value: object) -> bytes:
    """Pickles a value by the names of its classes and functions."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def encode_call(function: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Writes a call down.

    Raises:
        ArgumentTypeError: Function or arguments cannot be sent, or cloudpickle is needed and not installed.
    """
    content = (function, args, dict(kwargs))
    try:
        payload = dump(content) if _has_name(function) else _dump_by_value(content)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ArgumentTypeError(
            f"{function!r} and its arguments cannot be sent to another process: {error}. "
            "HINT: pass plain values, and make what cannot be pickled inside the function."
        ) from error
    # The function is pickled apart: the reader needs the path around it to find the module that it names.
    return pickle.dumps(Call(list(sys.path), _home(function), payload))


def _has_name(function: Function) -> bool:
    # Lambdas and functions inside others have a "<" in their names; `__main__` is another program in another process.
    name, module = getattr(function, "__qualname__", "<"), getattr(function, "__module__", None)
    return "<" not in name and module not in (None, "__main__") and _file(module) is not None


def _home(function: Function) -> tuple[str, str | None]:
    name = getattr(function, "__module__", None) or "builtins"
    return ("builtins", None) if name == "__main__" else (name, _file(name))


def _file(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


def _dump_by_value(content: tuple[Function, tuple[Any, ...], dict[str, Any]]) -> bytes:
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        raise ArgumentTypeError(
            f"{content[0]!r} has no name by which another process could import it. "
            "HINT: define it at the top of a module, or install cloudpickle (pip install -e '.[testing]')."
        ) from error

    # Made here, as the library that it builds on may be missing.
    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: object) -> Any:
            if isinstance(obj, jax.Array):
                return np.asarray(obj).__reduce__()
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer).dump(content)
    return buffer.getvalue()
