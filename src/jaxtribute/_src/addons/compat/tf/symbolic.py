"""Functions of `tf` as users call them: in the making of a Keras model, too, as `tf.reduce_mean(layer(x), axis=1)`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from inspect import isfunction
from typing import Any

from jaxtribute._src.addons.compat.tf.components import together
from jaxtribute.typing import Foreign, Nest


def allow_in_models(module: str, home: str, names: Iterable[str] | None = None) -> None:
    """Lets functions take a Keras model's symbolic tensors, and components of distributed values, too.

    Args:
      module: the module that defines them, which is being imported.
      home: the public module that a model's file finds them in.
      names: their names; by default those of all public functions.
    """
    defined = vars(sys.modules[module])
    if names is None:
        names = [name for name, one in defined.items() if isfunction(one) and one.__module__ == module]
    made: dict[Callable[..., Any], Callable[..., Any]] = {}
    for name in names:
        if not name.startswith("_"):
            function = defined[name]
            if function not in made:  # one function may have several names
                made[function] = _taking_symbols(function, f"{home}.{name}")
            defined[name] = made[function]


def _taking_symbols(function: Callable[..., Any], full_name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Nest, **kwargs: Nest) -> Any:
        if "keras" in sys.modules and (any(map(_is_symbol, args)) or any(map(_is_symbol, kwargs.values()))):
            from jaxtribute._src.addons.keras.functions import apply_symbolically  # needs Keras

            return apply_symbolically(full_name, args, kwargs)
        args, kwargs = together((args, kwargs))
        return function(*args, **kwargs)

    return call


def _is_symbol(value: Foreign) -> bool:
    """True for a symbolic tensor of Keras, and for a list or tuple with one."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_symbol, value))
    # By its name first: Keras may be half imported, and most values are arrays.
    return type(value).__name__ == "KerasTensor" and isinstance(value, sys.modules["keras"].KerasTensor)
