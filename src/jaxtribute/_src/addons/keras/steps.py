"""Steps of one replica: a Keras model's own step on its part of a batch, and the reductions over the replicas."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.derived import DerivedLogs, changed_places, results_of
from jaxtribute._src.addons.keras.internals import KerasModel, KerasVariable
from jaxtribute._src.addons.keras.meeting import entered, share_of
from jaxtribute._src.addons.keras.merging import State, contributions, merged, start_of_layers, start_of_metrics
from jaxtribute._src.addons.keras.parts import Ends, PartsOfSteps
from jaxtribute._src.addons.keras.running import RunningSums
from jaxtribute._src.addons.keras.share import EXACT, Path, Share
from jaxtribute._src.addons.keras.tables import Tables
from jaxtribute.errors import ContextError
from jaxtribute.extending import Context, within_budget
from jaxtribute.typing import Array, Nest

Logs = dict[str, Any]
Step = Callable[..., tuple[list[Any], Any]]
"""Takes a replica's batch and the number of rows of all; gives new values of `Lists.all` and logs or outputs.

If the last rows are padding, the number of all others comes third, as an array.
"""


@dataclass(frozen=True)
class Lists:
    """A model's variables, in the order of Keras's states."""

    trainable: Sequence[Any]
    layers: Sequence[Any]
    """Those that no optimizer updates: batch statistics, random generators."""
    optimizer: Sequence[Any]
    metrics: Sequence[Any]

    @classmethod
    def of(cls, model: KerasModel) -> Lists:
        """The variables of a built model."""
        optimizer = getattr(model, "optimizer", None)
        return cls(
            list(model.trainable_variables),
            list(model.non_trainable_variables),
            [] if optimizer is None else list(optimizer.variables),
            list(model.metrics_variables),
        )

    @property
    def metric_ids(self) -> frozenset[int]:
        """The ids of the metrics' variables."""
        return frozenset(id(variable) for variable in self.metrics)

    @property
    def all(self) -> list[Any]:
        """All of them, in the order of the fields."""
        return [*self.trainable, *self.layers, *self.optimizer, *self.metrics]


def rows_of(batch: Nest) -> int:
    """The number of examples of a batch, as Keras counts them."""
    first = next((leaf for leaf in jax.tree.leaves(batch) if jnp.ndim(leaf)), None)
    return 0 if first is None else first.shape[0]


def train_step(model: KerasModel, lists: Lists) -> Step:
    """A replica's training step."""
    own = internals.has_own_step(model, "train")
    tables = Tables.of(model, own=own)

    def ends(share: Share, batch: Nest) -> Ends:
        trainable, layers, optimizer, metrics = map(
            values_of, (lists.trainable, lists.layers, lists.optimizer, lists.metrics)
        )
        start = start_of_layers(lists.layers, layers, share), start_of_metrics(lists.metrics, metrics, share)
        with entered(share):
            if not own:
                options = {"training": True, "optimizer_variables": optimizer}
                return _standard_ends(model, share, batch, start, trainable, options)
            logs, state = model.train_step((trainable, start[0], optimizer, start[1]), batch)
        return start[1], state[3], logs, _changed(start[0], state[1])

    parts = PartsOfSteps(model, lists.metrics, ends, weighs_later=own)
    derived = DerivedLogs(model, "train", lists.metrics, ends, weighs_later=own)
    running = RunningSums(model, lists.layers, lambda share, batch: ends(share, batch)[3])

    def step(batch: Nest, total: int, count: Any = None) -> tuple[list[Any], Logs]:
        share, batch = _share(batch, total, lists, count, weighs_later=own)
        derived.tell(share, batch)
        parts.tell(share, batch)
        running.tell(share, batch)
        before = list(map(values_of, (lists.trainable, lists.layers, lists.optimizer, lists.metrics)))
        trainable, layers, optimizer, metrics = before
        start = start_of_layers(lists.layers, layers, share), start_of_metrics(lists.metrics, metrics, share)
        with entered(share):
            if own:
                logs, state = model.train_step((trainable, start[0], optimizer, start[1]), batch)
                new_trainable, layer_ends, new_optimizer, metric_ends = state
                _, layers, metrics, logs = _reduced(model, lists, before, start, (layer_ends, metric_ends), logs, share)
            else:
                ends, logs, grads = _local_gradients(model, lists, before, start, batch, share, tables)
                grads, layers, metrics, logs = _reduced(model, lists, before, start, ends, logs, share, grads)
                # `stateless_apply` is replaced, too: it must not add up again what has been added up.
                share.reduced = True
                new_trainable, new_optimizer = model.optimizer.stateless_apply(optimizer, grads, trainable)
        tables.apply(share)
        new = [*new_trainable, *layers, *new_optimizer, *metrics]
        return _changed(list(itertools.chain.from_iterable(before)), new), logs

    return step


