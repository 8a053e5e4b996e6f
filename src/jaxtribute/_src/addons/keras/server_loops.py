"""Keras's optimizers in loops of one's own under parameter servers: gradients go to the servers, which apply them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxtribute import Variable
from jaxtribute._src.addons.keras import internals, share
from jaxtribute._src.addons.keras.custom_loops import summed_gradients
from jaxtribute._src.addons.keras.internals import KerasOptimizer
from jaxtribute._src.addons.keras.variables import is_on_servers, worker_index
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Nest


def applied(
    original: Callable[..., Any], optimizer: KerasOptimizer, grads: Nest, trainable_variables: Nest = None
) -> Any:
    """An optimizer's `apply`: on the servers, of variables that are there, else after a sum over the replicas."""
    if internals.in_stateless_scope() or share.current() is not None:
        return original(optimizer, grads, trainable_variables)
    variables: list[Any]
    if trainable_variables is not None:
        trainable_variables = variables = list(trainable_variables)
    else:
        variables = internals.updated_by(optimizer) if optimizer.built else []
    own = [variable.name for variable in variables if isinstance(variable, Variable) and variable.policy.remote]
    if own:
        raise ArgumentError(
            f"{optimizer.name}, an optimizer of Keras, is to update {', '.join(own)} on the parameter servers, where "
            "it updates the variables of Keras's layers alone. HINT: make jd.Optimizer(optax.sgd(0.1), variables), or "
            "with another transformation of Optax, in strategy.scope()."
        )
    if not any(map(is_on_servers, variables)):
        return summed_gradients(original, optimizer, grads, trainable_variables)
    return _apply(optimizer, list(grads), variables)


def _apply(optimizer: KerasOptimizer, grads: list[Any], variables: Sequence[Any]) -> None:
    """Sends gradients.

    Raises:
      ArgumentError: the optimizer is not on the servers, or for other variables.
    """
    from jaxtribute._src.addons.keras.server_optimizer import Placed, clips_before, keys_of, place_optimizer, placed

    elsewhere = [variable.path for variable in variables if not is_on_servers(variable)]
    if elsewhere:
        raise ArgumentError(
            f"{optimizer.name} is to update {', '.join(elsewhere)}, not on the parameter servers, together with "
            "variables that are. HINT: make all layers in strategy.scope()."
        )
    if worker_index() is None and not isinstance(placed(optimizer), Placed):  # a worker makes no slots
        place_optimizer(optimizer, variables)
    known = placed(optimizer)
    if not isinstance(known, Placed):
        raise ArgumentError(
            f"the optimizer {optimizer.name} is not on the parameter servers: {known}. HINT: on the coordinator, "
            "before the function is scheduled, call optimizer.build(variables) with the variables that it updates."
        )
    if set(keys_of(variables)) != set(known.keys) or len(grads) != len(known.keys):
        raise ArgumentError(
            f"the optimizer {optimizer.name} on the parameter servers updates {len(known.keys)} variables and was "
            f"given {len(grads)} gradients, of {', '.join(variable.path for variable in variables)}. HINT: on the "
            "coordinator, before the function is scheduled, call optimizer.build(variables) with just those."
        )
    if clips_before(optimizer):
        grads = internals.clipped(optimizer, grads)
    known.optimizer.apply_gradients([(g, variable.stored) for g, variable in zip(grads, variables, strict=True)])
