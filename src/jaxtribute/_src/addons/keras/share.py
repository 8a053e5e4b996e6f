"""A replica's share of the batch, and what Keras computes over a whole batch: losses and batch statistics.

One device computes the loss L of a whole batch. Replica i computes L_i of its own n_i examples, and what is added up
over the replicas is n_i / n * L_i: for a mean that is L again. A loss that Keras does not divide by the number of
examples (a sum, a mean over weights or over what a mask leaves) is scaled here so that the same sum gives L, too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import keras

from jaxtribute import ReduceOp, ReplicaContext, get_replica_context
from jaxtribute._src.addons.keras.internals import KerasModel, KerasOptimizer, updated_by
from jaxtribute._src.addons.keras.overwriting import largest, put_back, set_apart
from jaxtribute._src.addons.keras.rows import change_p, mean_p
from jaxtribute.errors import ContextError
from jaxtribute.experimental import CommunicationOptions
from jaxtribute.typing import Array, DType, Foreign, Leaf, Nest, Numeric

if TYPE_CHECKING:
    from jaxtribute._src.addons.keras.derived import DerivedLog

Path: TypeAlias = "tuple[Hashable, ...]"
"""The keys of a log from the outermost, as logs may be nested."""
EXACT = CommunicationOptions(wire="float32")
"""The hints of sums that are no gradients: metrics and statistics, whatever type gradients travel in."""


@dataclass(slots=True)
class Share:
    """One replica's part of a batch.

    Attributes:
      context: the replica.
      rows: its examples, and what pads them.
      total: the same of all replicas.
    """

    context: ReplicaContext
    rows: int
    total: int
    count: Any = None
    """The number of examples of all replicas, of a batch whose last rows are padding; None if none are."""
    reduced: bool = False
    """True if gradients need no reduction where they are applied."""
    worker: int | None = None
    """The worker's number, if parameter servers apply what the step changes, while other workers change the same."""
    gradients: list[Any] | None = None
    """The replica's share in a step that sends gradients."""
    metrics: frozenset[int] = frozenset()
    """The ids of the model's metrics' variables."""
    shared: Mapping[int, int] = field(default_factory=dict[int, int])
    """By the ids of those of them that count a batch once, the power of its weight that the replica adds by."""
    summed: frozenset[Hashable] = frozenset()
    """The names of the logs that are sums over the examples, and the numbers of such updates by an optimizer."""
    sums_loss: bool = False
    """True if the loss is a sum over the examples, as one of `compute_loss` may be."""
    loss: Any = None
    """The replica's loss, once it is computed."""
    added: list[Any] = field(default_factory=list[Any])
    """The losses of layers so far that come on top of it."""
    added_sums: frozenset[int] = frozenset()
    """The numbers of those among them that are sums over the examples."""
    applied: list[list[Any]] = field(default_factory=list[list[Any]])
    """The gradients that optimizers have been given so far."""
    marked: frozenset[int] = frozenset()
    """The places of layers' variables that `state_p` is to mark, of a step that is only looked at."""
    marks_changes: bool = False
    """True if `change_p` is to mark what optimizers are given, of a step that is only looked at."""
    marks_metrics: bool = False
    """True if `metric_p` is to mark metrics' variables, of a step that is only looked at."""
    derived: Mapping[Path, DerivedLog] = field(default_factory=dict[Path, "DerivedLog"])
    """The logs that are functions of metrics' values, by their keys from the outermost."""
    running: Mapping[int, bool] = field(default_factory=dict[int, bool])
    """By the ids of layers' variables that are sums over the rows: True if a step adds to the sum of before."""
    of_tables: list[Any] = field(default_factory=list[Any])
    """The gradients by tables of the replica's examples."""

    @property
    def weight(self) -> Any:
        """Weight of the replica's means in those of the batch."""
        if self.count is not None:
            return self.rows / self.count
        return self.rows / self.total if self.total else 1.0

    @property
    def divisor(self) -> Any:
        """The weight, for what is divided by it: of a replica without examples nothing counts."""
        return self.weight if self.rows else 1.0

    @property
    def mask(self) -> Any:
        """A number for each row: 1, or 0 where it is padding."""
        first = self.context.replica_id_in_sync_group * self.rows
        return (first + jnp.arange(self.rows) < self.count).astype(jnp.float32)

    def own(self, values: Array) -> Any:
        """Values of each row, zero where it is padding.

        Raises:
          ContextError: they are no values of rows.
        """
        if self.count is None:
            return values
        if not self.rows:  # made-up ones
            return nothing(values)
        if values.shape[:1] != (self.rows,):
            raise ContextError(
                f"a value of shape {values.shape} in a step of {self.rows} rows, some of them padding, of which each "
                "should have its own. HINT: report this, with the model; run_eagerly=True does without padding."
            )
        mask = self.mask.astype(values.dtype)
        return values * mask.reshape(-1, *[1] * (values.ndim - 1))

    @property
    def alone(self) -> bool:
        """True if there are no other replicas."""
        return self.context.num_replicas_in_sync == 1

    @property
    def unweighted(self) -> bool:
        """True if the step weights no loss: there is one replica, and no padding."""
        return self.alone and self.count is None

    @property
    def sends(self) -> bool:
        """True if parameter servers apply what the step changes."""
        return self.worker is not None

    def sum(self, values: Nest, options: CommunicationOptions | None = None) -> Any:
        """A nest of arrays, added up over the replicas; one without examples adds nothing."""
        if self.alone:
            return values
        values = values if self.rows else jax.tree.map(nothing, values)
        # Not what the context makes of a user's own sums.
        return ReplicaContext.all_reduce(self.context, ReduceOp.SUM, values, options)

    def sum_with_gradients(self, grads: Sequence[Any], variables: Sequence[Any], others: Nest) -> tuple[list[Any], Any]:
        """Gradients and other arrays, added up over the replicas: the others exactly, whatever gradients travel as.

        Args:
          grads: a gradient for each variable.
          variables: the variables.
          others: the other arrays.
        """
        grads, values = set_apart(grads, variables)
        if self.context.strategy.extended.wire is None:
            # One collective for all of it: a message between processes costs more than what is in it.
            grads, others = self.sum((grads, others))
        else:
            grads, others = self.sum(grads), self.sum(others, EXACT)
        return self.with_largest(grads, values), others

    def with_largest(self, grads: Sequence[Any], values: dict[int, Any]) -> list[Any]:
        """Summed gradients together with the largest of all replicas' new values; one without examples has none."""
        if self.alone:
            return put_back(grads, values)
        return put_back(grads, largest(self.context, values if self.rows else jax.tree.map(nothing, values)))