def test_step(model: KerasModel, lists: Lists) -> Step:
    """A replica's evaluation step."""

    def ends(share: Share, batch: Nest) -> Ends:
        trainable, layers, metrics = map(values_of, (lists.trainable, lists.layers, lists.metrics))
        start = start_of_layers(lists.layers, layers, share), start_of_metrics(lists.metrics, metrics, share)
        with entered(share):
            if not internals.has_own_step(model, "test"):
                return _standard_ends(model, share, batch, start, trainable, {"training": False})
            logs, state = model.test_step((trainable, *start), batch)
        return start[1], state[2], logs, _changed(start[0], state[1])

    parts = PartsOfSteps(model, lists.metrics, ends)
    derived = DerivedLogs(model, "test", lists.metrics, ends)
    running = RunningSums(model, lists.layers, lambda share, batch: ends(share, batch)[3])

    def step(batch: Nest, total: int, count: Any = None) -> tuple[list[Any], Logs]:
        share, batch = _share(batch, total, lists, count)
        derived.tell(share, batch)
        parts.tell(share, batch)
        running.tell(share, batch)
        trainable, layers, metrics = map(values_of, (lists.trainable, lists.layers, lists.metrics))
        start = start_of_layers(lists.layers, layers, share), start_of_metrics(lists.metrics, metrics, share)
        with entered(share):
            logs, state = model.test_step((trainable, *start), batch)
            before = [trainable, layers, [], metrics]
            _, new_layers, new_metrics, logs = _reduced(model, lists, before, start, (state[1], state[2]), logs, share)
        unchanged = [None] * len(trainable), [None] * len(lists.optimizer)
        return [*unchanged[0], *_changed(layers, new_layers), *unchanged[1], *_changed(metrics, new_metrics)], logs

    return step


def predict_step(model: KerasModel, lists: Lists) -> Step:
    """A replica's prediction; of variables it may change those that no optimizer updates, such as random states."""

    def ends(share: Share, batch: Nest) -> State:
        trainable, layers = map(values_of, (lists.trainable, lists.layers))
        start = start_of_layers(lists.layers, layers, share)
        with entered(share):
            return _changed(start, model.predict_step((trainable, start), batch)[1])

    def shown(share: Share, batch: Nest) -> Ends:
        trainable, layers = map(values_of, (lists.trainable, lists.layers))
        with entered(share):
            outputs = model.predict_step((trainable, start_of_layers(lists.layers, layers, share)), batch)[0]
        return [], [], {str(number): leaf for number, leaf in enumerate(jax.tree.leaves(outputs))}, []

    parts = PartsOfSteps(model, [], shown, predicts=True)
    running = RunningSums(model, lists.layers, ends)

    def step(batch: Nest, total: int) -> tuple[list[Any], Any]:
        share, batch = _share(batch, total, lists)
        parts.tell(share, batch)
        running.tell(share, batch)
        trainable, layers = map(values_of, (lists.trainable, lists.layers))
        start = start_of_layers(lists.layers, layers, share)
        with entered(share):
            outputs, ends = model.predict_step((trainable, start), batch)
            changed = _changed(start, ends)
            if not share.alone and any(new is not None for new in changed):
                totals = share.sum(contributions(lists.layers, start, changed, share), EXACT)
                changed = _changed(layers, merged(lists.layers, layers, totals, share))
        # A replica without examples computed made-up ones, of which no row may reach the outputs.
        outputs = jax.tree.map(lambda leaf: _own(leaf if share.rows else leaf[:0], share), outputs)
        rest = [None] * (len(lists.optimizer) + len(lists.metrics))
        return [*[None] * len(trainable), *changed, *rest], outputs

    return step


def _own(output: Array, share: Share) -> Any:
    """An output as one of this replica's examples, even if it depends on nothing that replicas have of their own."""
    return output if share.alone else lax.optimization_barrier((output, share.context.replica_id_in_sync_group))[0]


def _share(batch: Nest, total: int, lists: Lists, count: Any = None, weighs_later: bool = False) -> tuple[Share, Any]:
    """The replica's share, and its batch: made-up examples if it has none, which go into nothing that is reduced."""
    context = Context.current().replica
    if context is None:
        raise ContextError("a Keras step runs in a replica context only. HINT: call model.fit, which enters one.")
    if count is not None:  # as exact as losses are
        count = count.astype(jnp.promote_types(jnp.float32, jax.dtypes.canonicalize_dtype(keras.config.floatx())))
    share = share_of(context, rows_of(batch), total, lists.metric_ids, weighs_later, count)
    # A program computes something in any case; the weight of these examples is zero.
    if not share.rows:
        batch = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), batch)
    return share, batch


