"""Moments of a run that others may want to see: beginnings and ends of steps, input, saves, barriers.

| event | phases | facts |
|---|---|---|
| `step` | start, end | the compiled program |
| `input` | start, end | the iterator; the element that it gave, None at the end of the data |
| `save` | start, end | the checkpoint's path: the time for which the training waits |
| `written` | start, end | the checkpoint's path: the writing, in a thread of its own |
| `awaited` | start, end | nothing: the training waits for the writing of a checkpoint |
| `restore` | start, end | the checkpoint's path |
| `barrier` | start, end | the text of what is waited for |
| `absent` | at | the names of the workers that are waited for |
| `metrics` | at | the step and a mapping from names to numbers |

An event that raises has no end. Places that are passed at every step ask `observers` first, so that nobody's looking
costs the truth value of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from jaxtribute._src.types import Foreign

Observer = Callable[[str, str, Foreign], None]
"""A function of the event, the phase and the facts. It must not raise, and is called in the thread of the event."""

observers: list[Observer] = []
"""Observers of this process; empty where nobody looks."""


def observe(event: str, phase: str, facts: Foreign = None) -> None:
    """Tells all observers of a moment."""
    for observer in observers:
        observer(event, phase, facts)


@contextmanager
def observing(event: str, facts: Foreign = None) -> Generator[None]:
    """Tells all observers of the start and, however the block is left, of the end; for what is rare."""
    observe(event, "start", facts)
    try:
        yield
    finally:
        observe(event, "end", facts)
