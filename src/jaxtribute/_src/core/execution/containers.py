"""Containers that JAX does not know: subclasses of dict, list and tuple, dataclasses and classes of attrs.

To JAX they are leaves, which a program can neither take nor give. As in TensorFlow's nests, those that hold arrays are
nests here: their class is told to JAX when the first of them comes.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import jax

from jaxtribute._src.core.execution.nests import ATOMS
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import Leaf
from jaxtribute._src.core.values.distributed import ReplicaValues
from jaxtribute._src.core.values.scatter import IndexedSlices
from jaxtribute._src.core.values.sparse import refuse_sparse
from jaxtribute.errors import ArgumentTypeError, TraceError

_DEPTH = 4
"""Number of containers within each other that are looked into."""


def known(leaf: Leaf, kinds: tuple[type, ...]) -> bool:
    """True if JAX now takes apart what was a leaf before: a container that holds something of some kinds.

    Args:
      leaf: a leaf of a nest.
      kinds: classes.
    """
    # Rows are not a container, on purpose: what is done to each leaf of a nest would change their indices.
    if isinstance(leaf, (*ATOMS, IndexedSlices, type)):
        return False
    parts = _parts_of(type(leaf))
    if parts is None or not _holds(leaf, kinds, _DEPTH):
        return False
    with suppress(ValueError):  # another leaf of the same nest, or another thread, has told JAX of it
        jax.tree_util.register_pytree_node(type(leaf), *parts)
    return True


def refuse_distributed(leaf: Leaf) -> None:
    """Refuses an argument that holds distributed values where they are not found.

    Raises:
      ArgumentTypeError: it does.
    """
    if not isinstance(leaf, ATOMS) and _holds(leaf, (ReplicaValues,), _DEPTH):
        raise ArgumentTypeError(
            f"an argument of class {type(leaf).__name__} holds distributed values, of which each replica is to get its "
            "component, but JAX does not know the class as a container. HINT: pass a dict, list, tuple or dataclass, "
            "or register the class with jax.tree_util.register_pytree_node_class."
        )


def refuse_traced(leaf: Leaf) -> None:
    """Refuses a result of a program that holds arrays where they are not found.

    Raises:
      TraceError: it does.
      ArgumentTypeError: it is rows of an array.
    """
    refuse_sparse(leaf, "the caller of a compiled function")
    if not isinstance(leaf, ATOMS) and _holds(leaf, (Tracer,), _DEPTH):
        raise TraceError(
            f"a compiled function returns an object of class {type(leaf).__name__} that holds arrays of the program, "
            "which have no value outside of it, and JAX does not know the class as a container. HINT: return a dict, "
            "list, tuple or dataclass, or register the class with jax.tree_util.register_pytree_node_class."
        )


def _holds(value: object, kinds: tuple[type, ...], depth: int) -> bool:
    """True if a container holds something of some kinds."""
    if isinstance(value, kinds):
        return True
    if not depth or isinstance(value, (*ATOMS, type)):
        return False
    return any(_holds(part, kinds, depth - 1) for part in _inside(value))


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, deque)):
        return list(value)
    if isinstance(value, SimpleNamespace):
        return list(vars(value).values())
    return at_fields(value, _fields(type(value)))


def _fields(cls: type) -> list[str]:
    """The names of a dataclass's, or an attrs class's, fields."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return [field.name for field in getattr(cls, "__attrs_attrs__", ())]


def at_fields(value: object, names: Iterable[str]) -> list[Any]:
    """The attributes of an object with some names; None for those that it lacks."""
    return [getattr(value, name, None) for name in names]


Parts = tuple[Callable[[Any], tuple[Any, Any]], Callable[[Any, Any], Any]]
"""Functions that take a container apart and put it together, as JAX wants them."""


def _parts_of(cls: type) -> Parts | None:
    """The functions that take objects of a class apart and together; None if there are none."""
    if issubclass(cls, dict):
        return _dict_parts(cls)
    if issubclass(cls, (list, tuple)):
        return _sequence_parts(cls)
    names = _fields(cls)
    return _object_parts(cls, names) if names else None


def _dict_parts(cls: Any) -> Parts:
    base: Any = OrderedDict if issubclass(cls, OrderedDict) else dict

    def flatten(value: Any) -> tuple[Any, Any]:
        return (dict(value), dict(getattr(value, "__dict__", {}))), getattr(value, "default_factory", None)

    def unflatten(factory: Any, children: Any) -> Any:
        made = cls.__new__(cls)
        if issubclass(cls, defaultdict):
            made.__setattr__("default_factory", factory)
        for key, child in children[0].items():
            base.__setitem__(made, key, child)
        _give_attributes(made, children[1])
        return made

    return flatten, unflatten


def _sequence_parts(cls: Any) -> Parts:
    def flatten(value: Any) -> tuple[Any, Any]:
        return (list(value), dict(getattr(value, "__dict__", {}))), None

    def unflatten(_: None, children: Any) -> Any:
        if issubclass(cls, tuple):
            made: Any = tuple.__new__(cls, children[0])
        else:
            made = cls.__new__(cls)
            list.extend(made, children[0])
        _give_attributes(made, children[1])
        return made

    return flatten, unflatten


def _object_parts(cls: Any, names: list[str]) -> Parts:
    def flatten(value: Any) -> tuple[Any, Any]:
        return at_fields(value, names), None

    def unflatten(_: None, children: Any) -> Any:
        made = object.__new__(cls)
        _give_attributes(made, dict(zip(names, children, strict=True)))
        return made

    return flatten, unflatten


def _give_attributes(made: object, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        object.__setattr__(made, name, value)  # frozen dataclasses have no other way
