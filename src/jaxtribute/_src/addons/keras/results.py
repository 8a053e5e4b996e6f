"""Results of users' metrics: `return self.total` gives the variable's value there, as it does in TensorFlow.

Keras on JAX hands the variable itself on, which no compiled step can return, and which changes after a history kept it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import keras

from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.variables import StrategyVariable
from jaxtribute.extending import Context
from jaxtribute.typing import Foreign, Leaf

_MARK = "_jaxtribute_values"
"""The attribute of a method `result` that gives values."""


def made(original: Callable[..., Any], metric: Foreign, *args: Leaf, **kwargs: Leaf) -> None:
    """A metric's `__init__`, behind which its class gives values."""
    _give_values(type(metric))
    original(metric, *args, **kwargs)


def known_give_values() -> None:
    """Lets the classes of metrics that there are give values: of some there may be metrics already."""
    waiting: list[type[Any]] = [keras.metrics.Metric]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        for cls in below:
            _give_values(cls)


def _give_values(cls: type[Any]) -> None:
    owner = internals.owner(cls, "result")
    # Keras's own compute what they give.
    if owner is None or internals.is_keras(owner) or hasattr(vars(owner)["result"], _MARK):
        return
    original: Callable[..., Any] = vars(owner)["result"]

    @functools.wraps(original)
    def result(*args: Leaf, **kwargs: Leaf) -> Any:
        return jax.tree.map(_value, original(*args, **kwargs))

    setattr(result, _MARK, True)
    setattr(owner, "result", result)  # noqa: B010 (a method of any class)


def _value(leaf: Leaf) -> Any:
    ours = isinstance(leaf, StrategyVariable) or (
        isinstance(leaf, keras.Variable) and not Context.current().strategy.is_default
    )
    return leaf.value if ours else leaf
