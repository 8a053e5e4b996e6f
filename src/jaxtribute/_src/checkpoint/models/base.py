"""The registry of models of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from jaxtribute._src.checkpoint.leaves import Leaf

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Adapter:
    """Adapter to a library's way of keeping state.

    Attributes:
      name: the library's.
      accepts: whether a value is one of its objects that hold state.
      leaves: the state's values with their keys, each once, in an order that is the same in every process.
    """

    name: str
    accepts: Callable[[Any], bool]
    leaves: Callable[[Any], Iterable[tuple[Key, Leaf]]]


adapters: list[Adapter] = []
"""All that have registered themselves."""


def register(name: str, accepts: Callable[[Any], bool], leaves: Callable[[Any], Iterable[tuple[Key, Leaf]]]) -> None:
    """Adds an adapter."""
    adapters.append(Adapter(name, accepts, leaves))
