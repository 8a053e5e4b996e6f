"""Modules of Flax NNX, and nests of them, taken apart by the type of their variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.nnx as nnx  # pyright: ignore[reportMissingImports]
import jax
import numpy as np

from jaxtribute._src.addons.models.parts import Kind, Part, Path, is_array, is_inexact
from jaxtribute.errors import VariableError
from jaxtribute.extending import Nests
from jaxtribute.typing import Leaf, Nest

_nnx: Any = nnx


def accepts(model: Nest) -> bool:
    """True if a module of NNX is among the leaves."""

    def is_module(leaf: Leaf) -> bool:
        return isinstance(leaf, _nnx.Pytree)

    return any(map(is_module, jax.tree.leaves(model, is_leaf=is_module)))


def take_apart(model: Nest, wrt: Any) -> tuple[list[Part], Outline]:
    """The arrays of all variables; what several modules share comes once. `wrt` is a filter, as of `nnx.Optimizer`."""
    # `split` finds what is shared by identity, and puts it into the state once.
    graph, state = _nnx.split(model)
    is_trained = None if wrt is None else _nnx.filterlib.to_predicate(wrt)
    parts: list[Part] = []
    for path, owner, array in _arrays(state):
        kind = _kind(owner, array)
        if is_trained is not None:
            chosen = is_inexact(array) and is_trained(path, owner)
            kind = Kind.PARAMETER if chosen else Kind.FROZEN if kind is Kind.PARAMETER else kind
        parts.append(Part(path, array, kind))
    return parts, Outline(graph, jax.tree.structure(state), parts)


class Outline:
    """The graph of a module.

    Args:
      graph: what `nnx.split` gives besides the state.
      structure: the structure of the state, a nest.
      parts: the arrays.
    """

    def __init__(self, graph: Leaf, structure: Leaf, parts: Sequence[Part]) -> None:
        self._graph, self._structure = graph, structure
        self._paths = [part.path for part in parts]
        self._parameters = [part.path for part in parts if part.kind is Kind.PARAMETER]

    def build(self, values: Sequence[Any]) -> Any:
        """A new module."""
        return _nnx.merge(self._graph, self._structure.unflatten(values))

    def values(self, model: Nest) -> list[Any]:
        """The arrays of a module, whatever its other attributes are now."""
        # By path, not by place: what code adds to a module would move all that comes behind.
        found = {path: array for path, _, array in _arrays(_nnx.split(model)[1])}
        new = [path for path in found if path not in set(self._paths)]
        lost = [path for path in self._paths if path not in found]
        if new or lost:
            raise VariableError(
                f"the code that used the module has added the variables {new} to it and removed {lost}, but a "
                "jd.Model keeps those that it was made of. HINT: take what nnx.Module.sow adds out again with nnx.pop, "
                "in a function passed to jd.Model.apply, and make all others before the jd.Model."
            )
        return [found[path] for path in self._paths]

    def nest(self, leaves: Sequence[Any]) -> Any:
        """A dict of dicts by the names of attributes, as `nnx.to_pure_dict` gives."""
        whole: dict[Any, Any] = {}
        for path, leaf in zip(self._parameters, leaves, strict=True):
            inner = whole
            for step in path[:-1]:
                inner = inner.setdefault(step, {})
            inner[path[-1]] = leaf
        return whole

    def wider_than(self, dtype: Any, model: Nest) -> list[str]:
        """The paths of modules that have settled for a longer floating type, as `nnx.Embed` does for its array's."""
        longer = [
            np.dtype(name) for name in ("float32", "float64") if np.dtype(name).itemsize > np.dtype(dtype).itemsize
        ]
        modules = ((path, part) for path, part in _nnx.iter_graph(model) if isinstance(part, _nnx.Module))
        settled = ((path, getattr(module, "dtype", None)) for path, module in modules)
        # By `==`, as a module may be told the class `jnp.float32`.
        return ["/".join(map(str, path)) for path, own in settled if own is not None and own in longer]


def _arrays(state: Nest) -> list[tuple[Path, Any, Any]]:
    """Path, owner and value of each array of a state, in the order of its leaves; mostly the owner is a variable."""

    def is_variable(value: Leaf) -> bool:
        return isinstance(value, _nnx.Variable)

    found: list[tuple[Path, Any, Any]] = []
    # Two walks: the owner's type says what an array is for, and its value may be a nest of arrays.
    for path, owner in jax.tree.leaves_with_path(state, is_leaf=is_variable):
        steps = tuple(map(Nests.step_of, path))
        if not is_variable(owner):
            found.append((steps, owner, owner))
            continue
        for inner, array in jax.tree.leaves_with_path(owner.get_value()):
            found.append(((*steps, *map(Nests.step_of, inner)), owner, array))
    return found


def _kind(owner: Leaf, array: Leaf) -> Kind:
    if not is_array(array):
        return Kind.FIXED
    # Before its base class, whose other heir is the count: that one must move alike on all replicas, keys must not.
    if isinstance(owner, _nnx.RngKey):
        return Kind.KEY
    if isinstance(owner, _nnx.RngState):
        return Kind.ALIKE
    if isinstance(owner, _nnx.BatchStat):
        return Kind.STATISTIC if is_inexact(array) else Kind.ALIKE
    trained = isinstance(owner, (_nnx.Param, _nnx.LoRAParam)) and is_inexact(array)
    return Kind.PARAMETER if trained else Kind.FIXED