def values_of(variables: Sequence[KerasVariable]) -> State:
    """The values that variables have at the start of a step; None for tables, which nobody reads as a whole there."""
    stored = [variable.stored for variable in variables]
    return [None if one.policy.by_rows else one.read_value() for one in stored]


def _changed(before: State, after: Sequence[Any]) -> list[Any]:
    """The new values, None if they are the old ones."""
    return [None if new is None or new is old else new for old, new in zip(before, after, strict=True)]


def _local_gradients(
    model: KerasModel,
    lists: Lists,
    before: Sequence[State],
    start: tuple[State, State],
    batch: Nest,
    share: Share,
    tables: Tables,
) -> tuple[tuple[State, State], Logs, list[Any]]:
    """The standard training step up to where the optimizer takes over; gradients are this replica's share."""
    trainable, _, optimizer, _ = before
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)

    def loss(values: State) -> tuple[Any, Any]:
        scaled, aux = _loss(model, values, optimizer, start, (x, y, sample_weight))
        return scaled * jnp.asarray(1 if share.sums_loss else share.weight, scaled.dtype), aux

    if tables.trained:
        aux, grads = tables.differentiated(lambda: loss(values_of(lists.trainable)), lists.trainable, share)
    else:
        (_, aux), grads = jax.value_and_grad(within_budget(loss), has_aux=True)(trainable)
    unscaled, y_pred, layers, metrics = aux
    logs, metrics = internals.updated_metrics(model, metrics, unscaled, x, y, y_pred, sample_weight)
    return (layers, metrics), logs, grads


def _standard_ends(
    model: KerasModel, share: Share, batch: Nest, start: tuple[State, State], trainable: State, options: Any
) -> Ends:
    """The ends of Keras's own step, of training or not; the share is told the loss."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    _, aux = model.compute_loss_and_updates(trainable, *start, x, y, sample_weight, **options)
    share.loss = aux[0]
    logs, after = internals.updated_metrics(model, aux[3], aux[0], x, y, aux[1], sample_weight)
    return start[1], after, logs, _changed(start[0], aux[2])


def _loss(
    model: KerasModel, trainable: State, optimizer: State, start: tuple[State, State], batch: tuple[Any, Any, Any]
) -> tuple[Any, Any]:
    """The standard training step's loss, scaled; and the loss itself, predictions, and new values of the others."""
    return model.compute_loss_and_updates(trainable, *start, *batch, training=True, optimizer_variables=optimizer)


def _reduced(
    model: KerasModel,
    lists: Lists,
    before: Sequence[State],
    start: tuple[State, State],
    ends: tuple[State, State],
    logs: Logs,
    share: Share,
    grads: Sequence[Any] = (),
) -> tuple[Sequence[Any], State, State, Logs]:
    """Adds up over the replicas, in one go; returns gradients, values of layers and metrics, and logs."""
    if share.alone:
        return grads, ends[0], ends[1], logs
    touched = changed_places(start[1], ends[1])
    extra = _weighted(logs, results_of(model, lists.metrics, ends[1], touched), share)
    others = (
        contributions(lists.layers, start[0], ends[0], share),
        contributions(lists.metrics, start[1], ends[1], share),
        extra,
    )
    grads, (layer_totals, metric_totals, extra) = share.sum_with_gradients(grads, lists.trainable, others)
    layers = merged(lists.layers, before[1], layer_totals, share)
    metrics = merged(lists.metrics, before[3], metric_totals, share)
    derived = {path: log.of(metrics) for path, log in share.derived.items()}
    return grads, layers, metrics, _logged(logs, results_of(model, lists.metrics, metrics, touched), derived, extra)


def _weighted(logs: Logs, metrics: Logs, share: Share, outer: Path = ()) -> Logs:
    """Adds up a replica's logs that no metrics' values tell, weighted by their share; logs may be nested."""
    weighted: Logs = {}
    for name, value in logs.items():
        if name in metrics or (*outer, name) in share.derived:
            continue
        if isinstance(value, dict):
            weighted[name] = _weighted(value, metrics, share, (*outer, name))
        else:
            weight = 1 if name in share.summed else share.weight
            weighted[name] = jax.tree.map(lambda leaf, weight=weight: jnp.asarray(leaf) * weight, value)
    return weighted


def _logged(logs: Logs, metrics: Logs, derived: Mapping[Path, Any], extra: Logs, outer: Path = ()) -> Logs:
    """The logs of all replicas: `metrics`, what is `derived` of them, and sums of what `_weighted` gave."""
    logged: Logs = {}
    for name, value in logs.items():
        path = *outer, name
        if name in metrics:
            logged[name] = metrics[name]
        elif path in derived:
            logged[name] = derived[path]
        else:
            logged[name] = (
                _logged(value, metrics, derived, extra[name], path) if isinstance(value, dict) else extra[name]
            )
    return logged
