"""Whether a metric of the user's own adds up: replicas that each start from zero can then simply be added."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex

from jaxtribute.errors import VariableError
from jaxtribute.execution.inference import CALLS
from jaxtribute.execution.ragged import aval
from jaxtribute.integrations.keras.share import current

_SAME = frozenset({"copy", "copy_p", "convert_element_type", "reshape"})
_PLUS = frozenset({"add", "add_any", "sub", "scatter-add"})


def checked_updates(original: Callable[..., Any]) -> Callable[..., Any]:
    """`JAXTrainer._update_metrics_variables`, which in a replica's step refuses metrics that do not add up."""

    def update(self: Any, metrics_variables: Any, *batch: Any) -> Any:
        share = current()
        if share is not None and (share.sends or not share.alone):
            variables = self.metrics_variables
            check_additive(self, variables, metrics_variables, lambda values: original(self, values, *batch)[1])
        return original(self, metrics_variables, *batch)

    return functools.wraps(original)(update)


def check_additive(model: Any, variables: Sequence[Any], values: Sequence[Any], update: Callable[[Any], Any]) -> None:
    """Checks that an update adds to each variable of the user's own metrics what does not depend on it.

    Args:
      model: the model whose metrics are updated.
      variables: the metrics' Keras variables.
      values: their values.
      update: takes values, returns new ones.

    Raises:
      VariableError: one does something else, such as keeping a maximum, and says that it is summed.
    """
    owners = {id(v): metric for metric in _own_metrics(model) for v in metric.variables if v.aggregation == "sum"}
    if not owners:
        return
    added = _adds(jax.make_jaxpr(update)(list(values)).jaxpr)
    for variable, adds in zip(variables, added, strict=True):
        if id(variable) in owners and not adds:
            metric = owners[id(variable)]
            raise VariableError(
                f"metric {metric.name!r} ({type(metric).__name__}) does not add what it finds in a batch to its "
                f"variable {variable.name!r}, so what the replicas find cannot be added up. HINT: keep sums over "
                "examples and compute the rest in result(), or create the variable with add_variable(..., "
                "aggregation='mean') or 'only_first_replica'."
            )


def _own_metrics(model: Any) -> list[Any]:
    found = [one for metric in model.metrics for one in getattr(metric, "metrics", None) or [metric]]
    return [metric for metric in found if not type(metric).__module__.startswith("keras.")]


def _adds(jaxpr: jex.Jaxpr) -> list[bool]:
    """For each output whether it is the input of the same place plus what depends on no input."""
    sums = _sums(jaxpr, dict(enumerate(range(len(jaxpr.invars)))))
    return [one == place for place, one in enumerate(sums)]


def _sums(jaxpr: jex.Jaxpr, inputs: dict[int, int | None]) -> list[int | None]:
    """For each output the origin that it is plus something free; None where it depends in another way, -1 if on none.

    Args:
      jaxpr: the program.
      inputs: the same for its inputs, by their place; those that are missing depend on none.
    """
    known: dict[Any, int | None] = {var: inputs.get(place, -1) for place, var in enumerate(jaxpr.invars)}

    def origin(atom: Any) -> int | None:
        return -1 if isinstance(atom, jex.Literal) else known.get(atom, -1)

    for eqn in jaxpr.eqns:
        origins = [origin(atom) for atom in eqn.invars]
        name, inner = eqn.primitive.name, eqn.params.get(CALLS.get(eqn.primitive.name, ""))
        results: list[int | None]
        if all(one == -1 for one in origins):
            results = [-1] * len(eqn.outvars)
        elif inner is not None:
            results = _sums(getattr(inner, "jaxpr", inner), dict(enumerate(origins)))
        elif name in _SAME and aval(eqn.outvars[0]).dtype == aval(eqn.invars[0]).dtype:
            results = [origins[0]]
        elif name in _PLUS and origins.count(-1) == len(origins) - 1 and (origins[0] != -1 or name.startswith("add")):
            results = [next(one for one in origins if one != -1)]
        else:
            results = [None] * len(eqn.outvars)
        known.update(zip(eqn.outvars, results, strict=True))
    return [origin(atom) for atom in jaxpr.outvars]
