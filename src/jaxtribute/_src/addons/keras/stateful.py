"""Steps in TensorFlow's form, `train_step(self, data)`: what Keras's own loss is to a replica.

Each replica has the mean over its own rows, and optimizers add gradients up. TensorFlow divides such a loss by the
number of replicas. Here its gradient is weighted by the replica's share of the rows, which is exact for uneven batches
too, and its value is left as it is, for metrics.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import keras

from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.meeting import with_gradient
from jaxtribute._src.addons.keras.share import own_values
from jaxtribute.extending import Callers, Context, Tracer
from jaxtribute.typing import Array, DType, Nest

_MEANS = frozenset(("sum_over_batch_size", "mean"))


class _Running(threading.local):
    part: float | None = None
    numbers: list[Any] | None = None
    powers: Sequence[int] = ()
    weighs: bool = False
    """True while `compute_loss` runs, which weights what its losses come to."""


_running = _Running()


@contextmanager
def with_part(rows: int, total: int, powers: Sequence[int] = ()) -> Generator[list[Any]]:
    """Runs a replica's step on its rows.

    Args:
      rows: how many these are.
      total: how many all replicas have.
      powers: for each single number that a metric is updated with, the power of the number of rows that it grows by.

    Yields:
      A list that gets those numbers.
    """
    numbers: list[Any] = []
    before = _running.part, _running.numbers, _running.powers
    _running.part, _running.numbers, _running.powers = rows / total if total else 1.0, numbers, powers
    try:
        yield numbers
    finally:
        _running.part, _running.numbers, _running.powers = before


@contextmanager
def attributes_kept(model: KerasModel) -> Generator[None]:
    """Takes back what a step that is only looked at counts and collects in the model's attributes."""
    before = dict(vars(model))
    lists = {id(value): list(value) for value in before.values() if isinstance(value, list)}
    try:
        yield
    finally:
        for name, value in list(vars(model).items()):
            if isinstance(value, list) and before.get(name) is value:
                list.__setitem__(value, slice(None), lists[id(value)])
            # Flags may tell what is made already.
            elif isinstance(value, (int, float, Tracer)) and not isinstance(value, bool):
                if name in before:
                    vars(model)[name] = before[name]
                else:
                    del vars(model)[name]


def values_of_part(
    original: Callable[..., Any], values: Nest, sample_weight: Nest, reduce_fn: Callable[..., Any], dtype: DType
) -> tuple[Any, Any]:
    """Keras's `reduce_to_samplewise_values`: one number, such as a loss, counts by the replica's part of the rows."""
    part, numbers = _running.part, _running.numbers
    if part is not None and numbers is not None and sample_weight is None and jnp.ndim(values) == 0:
        power = dict(enumerate(_running.powers)).get(len(numbers), 0)
        numbers.append(values)
        # A sum over the rows is to count as a whole, and once for all replicas.
        values, sample_weight = (values / part**power if power and part else values), part
    return own_values(original, values, sample_weight, reduce_fn, dtype)


def weighted_loss(
    original: Callable[..., Any], model: KerasModel, x: Nest = None, y: Nest = None, *args: Any, **kwargs: Any
) -> Any:
    """A trainer's `compute_loss`, of a replica's part of a batch.

    Raises:
      NotImplementedError: the losses are reduced in another way than by a mean, or a sum alone.
    """
    part, replica = _running.part, Context.current().replica
    if part is None or replica is None or replica.num_replicas_in_sync == 1:
        return original(model, x, y, *args, **kwargs)
    before, _running.weighs = _running.weighs, True
    try:
        loss = original(model, x, y, *args, **kwargs)
    finally:
        _running.weighs = before
    reductions = {str(one.reduction) for one in internals.losses_of(model) if one is not None}
    if reductions == {"sum"} and not model.losses:
        return loss
    if not reductions <= _MEANS:
        also = " and of weights" if model.losses else ""
        raise NotImplementedError(
            f"compute_loss of losses with {sorted(reductions)} as reduction{also}, in a train_step(self, data) on "
            "several replicas: what is to be added up over them is not known. HINT: use "
            "reduction='sum_over_batch_size', or the form train_step(self, state, data)."
        )
    given = kwargs.get("y_pred", args[0] if args else None)
    if any(internals.get_keras_mask(leaf) is not None for leaf in keras.tree.flatten(given)):
        _tell_unequal(f"compute_loss of {model.name!r}", "a mean over what a mask leaves")
    return with_gradient(loss, part)


def is_step() -> bool:
    """True in a step in TensorFlow's form."""
    return _running.part is not None


def weighted_mean(loss: Array, *, by_rows: bool) -> Any:
    """The value of a loss object of Keras that a step calls itself: a mean, over the replica's rows or otherwise."""
    if _running.part is None or _running.weighs:
        return loss
    if not by_rows:
        _tell_unequal("a loss of Keras", "a mean over weights, or over what a mask leaves")
    return with_gradient(loss, _running.part)


def _tell_unequal(which: str, mean: str) -> None:
    Callers.warn(
        f"{which}, in a train_step(self, data), is {mean} of a replica's rows, of which each may have another number: "
        "its mean by the replicas' rows is not that of one device. HINT: use the form train_step(self, state, data), "
        "or reduction='sum', divided by what get_replica_context().all_reduce('SUM', ...) makes of the weights or of "
        "the mask."
    )