def nothing(value: Numeric) -> Any:
    """Zeros in place of what a replica without examples would bring to the others."""
    # Gradients still go through it: all replicas must meet there, backwards too.
    return with_tangent(jnp.zeros_like, lambda tangent: 0 * tangent)(jnp.asarray(value))


def with_tangent(fn: Callable[[Any], Any], of_tangent: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of an array with a rule of its own for the array's tangent."""
    whole = jax.custom_jvp(fn)

    @whole.defjvp
    def rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        return fn(primals[0]), of_tangent(tangents[0])

    return whole


class _Current(threading.local):
    share: Share | None = None


_current = _Current()


def current() -> Share | None:
    """The share of the replica whose step this thread runs or traces."""
    return _current.share


@contextmanager
def entered(share: Share) -> Generator[Share]:
    """Makes `share` the current one."""
    before, _current.share = _current.share, share
    try:
        yield share
    finally:
        _current.share = before


def whole_batch_losses(
    original: Callable[..., Any],
    values: Nest,
    sample_weight: Array | None = None,
    mask: Array | None = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: DType = None,
) -> Any:
    """Keras's `reduce_weighted_values`, for a replica's part of a batch."""
    share = current()
    if share is not None and share.count is not None:
        # Of what counts in the divisors as well as in the sum, padding is taken out in both.
        mask = None if mask is None else share.own(jnp.asarray(mask))
        if sample_weight is None:
            values = share.own(jnp.asarray(values))
        else:
            sample_weight = share.own(jnp.asarray(sample_weight))
    loss = original(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
    if jnp.shape(loss) == (0,) and reduction not in (None, "none"):
        return jnp.sum(loss)  # a replica without rows adds nothing
    # A loss without examples' axis is no mean over the batch that could be put together.
    if share is None or share.unweighted or not share.total or jnp.ndim(values) == 0:
        return loss
    # The step weights what comes of this by the share of examples; a sum is to come out of that unweighted.
    if reduction == "sum":
        return mean_p.bind(loss) / share.divisor
    if reduction == "mean_with_sample_weight" and (mask is not None or sample_weight is not None):
        counted, weights = (sample_weight, None) if mask is None else (mask, sample_weight)
        divisor = original(counted, sample_weight=weights, reduction="sum", dtype=loss.dtype)
    elif reduction in ("sum_over_batch_size", "mean") and mask is not None:
        mask = jnp.asarray(mask, loss.dtype)
        divisor = jnp.sum(mask) * (jnp.size(values) / jnp.size(mask))
    else:
        return loss
    # Gradients must not go through a quotient of the replica's own sums: nobody could tell what becomes of the rows.
    loss = original(values, sample_weight=sample_weight, mask=mask, reduction="sum", dtype=dtype)
    total = share.sum(divisor)
    return mean_p.bind(loss) / (jnp.where(total == 0, 1, total) * share.divisor)


def whole_batch_additions(original: Callable[..., Any], model: KerasModel, loss: Array) -> Any:
    """A trainer's `_aggregate_additional_loss`: that of a layer's `add_loss`, or of a regularizer."""
    loss, share = original(model, loss), current()
    if share is None or share.unweighted:
        return loss
    if share.count is not None:
        # Of weights alone, and the same on all replicas, whose weights add up to more than one.
        return loss * (share.count / share.total)
    number = len(share.added)
    share.added.append(loss)
    # A sum over the examples, which the step weights by their share.
    return mean_p.bind(loss) / share.divisor if number in share.added_sums else loss


def own_values(
    original: Callable[..., Any], values: Nest, sample_weight: Nest, reduce_fn: Callable[..., Any], dtype: DType
) -> tuple[Any, Any]:
    """Keras's `reduce_to_samplewise_values`, by which means add up: padding has the weight 0."""
    values, sample_weight = original(values, sample_weight, reduce_fn, dtype)
    share = current()
    if share is None or share.count is None:
        return values, sample_weight
    if jnp.ndim(values) == 0:  # one number, such as a loss, which counts once for each example
        return values, jnp.sum(share.mask).astype(values.dtype)
    return share.own(values), share.own(jnp.ones_like(values) if sample_weight is None else sample_weight)


def whole_batch_moments(
    original: Callable[..., Any], x: Array, axes: Sequence[int], keepdims: bool = False, synchronized: bool = False
) -> Any:
    """The backend's `moments`, which can synchronise batch statistics over the replicas."""
    share = current() or _in_own_loop(x)
    # Outside of replicas the batch is the whole one.
    if share is None or not synchronized or share.alone:
        return original(x, axes, keepdims=keepdims)
    # Counts and sums over a whole batch overflow, or lose digits, in half precision.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    axes = tuple(axes)
    count = share.sum(jnp.asarray(math.prod(wide.shape[axis] for axis in axes), wide.dtype))
    mean = share.sum(jnp.sum(wide, axes, keepdims=True)) / count
    variance = share.sum(jnp.sum(jnp.square(wide - mean), axes, keepdims=True)) / count
    if not keepdims:
        mean, variance = jnp.squeeze(mean, axes), jnp.squeeze(variance, axes)
    return mean.astype(x.dtype), variance.astype(x.dtype)


def whole_batch_masked_moments(original: Callable[..., Any], layer: Foreign, inputs: Array, mask: Array | None) -> Any:
    """`BatchNormalization._moments`, which sums up what a mask leaves by itself, and asks no backend."""
    share = current() or _in_own_loop(inputs)
    if mask is None or share is None or share.alone or not layer.synchronized:
        return original(layer, inputs, mask)
    axes, small = tuple(layer._reduction_axes), keras.config.epsilon()
    kept = jnp.broadcast_to(jnp.asarray(mask, bool)[..., None], inputs.shape)

    def whole(values: Array) -> Any:
        return share.sum(jnp.sum(values, axes, keepdims=True))

    count = whole(kept.astype(inputs.dtype)) + small
    mean = whole(jnp.where(kept, inputs, 0)) / count
    variance = whole(jnp.square(jnp.where(kept, inputs - mean, 0))) / count
    return jnp.squeeze(mean, axes), jnp.squeeze(variance, axes)


def _in_own_loop(x: Array) -> Share | None:
    """The share of a replica function that a user calls: of what it normalizes; None outside of a strategy's."""
    context = get_replica_context()
    if context is None or context.strategy.is_default:
        return None
    return Share(context, x.size, 0)


def synchronizable(
    original: Callable[..., Any], layer: Foreign, *args: Leaf, synchronized: bool = False, **kwargs: Leaf
) -> None:
    """`BatchNormalization.__init__`, which takes `synchronized=True`, also for a model of one device."""
    # Keras refuses the flag on JAX; it is set behind its check, and `moments` is given it then.
    original(layer, *args, **kwargs)
    layer.synchronized = synchronized


def whole_batch_gradients(
    original: Callable[..., Any],
    optimizer: KerasOptimizer,
    optimizer_variables: Nest,
    grads: Nest,
    trainable_variables: Nest,
) -> Any:
    """An optimizer's `stateless_apply`, which adds up the gradients over the replicas first, or keeps them."""
    share = current()
    if share is not None and share.sends:
        if share.gradients is not None:
            raise ContextError(
                "a train_step applies gradients twice, which parameter servers do not. HINT: use one optimizer, "
                "and call its stateless_apply once."
            )
        # Kept for the worker to send: servers apply them, and the variables stay as they are here.
        share.gradients = list(grads)
        return list(trainable_variables), list(optimizer_variables)
    if share is None or share.reduced or share.alone:
        return original(optimizer, optimizer_variables, grads, trainable_variables)
    weight = 1.0 if len(share.applied) in share.summed else share.weight
    grads, values = set_apart(list(grads), updated_by(optimizer))
    share.applied.append(jax.tree.leaves(grads))
    grads = share.sum(jax.tree.map(lambda grad: grad * jnp.asarray(weight, grad.dtype), grads))
    grads = share.with_largest(grads, values)
    grads = jax.tree.map(change_p.bind, grads) if share.marks_changes else grads
    share.reduced = True  # optimizers call one another
    try:
        return original(optimizer, optimizer_variables, grads, trainable_variables)
    finally:
        share.reduced = False
