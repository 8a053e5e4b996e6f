"""Places of a program where a fault can happen, and what makes the library pass through them.

| point | is reached |
|---|---|
| `step` | when a `jd.function` is called from outside any other |
| `run` | when `strategy.run` is called |
| `reduce` | when `strategy.reduce` is called |
| `input` | when a distributed iterator is asked for its next element |
| `save` | when a checkpoint is written |
| `restore` | when a checkpoint is read |
| `barrier` | when workers wait for each other |

`step:end` and its like are reached when the call has returned. A program has points of its own where it calls `point`.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from jaxtribute.errors import ArgumentError

END = ":end"
_METHODS = {
    "step": ("jaxtribute._src.execution.function", "Function", "__call__"),
    "run": ("jaxtribute._src.strategies.base", "Strategy", "run"),
    "reduce": ("jaxtribute._src.strategies.base", "Strategy", "reduce"),
    "input": ("jaxtribute._src.input.iterator", "DistributedIterator", "_advance"),
    "save": ("jaxtribute._src.checkpoint.checkpoint", "Checkpoint", "write"),
    "restore": ("jaxtribute._src.checkpoint.checkpoint", "Checkpoint", "_restore"),
    "barrier": ("jaxtribute._src.cluster.runtime", "Cluster", "barrier"),
}

Visitor = Callable[[str], None]

_visitors: list[Visitor] = []
_inside = threading.local()


def point(name: str) -> None:
    """Marks a place of a program at which faults can be injected; does nothing otherwise.

    Args:
        name: What faults call it.
    """
    for visitor in tuple(_visitors):
        visitor(name)


def watch(names: set[str], visitor: Visitor) -> ExitStack:
    """Calls `visitor` whenever a point is reached, until the stack that is returned is closed.

    Args:
        names: The points that matter. Only methods of the library that belong to one of them are touched.
        visitor: Gets the name of the point; what it raises, the program sees.
    """
    with ExitStack() as stack:
        for name in sorted({name.removesuffix(END) for name in names} & _METHODS.keys()):
            stack.callback(_wrap(name))
        _visitors.append(visitor)
        stack.callback(_visitors.remove, visitor)
        return stack.pop_all()


def check(name: str) -> None:
    """Raises where a name cannot be one of a point.

    Raises:
        ArgumentError: It is empty.
    """
    if not isinstance(name, str) or not name.removesuffix(END):
        raise ArgumentError(
            f"{name!r} is no point. HINT: {', '.join(_METHODS)}, with or without {END!r}, or what the program gives "
            "to jd.testing.point."
        )


def _wrap(name: str) -> Callable[[], None]:
    """Lets a method of the library pass through its point; returns what undoes it."""
    module, owner, attribute = _METHODS[name]
    holder = getattr(importlib.import_module(module), owner)
    original: Callable[..., Any] = vars(holder)[attribute]

    @functools.wraps(original)
    def passing(*args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, name, False):
            return original(*args, **kwargs)
        setattr(_inside, name, True)
        try:
            point(name)
            result = original(*args, **kwargs)
            point(name + END)
            return result
        finally:
            setattr(_inside, name, False)

    setattr(holder, attribute, passing)
    return functools.partial(setattr, holder, attribute, original)
