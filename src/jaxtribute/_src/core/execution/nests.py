"""Splitting nests of arguments and results into arrays and everything else."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, cast

import jax
import numpy as np
from jax.tree_util import default_registry

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.types import Function, Leaf, Nest, Numeric
from jaxtribute._src.core.values.distributed import PerReplica, ReplicaValues
from jaxtribute._src.core.values.operators import operand
from jaxtribute._src.core.values.sparse import is_sparse, refuse_sparse
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentTypeError


def is_distributed(value: Numeric) -> bool:
    """True if `value` has one component a replica."""
    return isinstance(value, ReplicaValues)


def is_whole(value: Numeric) -> bool:
    """True if `value` is one thing to the library, though JAX could look into it.

    Args:
      value: a node of a nest.
    """
    return isinstance(value, (ReplicaValues, Variable))


def is_array(value: Numeric) -> bool:
    """True if `value` is an array on a device, in a trace or in NumPy."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


def lengths(nest: Nest) -> frozenset[int]:
    """The lengths of the arrays in a nest, without those in distributed values."""
    return frozenset(leaf.shape[0] for leaf in flatten(nest)[0] if is_array(leaf) and leaf.ndim)


def is_number(value: Numeric) -> bool:
    """True if `value` is a number of Python."""
    return isinstance(value, (bool, int, float, complex))


def step_of(key: Leaf) -> Leaf:
    """The attribute, key or place in a list that one step of a path of JAX's stands for.

    Args:
      key: a step of a path, as `jax.tree_util.tree_leaves_with_path` gives it.
    """
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)


def variables_in(nest: Nest) -> tuple[tuple[Any, ...], Any]:
    """The leaves of a nest of variables, and its structure; other libraries' models are taught about strategies first.

    Parameters of a model stand in the model's place, and a variable of Keras's is what it stands for.
    """

    def parameters(leaf: Leaf) -> Any:
        return getattr(leaf, "__jd_parameters__", leaf)

    def variable(leaf: Leaf) -> Any:
        return getattr(leaf, "__jd_variable__", leaf)

    contexts.announce()
    whole = jax.tree.map(parameters, nest, is_leaf=_is_variable)
    leaves, tree = jax.tree.flatten(jax.tree.map(variable, whole, is_leaf=_is_variable), is_leaf=_is_variable)
    return tuple(leaves), tree


def _is_variable(leaf: Leaf) -> bool:
    return isinstance(leaf, Variable)


def flatten(nest: Nest) -> tuple[list[Any], Any]:
    """The leaves of `nest`, distributed values and variables kept whole, and its structure."""
    return jax.tree.flatten(nest, is_leaf=is_whole)


ATOMS = (jax.Array, np.ndarray, np.generic, ReplicaValues, Variable, bool, int, float, complex, str, bytes, type(None))
"""Classes of leaves that hold nothing else."""


def reveal(nest: Nest, kinds: tuple[type, ...]) -> list[Any]:
    """Lets JAX know the containers of a nest that hold something of some kinds; returns the leaves then."""
    while True:
        leaves = flatten(nest)[0]
        opaque = [leaf for leaf in leaves if not isinstance(leaf, ATOMS)]
        if not opaque:
            return leaves
        from jaxtribute._src.core.execution.containers import known  # most nests hold none

        if not any(map(known, opaque, repeat(kinds))):
            return leaves


leaves_of = default_registry.flatten
"""`jax.tree.flatten` without the Python around it: the arrays in a nest, and its structure."""


def bundled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call's arguments as one nest, from whose structure it is seen which have been given by name."""
    return {"": args, **kwargs} if kwargs else args


