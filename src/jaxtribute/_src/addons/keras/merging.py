"""Merges the replicas' metrics, batch statistics and states of random generators; gradients go elsewhere.

A replica starts a step from the values that all share, or from what stands for them, and changes them by its own
examples. What comes of it is added up over the replicas, all in one collective with the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.addons.keras.internals import KerasVariable
from jaxtribute._src.addons.keras.share import Share
from jaxtribute.extending import Programs
from jaxtribute.typing import Array

State = list[Any]
"""Arrays, one for each variable of a list."""

SEED = "seed_generator_state"
"""Name of the variable of a generator of random numbers."""
state_p = Programs.identity("jd_state")
"""Marks a layer's variable by its place, in a step that is only looked at."""
metric_p = Programs.identity("jd_metric")
"""Marks a metric's variable by its place, in a step that is only looked at."""
_APART = np.uint32(0x9E3779B1)
"""Distance of the seeds of two replicas: odd, so that they differ for any number of replicas."""


def start_of_metrics(variables: Sequence[Any], values: State, share: Share) -> State:
    """Start values of a replica's metrics: sums over examples start from zero, so that a step's share can be told."""
    if share.alone and not share.sends:
        return values
    start: State = []
    for place, (variable, value) in enumerate(zip(variables, values, strict=True)):
        given = jnp.zeros_like(value) if variable.aggregation == "sum" else value
        start.append(metric_p.bind(given, place=place) if share.marks_metrics else given)
    return start


def start_of_layers(variables: Sequence[Any], values: State, share: Share) -> State:
    """Start values of a replica's layers: each has random numbers of its own, and replica 0 those of one device."""
    if share.alone and not share.sends:
        return values
    start: State = []
    for place, (variable, value) in enumerate(zip(variables, values, strict=True)):
        given = _apart(value, share) if variable.name == SEED else value
        start.append(state_p.bind(given, place=place) if place in share.marked else given)
    return start


def contributions(variables: Sequence[Any], start: State, end: State, share: Share) -> list[Any]:
    """This replica's share of the new values; None for variables that a step does not change.

    Args:
      variables: Keras variables that no optimizer updates.
      start: what the replica started from.
      end: what it came to, None if it wrote nothing.
      share: the replica.
    """
    found: list[Any] = []
    for variable, old, new in zip(variables, start, end, strict=True):
        found.append(None if new is None or new is old else _contribution(variable, old, new, share))
    return found


def merged(variables: Sequence[Any], values: State, totals: Sequence[Any], share: Share) -> State:
    """The new values, from those before the step and the sums of all replicas' contributions."""
    found: State = []
    for variable, value, total in zip(variables, values, totals, strict=True):
        found.append(value if total is None else _value(variable, value, total, share))
    return found


def _apart(seed: Array, share: Share) -> Any:
    """A generator's seed and counter, the seed moved by the number of the replica, or of the worker that sends."""
    return moved_seed(seed, share.context.replica_id_in_sync_group if share.worker is None else share.worker)


def moved_seed(seed: Array, number: Any) -> Any:
    """A generator's seed and counter, the seed moved by a number: that of one device where the number is 0."""
    # Only the seed is moved: all replicas draw equally often, so that their counters stay equal.
    moved = lax.convert_element_type(number, jnp.uint32) * _APART
    return seed + jnp.stack([moved, jnp.zeros_like(moved)]).astype(seed.dtype)


def _contribution(variable: KerasVariable, old: Array, new: Array, share: Share) -> Any:
    floats = jnp.issubdtype(new.dtype, jnp.inexact)
    is_first = jnp.asarray(share.context.replica_id_in_sync_group) == 0
    if variable.aggregation == "sum":
        added = new - old
        power = share.shared.get(id(variable), 0)
        if not power:
            return added
        # One number for the batch, of which each replica has computed its own. Integers have no shares: they count.
        factor = share.weight**power if share.weight else 0.0
        return added * jnp.asarray(factor, added.dtype) if floats else jnp.where(is_first, added, 0 * added)
    running = share.running.get(id(variable))
    if running is not None:
        return new - old if running else new
    # Moving averages: each replica's is weighted by its examples, so that one without any counts for nothing.
    if floats and variable.aggregation in ("none", "mean"):
        # By rows, padding included, of which all replicas have equally many: these weights add up to 1.
        return new * jnp.asarray(share.rows / share.total if share.total else 1.0, new.dtype)
    if not floats and new.dtype.itemsize == 4:  # as floats, to travel with the gradients
        # A float32 has 24 bits for the number: halves of 16 bits are exact in it, 32 bits would not be.
        new = jnp.stack([new >> 16, new & 0xFFFF]).astype(jnp.float32)
    # What is the same on all replicas, such as a count of steps, is taken from one: the others add zeros.
    return jnp.where(is_first, new, jnp.zeros_like(new))


def _value(variable: KerasVariable, value: Array, total: Array, share: Share) -> Any:
    running = share.running.get(id(variable))
    if variable.aggregation == "sum" or running:
        return value + total.astype(value.dtype)
    if running is not None or jnp.issubdtype(value.dtype, jnp.inexact) or value.dtype.itemsize != 4:
        return total.astype(value.dtype)
    high, low = total.astype(value.dtype)
    return (high << 16) | low
