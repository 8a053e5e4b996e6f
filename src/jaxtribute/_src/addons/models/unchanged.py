"""Arrays that code hands back as new objects, though they are those that it got: as `nnx.remat` and `nnx.jit` do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxtribute.extending import Flow, Programs


class _Source(Flow[int]):
    """The number of the program's input that a value is; -1 of what is computed."""

    def equation(self, eqn: Any, given: list[int]) -> list[int]:
        return [-1] * len(eqn.outvars)

    def merged(self, one: int, other: int) -> int:
        return one if one == other else -1

    def chosen(self, by: int, value: int) -> int:
        return value


def unchanged(fn: Callable[[Sequence[Any]], Sequence[Any]], values: Sequence[Any]) -> list[bool]:
    """For each array that `fn` returns, true if it is the one at its place among those that it takes.

    The function is traced for it, without its effects; if it cannot be, nothing is known to be unchanged.
    """
    try:
        closed = jax.make_jaxpr(fn)(list(values))
    except Exception:  # noqa: BLE001 (of the user's code, which has run before)
        return [False] * len(values)
    sources = _Source(-1).outputs(Programs.opened(closed), range(len(values)))
    return [source == place for place, source in enumerate(sources)]
