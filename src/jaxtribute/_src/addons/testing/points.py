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

from collections.abc import Callable
from contextlib import ExitStack

from jaxtribute.errors import ArgumentError
from jaxtribute.experimental import Event, Observer
from jaxtribute.extending import Kinds, subscribe

END = ":end"
_OF_THE_LIBRARY = ("step", "run", "reduce", "input", "save", "restore", "barrier")

Visitor = Callable[[str], None]


class _Visits(Observer):
    """Tells a visitor the names of points."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor

    def on_start(self, event: Event) -> None:
        self._visitor(event.name if event.kind == Kinds.POINT.name else event.kind)

    def on_end(self, event: Event) -> None:
        # A call that raises does not return.
        if event.error is None and event.kind != Kinds.POINT.name:
            self._visitor(event.kind + END)


def point(name: str) -> None:
    """Marks a place of a program at which faults can be injected; does nothing otherwise.

    Args:
        name: What faults call it.
    """
    # A program may pass here in its innermost loop.
    if Kinds.POINT.observers:
        Kinds.POINT.around(_pass, None, name, name)


def watch(names: set[str], visitor: Visitor) -> ExitStack:
    """Calls `visitor` whenever a point is reached, until the stack that is returned is closed.

    Args:
        names: The points that matter. Of the library's, only those with one of these names are told.
        visitor: Gets the name of the point; what it raises, the program sees.
    """
    # An observer costs time at each event of its kinds.
    kinds = {name.removesuffix(END) for name in names} & set(_OF_THE_LIBRARY)
    with ExitStack() as stack:
        stack.callback(subscribe(_Visits(visitor), Kinds.POINT.name, *sorted(kinds)))
        return stack.pop_all()


def check(name: str) -> None:
    """Raises where a name cannot be one of a point.

    Raises:
        ArgumentError: It is empty.
    """
    if not isinstance(name, str) or not name.removesuffix(END):
        raise ArgumentError(
            f"{name!r} is no point. HINT: {', '.join(_OF_THE_LIBRARY)}, with or without {END!r}, or what the "
            "program gives to jd.testing.point."
        )


def _pass(name: str) -> None:
    """A point of a program, if nothing happens but what observers do."""
    del name
