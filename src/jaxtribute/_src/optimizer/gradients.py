"""Gradients as users give them, brought into the order of the variables that they are for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.distributed import PerReplica
from jaxtribute._src.values.operators import operand
from jaxtribute._src.values.scatter import IndexedSlices
from jaxtribute._src.values.variable import Variable
from jaxtribute.errors import ArgumentError, ShapeError


def ordered(grads_and_vars: Any, variables: Sequence[Variable]) -> list[Any]:
    """Returns one gradient for each variable, in the variables' order.

    Args:
      grads_and_vars: a nest of gradients, or pairs of a gradient and its variable.
      variables: the variables.

    Raises:
      ArgumentError: a gradient is missing, None or one too many.
      ShapeError: a gradient is shaped neither as its variable nor, as all others, as that for each of some examples.
    """
    pairs = list(grads_and_vars) if isinstance(grads_and_vars, (list, tuple, zip)) else grads_and_vars
    if isinstance(pairs, list):
        pairs = list(map(_opened_pair, cast("list[Any]", pairs)))
    if isinstance(pairs, list) and pairs and all(_is_pair(pair) for pair in cast("list[Any]", pairs)):
        grads = _by_pairs(cast("list[Any]", pairs), variables)
    else:
        # None is a leaf here, so that a gradient that is missing is told with its variable's name, and not only
        # counted.
        grads = jax.tree.leaves(pairs, is_leaf=lambda leaf: leaf is None or isinstance(leaf, PerReplica))
        present = [grad for grad in grads if grad is not None]
        # A nest such as Equinox's has None where a module holds no array.
        grads = present if len(present) == len(variables) else grads
    if len(grads) != len(variables):
        raise ArgumentError(
            f"{len(grads)} gradients for {len(variables)} variables. "
            "HINT: pass one for each variable, in the order given to jd.Optimizer, or pairs."
        )
    grads = list(map(_given, grads, variables))
    if not for_examples(grads, variables):
        for grad, variable in zip(grads, variables, strict=True):
            _check_shape(grad, variable)
    return grads


def for_examples(grads: Sequence[Any], variables: Sequence[Variable]) -> bool:
    """True if there is a gradient for each example: all have one axis more than their variables, in front."""
    for grad, variable in zip(grads, variables, strict=True):
        if isinstance(grad, IndexedSlices) or len(shape_of(grad)) == len(variable.shape):
            return False
        if shape_of(grad)[1:] != variable.shape:
            return False
    return True


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
    found: dict[Variable, Any] = {variable: grad for grad, variable in pairs}
    # A search among variables goes by identity, whatever `==` means elsewhere; see `operators.Asking`.
    unknown = names_of(variable for variable in found if variable not in variables)
    missing = names_of(variable for variable in variables if variable not in found)
    twice = len(pairs) - len(found)
    if unknown or missing or twice:
        raise ArgumentError(
            f"gradients do not match the optimizer's {len(variables)} variables: missing {missing}, not "
            f"its own {unknown}, {twice} given twice. HINT: pass exactly one pair for each variable given to "
            "jd.Optimizer."
        )
    return list(map(found.__getitem__, variables))


def _given(grad: Numeric, variable: Variable) -> Any:
    if grad is None:
        raise ArgumentError(f"the gradient of {variable.name} is None. HINT: pass zeros, or leave the variable out.")
    return operand(grad)


def _check_shape(grad: Any, variable: Variable) -> None:
    # Rows of a table go to the servers as rows. Elsewhere an update takes whole arrays.
    if isinstance(grad, IndexedSlices) and variable.policy.remote:
        return
    shape = shape_of(grad)
    if shape != variable.shape:
        raise ShapeError(
            f"the gradient of {variable.name} has shape {shape}, the variable {variable.shape}. "
            "HINT: pass gradients in the variables' order, or pairs of gradient and variable."
        )
