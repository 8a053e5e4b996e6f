"""Gradients as users give them, brought into the order of the variables that they are for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from jaxtribute._src.core.execution.nests import step_of
from jaxtribute._src.core.types import Leaf, Nest, Numeric
from jaxtribute._src.core.values.distributed import Mirrored, PerReplica
from jaxtribute._src.core.values.operators import operand
from jaxtribute._src.core.values.scatter import IndexedSlices
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError, ShapeError

_NUMBERS = jax.tree_util.SequenceKey, jax.tree_util.FlattenedIndexKey


class Targets:
    """The variables that gradients are given for, and the places where a nest of gradients has theirs.

    Args:
      variables: the variables, in the order of the nest's leaves.
      tree: the structure of the nest.
      listed: the same variables in the order in which the user has them, which JAX sorts in dictionaries.
    """

    def __init__(self, variables: Sequence[Variable], tree: Any, listed: Sequence[Variable]) -> None:
        self.variables, self._tree = tuple(variables), tree
        numbers = tree.unflatten(range(len(variables)))
        self._paths = [_steps(path) for path, _ in jax.tree_util.tree_leaves_with_path(numbers)]
        # A list in another order would pass for one in this order.
        moved = [(one, other) for one, other in zip(variables, listed, strict=True) if one is not other]
        self._unclear = names_of(one for one, _ in moved) if all(a.shape == b.shape for a, b in moved) else []

    def ordered(self, grads_and_vars: Any) -> list[Any]:
        """Returns one gradient for each variable, in the variables' order.

        Args:
          grads_and_vars: a nest of gradients like that of the variables, a list of them, or pairs of a gradient and its
            variable.

        Raises:
          ArgumentError: a gradient is missing, None or one too many; the nest is another one than the variables'.
          ShapeError: a gradient is shaped neither as its variable nor, as all others, as that for each of some
            examples.
        """
        given = list(grads_and_vars) if isinstance(grads_and_vars, zip) else grads_and_vars
        pairs = list(map(_opened_pair, cast("Any", given))) if isinstance(given, (list, tuple)) else []
        if pairs and all(map(_is_pair, pairs)):
            grads = _by_pairs(pairs, self.variables)
        else:
            grads = self._of_nest(given)
        grads = list(map(_given, grads, self.variables))
        if not for_examples(grads, self.variables):
            for grad, variable in zip(grads, self.variables, strict=True):
                _check_shape(grad, variable)
        return grads

    def _of_nest(self, nest: Nest) -> list[Any]:
        # Mirrored values are nests of JAX's, and their places would be other than the variables'.
        nest = jax.tree.map(_data, nest, is_leaf=lambda leaf: isinstance(leaf, (Mirrored, PerReplica)))
        leaves, tree = jax.tree.flatten(nest, is_leaf=lambda leaf: isinstance(leaf, PerReplica))
        if tree == self._tree:
            return leaves
        # None is a leaf here, so that a gradient that is missing is told with its variable's name, and not only
        # counted.
        whole = jax.tree_util.tree_leaves_with_path(
            nest, is_leaf=lambda leaf: leaf is None or isinstance(leaf, PerReplica)
        )
        present = [(path, grad) for path, grad in whole if grad is not None]
        # A nest such as Equinox's holds None for what is no array in a module.
        pairs = present if len(present) == len(self.variables) else whole
        by_path = {_steps(path): grad for path, grad in pairs}
        if set(by_path) == set(self._paths):
            return [by_path[path] for path in self._paths]
        if len(pairs) != len(self.variables):
            raise ArgumentError(
                f"{len(pairs)} gradients for {len(self.variables)} variables. HINT: pass one for each variable, in the "
                "order given to jd.Optimizer, or pairs; jd.Optimizer(..., wrt=) takes gradients of some of them."
            )
        if len(pairs) > 1:
            self._check_order([path for path, _ in pairs])
        return [grad for _, grad in pairs]

    def _check_order(self, paths: Sequence[Any]) -> None:
        """Checks that gradients which lie elsewhere than their variables are a list in an order that is known.

        Raises:
          ArgumentError: they are not.
        """
        named = [path for path in paths if not all(isinstance(key, _NUMBERS) for key in path)]
        if named:
            ours = ", ".join("".join(f"[{step}]" for step in path) for path in self._paths)
            raise ArgumentError(
                f"the gradients are in a nest {', '.join(map(jax.tree_util.keystr, paths))}, the variables in another: "
                f"{ours}. HINT: pass gradients in the nest that jd.Optimizer was given, or pairs of a gradient and its "
                "variable."
            )
        if self._unclear:
            raise ArgumentError(
                f"a list of gradients, for variables in a nest that JAX sorts by name: {', '.join(self._unclear)} "
                "could each get another's gradient. HINT: pass gradients in the nest that jd.Optimizer was given, or "
                "pairs: zip(gradients, variables)."
            )


def listed(nest: Nest) -> list[Any]:
    """The variables of a nest in the order in which the user has them: that of a model, and of a dictionary's items."""
    if hasattr(nest, "__jd_parameters__"):
        return [getattr(node, "__jd_variable__", node) for node in nest.trainable_variables]
    if isinstance(nest, dict):
        inner = list(cast("dict[Any, Any]", nest).values())
    else:
        inner = jax.tree.leaves(nest, is_leaf=lambda node: node is not nest or isinstance(node, Variable))
    if len(inner) == 1 and inner[0] is nest:
        return [getattr(nest, "__jd_variable__", nest)]
    return [leaf for node in inner for leaf in listed(node)]


