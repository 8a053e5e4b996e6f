"""Warns of arrays that replicas replace: those that users keep in attributes, dictionaries, lists and names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxtribute.extending import Callers, Nests, Tracer, points
from jaxtribute.typing import Function, Leaf, Nest

_DEPTH = 4
_LOOKS = 200
"""Number of objects that are looked at: each eager step pays for it."""
_is_of_user = lru_cache(maxsize=1024)(Callers.is_of_user)


class _Place(NamedTuple):
    """Place of a value: under a key of a dictionary, at an index of a list, or in the cell of a closure's variable."""

    container: Any
    key: Any
    name: str
    value: Any

    def now(self) -> Any:
        """The value that lies there now; None if the place has gone."""
        if isinstance(self.container, CellType):
            return self.container.cell_contents
        if isinstance(self.container, dict):
            return self.container.get(self.key)
        return self.container[self.key] if self.key < len(self.container) else None


def look(fn: Function, nest: Nest, replicas: int) -> Callable[[], None]:
    """Looks at the arrays that a replica function can reach.

    Args:
      fn: the replica function.
      nest: its arguments.
      replicas: the number of replicas.

    Returns:
      A function to be called when the replicas have run: it warns of the arrays that were replaced.
    """
    return partial(_warn, list(_places(fn, nest)), replicas)


def _warn(places: list[_Place], replicas: int) -> None:
    for place in places:
        value = place.now()
        if value is place.value or not isinstance(value, jax.Array | np.ndarray):
            continue
        if isinstance(value, Tracer):
            told = "holds what was traced, no array, once the function is compiled"
        elif replicas == 1:
            continue
        else:
            told = f"was replaced while {replicas} replicas ran, by each for itself: nothing is reduced between them"
        Callers.warn(
            f"{place.name}, an array outside of a replica function, {told}. HINT: make it a variable in the strategy's "
            "scope, jd.Variable(value, aggregation='mean'), or return the new value."
        )


def _places(fn: Function, nest: Nest) -> Iterator[_Place]:
    """The places with arrays, in what the function closes over, in its globals, its object and its arguments."""
    leaves = jax.tree.leaves(
        nest, is_leaf=Nests.is_whole
    )  # a variable is looked at in no way: its value may be no one array
    pending: list[tuple[Any, str, int]] = [(leaf, type(leaf).__name__, _DEPTH) for leaf in leaves if _opens(type(leaf))]
    pending.append((fn, "", _DEPTH))
    seen = set[int]()
    while pending and len(seen) < _LOOKS:
        whole, name, depth = pending.pop()
        if id(whole) in seen:
            continue
        seen.add(id(whole))
        for place in _inside(whole, name):
            if _is_array(type(place.value)):
                yield place
            elif depth and _opens(type(place.value)):
                pending.append((place.value, place.name, depth - 1))


def _inside(whole: Leaf, name: str) -> Iterator[_Place]:
    kind = type(whole)
    if kind is FunctionType:
        # Names of modules' functions are many and change nothing: a library's function is looked at if it is called
        # for the replicas itself.
        if not name or _is_of_user(whole.__module__):
            yield from _names(whole)
    elif kind is MethodType:
        yield _Place(None, None, type(whole.__self__).__name__, whole.__self__)
        yield _Place(None, None, name, whole.__func__)
    elif kind is partial:
        for part in (whole.func, *whole.args, *whole.keywords.values()):
            yield _Place(None, None, name or type(part).__name__, part)
    elif kind in (dict, list):
        if len(whole) < _LOOKS:
            for key, value in whole.items() if kind is dict else enumerate(whole):
                yield _Place(whole, key, f"{name}[{key!r}]", value)
    elif hasattr(whole, "__dict__"):
        for key, value in vars(whole).items():
            yield _Place(vars(whole), key, f"{name}.{key}", value)


@lru_cache(maxsize=1024)
def _opens(kind: type[Any]) -> bool:
    """True if there may be places in objects of a class. Each eager step asks it of all that its function can reach."""
    containers = (FunctionType, MethodType, partial, dict, list)
    return kind in containers or (_is_of_user(kind.__module__) and not issubclass(kind, type))


@lru_cache(maxsize=1024)
def _is_array(kind: type[Any]) -> bool:
    """True for classes of arrays; asking each object takes JAX much longer."""
    return issubclass(kind, (jax.Array, np.ndarray, Tracer))


def _names(fn: FunctionType) -> Iterator[_Place]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield _Place(cell, None, name, cell.cell_contents)
        except ValueError:  # nothing was assigned to it so far
            continue
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            yield _Place(fn.__globals__, name, name, fn.__globals__[name])


points.RUNS.register(look)