def unbundled(bundle: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of which `bundled` has made `given`."""
    if type(bundle) is tuple:
        return bundle, {}
    kwargs = dict(bundle)
    return kwargs.pop(""), kwargs


def is_plain(tree: Nest) -> bool:
    """True if a structure is of arrays, tuples, lists and dictionaries alone, all of which JAX makes by itself."""
    node = tree.node_data()
    if node is None or node[0] is type(None):
        return True
    return node[0] in (tuple, list, dict) and all(map(is_plain, tree.children()))


def flatten_dense(nest: Nest, what: str) -> tuple[list[Any], Any]:
    """Flattens like `flatten`, and refuses sparse arrays.

    Args:
      nest: any nest.
      what: what it was given to.

    Raises:
      ArgumentTypeError: a sparse array in the nest.
    """
    leaves, tree = jax.tree.flatten(nest, is_leaf=lambda node: is_whole(node) or is_sparse(node))
    for leaf in leaves:
        refuse_sparse(leaf, what)
    return leaves, tree


def at(values: Any, places: Iterable[Any]) -> list[Any]:
    """The values of a sequence, or of a dictionary, in some places."""
    return list(map(values.__getitem__, places))


def map_leaves(function: Any, *nests: Nest) -> Any:
    """Applies `function` to the leaves of nests of one structure, distributed values and variables kept whole.

    Args:
      function: takes one leaf of each nest.
      nests: of the same structure.
    """
    return jax.tree.map(function, *nests, is_leaf=is_whole)


class InputSignature:
    """Declared shapes and dtypes of a function's arguments; numbers among them become arrays, and so do not retrace.

    Args:
      specs: one nest a positional argument: `ArraySpec` (with None for a dimension of any size),
        `jax.ShapeDtypeStruct`, `PerReplicaSpec`, or a dataset's `element_spec`.
      function: the function, whose keyword arguments are put in order.
    """

    def __init__(self, specs: Sequence[Any], function: Function) -> None:
        self._specs = tuple(specs)
        self._parameters = inspect.signature(function)
        self._name = getattr(function, "__name__", "the function")

    def conform(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments in positional order, as arrays of the promised dtypes.

        Raises:
          ArgumentTypeError: their number, structure, a shape or a dtype is not as promised.
        """
        bound = self._parameters.bind(*args, **kwargs).args if kwargs else tuple(args)
        if len(bound) != len(self._specs):
            raise ArgumentTypeError(
                f"{self._name} got {len(bound)} arguments, its input_signature has {len(self._specs)}. "
                "HINT: give one spec for each argument."
            )
        leaves, tree = jax.tree.flatten(self._specs, is_leaf=_is_spec)
        try:
            values = tree.flatten_up_to(bound)
        except ValueError as error:
            raise ArgumentTypeError(
                f"the arguments of {self._name} are not structured as its input_signature: {error}. "
                "HINT: pass what the signature describes, e.g. an element of the dataset whose element_spec it is."
            ) from None
        return tree.unflatten(map(self._fit, values, leaves))

    def _fit(self, value: Numeric, spec: Any) -> Any:
        from jaxtribute._src.core.values.spec import PerReplicaSpec  # here, as few programs need it

        if isinstance(spec, PerReplicaSpec):
            if not isinstance(value, PerReplica):
                raise self._misfit(value, spec)
            for replica, shape in enumerate(value.shapes or _shapes(value)):
                # The last component stands for all further replicas: a spec of one component is for every replica.
                promised = spec.components[min(replica, len(spec.components) - 1)]
                held = value.values[replica] if value.is_tuple else value.data
                if held.dtype != promised.dtype or not _fits(shape, promised.shape):
                    raise self._misfit(value, spec)
            return value
        if is_distributed(value) or not hasattr(spec, "shape"):
            return value
        value = operand(value)
        try:
            array = value if isinstance(value, (jax.Array, np.ndarray)) else np.asarray(value, spec.dtype)
        except (TypeError, ValueError):
            raise self._misfit(value, spec) from None
        if array.dtype != spec.dtype or not _fits(array.shape, spec.shape):
            raise self._misfit(array, spec)
        return array

    def _misfit(self, value: Numeric, spec: Any) -> ArgumentTypeError:
        shown = type(value).__name__
        if isinstance(value, (jax.Array, np.ndarray)):
            shown += f" of shape {value.shape} and dtype {value.dtype}"
        elif isinstance(value, PerReplica):
            shown += f" with components {', '.join(f'{part.dtype}{list(part.shape)}' for part in value.values)}"
        return ArgumentTypeError(
            f"an argument of {self._name} is a {shown}, where its input_signature has {spec}. "
            "HINT: pass arrays of that form; None in a spec's shape stands for any size."
        )


def _is_spec(value: Numeric) -> bool:
    from jaxtribute._src.core.values.spec import ArraySpec, PerReplicaSpec

    return isinstance(value, (PerReplicaSpec, ArraySpec, jax.ShapeDtypeStruct))


def _shapes(value: PerReplica) -> list[tuple[int, ...]]:
    return [part.shape for part in value.values]


def _fits(shape: Sequence[int], promised: Sequence[int | None]) -> bool:
    sizes = cast("Sequence[Any]", promised)
    return len(shape) == len(sizes) and all(
        want is None or have == want for have, want in zip(shape, sizes, strict=True)
    )


class Nests:
    """Nests of arguments and results, as add-ons take them apart."""

    flatten = staticmethod(flatten)
    is_array = staticmethod(is_array)
    is_distributed = staticmethod(is_distributed)
    is_number = staticmethod(is_number)
    is_whole = staticmethod(is_whole)
    map_leaves = staticmethod(map_leaves)
    reveal = staticmethod(reveal)
    step_of = staticmethod(step_of)
