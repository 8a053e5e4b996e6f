"""True if a metric of the user's own adds up: replicas that each start from zero can then simply be added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxtribute._src.addons.keras.apart import apart_of
from jaxtribute._src.addons.keras.internals import KerasModel, is_keras, metrics_of
from jaxtribute._src.addons.keras.share import current
from jaxtribute.errors import VariableError
from jaxtribute.extending import Flow, Jaxpr, JaxprEqn, Programs
from jaxtribute.typing import Nest

_SAME = frozenset({"copy", "copy_p", "convert_element_type", "reshape"})
_PLUS = frozenset({"add", "add_any", "sub", "scatter-add"})
_FREE = -1
"""A value that depends on no input."""
_MIXED = -2
"""A value that depends on inputs in another way."""


def checked_updates(original: Callable[..., Any], model: KerasModel, metrics_variables: Nest, *batch: Nest) -> Any:
    """A trainer's `_update_metrics_variables`, which in a replica's step refuses metrics that do not add up."""
    # Outside of `fit`, and on one replica that keeps its metrics, any update is right.
    share = current()
    if share is not None and (share.sends or not share.alone or apart_of(share.context.strategy) is not None):
        variables = model.metrics_variables
        check_additive(model, variables, metrics_variables, lambda values: original(model, values, *batch)[1])
    return original(model, metrics_variables, *batch)


def check_additive(
    model: KerasModel, variables: Sequence[Any], values: Sequence[Any], update: Callable[[Any], Any]
) -> None:
    """Checks that an update adds to each variable of the user's own metrics what does not depend on it.

    Args:
      model: the model whose metrics are updated.
      variables: the metrics' Keras variables.
      values: their values.
      update: takes values, returns new ones.

    Raises:
      VariableError: one does something else, such as keeping a maximum, and says that it is summed.
    """
    owners: dict[int, Any] = {}
    for metric in _own_metrics(model):
        for variable in metric.variables:
            # With any other aggregation the variable says itself how the replicas' values become one.
            if variable.aggregation == "sum":
                owners[id(variable)] = metric
    if not owners:
        return
    added = _adds(Programs.opened(jax.make_jaxpr(update)(list(values))))
    for variable, adds in zip(variables, added, strict=True):
        if id(variable) in owners and not adds:
            metric = owners[id(variable)]
            raise VariableError(
                f"metric {metric.name!r} ({type(metric).__name__}) does not add what it finds in a batch to its "
                f"variable {variable.name!r}, so what the replicas find cannot be added up. HINT: keep sums over "
                "examples and compute the rest in result(), or create the variable with add_variable(..., "
                "aggregation='mean') or 'only_first_replica'."
            )


def _own_metrics(model: KerasModel) -> list[Any]:
    # Keras's own are known: they add what they find to their sums, or say how else these are to be aggregated.
    return [metric for metric in metrics_of(model) if not is_keras(type(metric))]


def _adds(jaxpr: Jaxpr) -> list[bool]:
    """For each output whether it is the input of the same place plus what depends on no input."""
    sums = _Sums(_FREE).outputs(jaxpr, list(range(len(jaxpr.invars))))
    return [one == place for place, one in enumerate(sums)]


class _Sums(Flow[int]):
    """The place of the input that a value is, plus something free; or one of the two below."""

    def merged(self, one: int, other: int) -> int:
        """A value that is now one, now the other."""
        return one if one == other else _MIXED

    def chosen(self, by: int, value: int) -> int:
        """A value that an input has chosen depends on it."""
        return value if by == _FREE else _MIXED

    def equation(self, eqn: JaxprEqn, given: list[int]) -> list[int]:
        """Result of an operation on sums: a sum where the operation adds something free."""
        name, bound = eqn.primitive.name, [one for one in given if one != _FREE]
        if not bound:
            return [_FREE] * len(eqn.outvars)
        # A change of type may round, and a sum of rounded shares is not the rounded sum.
        if name in _SAME and _dtype(eqn.outvars[0]) == _dtype(eqn.invars[0]):
            return [given[0]]
        # Of a difference the input must be the first part: what is subtracted changes its sign.
        if name in _PLUS and len(bound) == 1 and (given[0] != _FREE or name.startswith("add")):
            return bound
        return [_MIXED] * len(eqn.outvars)


def _dtype(atom: Any) -> Any:
    return atom.aval.dtype
