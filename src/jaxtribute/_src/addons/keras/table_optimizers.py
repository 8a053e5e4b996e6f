"""Keras's optimizers of tables as Optax transformations, which update rows as Keras updates whole weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import optax

from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.internals import KerasOptimizer
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Nest

_REFUSED = (
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
    "amsgrad",
)


def transform_of(optimizer: KerasOptimizer, table: str) -> optax.GradientTransformation:
    """The transformation that does what a Keras optimizer does.

    Args:
      optimizer: the optimizer.
      table: the table's name, for messages.

    Raises:
      ArgumentError: it is no optimizer of rows, or has an option that is none.
    """
    present = [name for name in _REFUSED if getattr(optimizer, name, None)]
    if present:
        shown = ", ".join(f"{name}={getattr(optimizer, name)!r}" for name in present)
        raise ArgumentError(
            f"the optimizer of the table {table} has {shown}, which is not for rows. HINT: leave it out."
        )
    fixed = fixed_rate(optimizer)
    rate = _schedule(internals.learning_rate(optimizer)) if fixed is None else fixed
    if type(optimizer) is keras.optimizers.SGD:
        moved = optax.scale_by_learning_rate(rate)
        if not optimizer.momentum:
            return moved
        return optax.chain(moved, optax.trace(optimizer.momentum, nesterov=optimizer.nesterov))
    if type(optimizer) is keras.optimizers.Adagrad:
        scaled = optax.scale_by_rss(optimizer.initial_accumulator_value, optimizer.epsilon)
        return optax.chain(scaled, optax.scale_by_learning_rate(rate))
    if type(optimizer) is keras.optimizers.Adam:
        return optax.chain(_adam(optimizer), optax.scale_by_learning_rate(rate))
    raise ArgumentError(
        f"the optimizer of the table {table} is {type(optimizer).__name__}, whose update of rows is unknown. HINT: "
        "use keras.optimizers.SGD, Adagrad or Adam; or placement='default_device', a weight of the model's optimizer."
    )


def fixed_rate(optimizer: KerasOptimizer) -> float | None:
    """The learning rate that an optimizer has now; None if it is a schedule."""
    return None if callable(internals.learning_rate(optimizer)) else float(optimizer.learning_rate)


def _schedule(rate: Any) -> Any:
    return lambda count: jnp.asarray(rate(count), jnp.float32)


def _adam(optimizer: KerasOptimizer) -> optax.GradientTransformation:
    """Adam, with epsilon beside the root of the second moment as it is stored, as Keras has it."""
    first, second, epsilon = optimizer.beta_1, optimizer.beta_2, optimizer.epsilon

    def init(params: Nest) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.zeros_like, params))

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        del params
        count = state.count + 1
        by = jnp.sqrt(1 - second**count) / (1 - first**count)
        mu = jax.tree.map(lambda old, grad: old + (grad - old) * (1 - first), state.mu, grads)
        nu = jax.tree.map(lambda old, grad: old + (jnp.square(grad) - old) * (1 - second), state.nu, grads)
        changes = jax.tree.map(lambda one, two: one * by / (jnp.sqrt(two) + epsilon), mu, nu)
        return changes, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]
