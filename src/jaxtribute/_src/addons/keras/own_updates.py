"""Updates of `jd.Variable`s by optimizers of Keras that accumulate gradients or average what they update.

Keras's own code for JAX reads `variable.value`, which is a method of such a variable, as in TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from jaxtribute import Variable
from jaxtribute._src.addons.keras.internals import KerasOptimizer
from jaxtribute.typing import Nest


def updated(original: Callable[..., Any], optimizer: KerasOptimizer, grads: Nest, trainable_variables: Nest) -> None:
    """An optimizer's `_backend_apply_gradients`, which takes variables of this library, too.

    Args:
      original: Keras's own method.
      optimizer: the optimizer, which is built.
      grads: a gradient for each variable.
      trainable_variables: those that are updated, which may be fewer than the optimizer was built for.
    """
    known = [*trainable_variables, *optimizer._trainable_variables]
    accumulates, averages = optimizer.gradient_accumulation_steps, optimizer.use_ema
    if not (accumulates or averages) or not any(isinstance(variable, Variable) for variable in known):
        original(optimizer, grads, trainable_variables)
        return
    if accumulates:
        _accumulated(optimizer, list(grads), trainable_variables)
    else:
        _step(optimizer, list(grads), trainable_variables)
    if averages:
        _averaged(optimizer)


def _step(optimizer: Any, grads: list[Any], variables: Sequence[Any]) -> None:
    grads = optimizer._clip_gradients(grads)
    optimizer._apply_weight_decay(variables)
    optimizer._backend_update_step(grads, variables, optimizer.learning_rate)


def _accumulated(optimizer: Any, grads: list[Any], variables: Sequence[Any]) -> None:
    """Adds up gradients, and makes a step of their mean in each call of so many."""
    steps = optimizer.gradient_accumulation_steps
    now = (optimizer._iterations + 1) % steps == 0
    sums = [optimizer._accumulated_gradients[optimizer._get_variable_index(variable)] for variable in variables]
    totals = [grad + held.value for grad, held in zip(grads, sums, strict=True)]
    written = [*variables, *optimizer.variables]
    before = list(map(_value, written))
    # As in Keras, the step is always computed, and taken back where it is not due.
    _step(optimizer, [total / steps for total in totals], variables)
    for variable, old in zip(written, before, strict=True):
        variable.assign(jnp.where(now, _value(variable), old))
    for held, total in zip(sums, totals, strict=True):
        held.assign(jnp.where(now, jnp.zeros_like(total), total))


def _averaged(optimizer: Any) -> None:
    """Updates the moving averages, and puts them in the variables' place as often as the program says."""
    variables = optimizer._trainable_variables
    optimizer._update_model_variables_moving_average(variables)
    often = optimizer.ema_overwrite_frequency
    if often is None:
        return
    # A variable, or with accumulated gradients an array: the number of steps that were made.
    now = (optimizer.iterations + 1) % often == 0
    for variable, average in zip(variables, optimizer._model_variables_moving_average, strict=True):
        if average is not None:
            variable.assign(jnp.where(now, average.value, _value(variable)))


def _value(variable: Any) -> Any:
    return variable.read_value() if isinstance(variable, Variable) else variable.value