def _steps(path: Any) -> tuple[str, ...]:
    """A path, alike for attributes, keys and places in lists; Flax NNX keeps an array in an attribute of its own."""
    steps = [str(step_of(key)) for key in path]
    value = bool(path) and isinstance(path[-1], jax.tree_util.GetAttrKey) and steps[-1] == "value"
    return tuple(steps[:-1] if value else steps)


def _data(leaf: Leaf) -> Any:
    return leaf.data if isinstance(leaf, Mirrored) else leaf


def for_examples(grads: Sequence[Any], variables: Sequence[Variable]) -> bool:
    """True if there is a gradient for each example: all have one axis more than their variables, in front."""
    return all(
        not isinstance(grad, IndexedSlices) and (shape := shape_of(grad)) and shape[1:] == variable.shape
        for grad, variable in zip(grads, variables, strict=True)
    )


def shape_of(grad: Any) -> tuple[int, ...]:
    """The shape of a gradient, on one replica."""
    return jnp.shape(grad.values[0] if isinstance(grad, PerReplica) else grad)


def names_of(variables: Iterable[Variable]) -> list[str]:
    """The variables' names."""
    return [variable.name for variable in variables]


def _opened_pair(value: Any) -> Any:
    """A pair of a gradient and a variable, one of Keras's as the one that it stands for; all else as it is."""
    if type(value) is tuple and len(cast("Any", value)) == 2:
        return value[0], getattr(value[1], "__jd_variable__", value[1])
    return value


def _is_pair(value: Numeric) -> bool:
    return isinstance(value, (tuple, list)) and len(cast("Any", value)) == 2 and isinstance(value[1], Variable)


def _by_pairs(pairs: Sequence[Any], variables: Sequence[Variable]) -> list[Any]:
    gradients: dict[Variable, Any] = {variable: grad for grad, variable in pairs}
    # A search among variables goes by identity, whatever `==` means elsewhere; see `operators.Asking`.
    unknown = names_of(variable for variable in gradients if variable not in variables)
    missing = names_of(variable for variable in variables if variable not in gradients)
    twice = len(pairs) - len(gradients)
    if unknown or missing or twice:
        raise ArgumentError(
            f"gradients do not match the optimizer's {len(variables)} variables: missing {missing}, not "
            f"its own {unknown}, {twice} given twice. HINT: pass exactly one pair for each variable given to "
            "jd.Optimizer."
        )
    return list(map(gradients.__getitem__, variables))


def _given(grad: Numeric, variable: Variable) -> Any:
    if grad is None:
        raise ArgumentError(f"the gradient of {variable.name} is None. HINT: pass zeros, or leave the variable out.")
    return operand(grad)


def _check_shape(grad: Any, variable: Variable) -> None:
    # Rows of a table go to the servers as rows. Elsewhere an update takes whole arrays.
    if isinstance(grad, IndexedSlices) and (variable.policy.remote or variable.policy.by_rows):
        return
    shape = shape_of(grad)
    if shape != variable.shape:
        raise ShapeError(
            f"the gradient of {variable.name} has shape {shape}, the variable {variable.shape}. "
            "HINT: pass gradients in the variables' order, or pairs of gradient and variable."
        )
