"""A Keras model under a strategy: the functions that `fit`, `evaluate` and `predict` call for each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute import Mirrored, PerReplica, ReplicaContext, Strategy, function, get_strategy
from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.custom_loops import gradients_seen
from jaxtribute._src.addons.keras.data import Placer, shared_by_islands
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.meeting import share_of
from jaxtribute._src.addons.keras.padding import Padding
from jaxtribute._src.addons.keras.parts import Ends, Number, PartsOfSteps
from jaxtribute._src.addons.keras.row_wise import Kind
from jaxtribute._src.addons.keras.share import Share
from jaxtribute._src.addons.keras.stateful import attributes_kept, with_part
from jaxtribute._src.addons.keras.steps import Lists, Step, predict_step, rows_of, test_step, train_step
from jaxtribute._src.addons.keras.tables import Tables
from jaxtribute._src.addons.keras.variables import StrategyVariable, adopt, on_servers
from jaxtribute.errors import VariableError
from jaxtribute.extending import Context
from jaxtribute.typing import Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.keras.scheduling import Scheduler

_ATTRIBUTE = "_jaxtribute_strategy"
SCHEDULER = "_jaxtribute_servers"
"""The attribute of a model that keeps what it has on workers."""
Function = Callable[[Any, Iterator[Any]], tuple[Any, Any]]
"""Function that Keras calls per step, or per `steps_per_execution` of them: `(state, iterator) -> (logs, state)`."""


OnBatch = Callable[[Any, Iterator[Any]], Any]
"""One step on a batch from Keras, and on what it comes from."""
_KINDS: dict[Any, Kind] = {train_step: "train", test_step: "test", predict_step: "predict"}


def remember(model: KerasModel, strategy: Strategy) -> None:
    """Notes in whose scope a model is made."""
    # Past Keras's own `__setattr__`, which looks at what becomes an attribute.
    object.__setattr__(model, _ATTRIBUTE, strategy)


def scheduler_of(model: KerasModel) -> Scheduler | None:
    """A model's objects on workers of parameter servers, if it has trained or been evaluated there."""
    return model.__dict__.get(SCHEDULER)


def strategy_of(model: KerasModel) -> Strategy | None:
    """The strategy in whose scope a model was made or compiled, or its variables were; None for plain Keras."""
    found = model.__dict__.get(_ATTRIBUTE)
    tracker = internals.loss_tracker(model)
    # A model loaded from a file, or compiled in a scope only, tells by the variables that it has.
    if found is None and tracker is not None:
        found = _strategy_of(tracker.variables[:1])
    if found is None and getattr(model, "built", False):
        found = _strategy_of(model.weights)
    # Keras's own loop passes values on; a step in TensorFlow's form reads and writes variables.
    if found is None and any(internals.takes_data_alone(model, kind) for kind in MAKERS):
        with Context.entered(Context.outside()):
            found = get_strategy()
    if found is not None:
        remember(model, found)
    return found


def _strategy_of(variables: Iterable[Any]) -> Strategy | None:
    """The strategy that stores variables; None for plain models and those of the default strategy."""
    return next((v.strategy for v in variables if isinstance(v, StrategyVariable) and not v.strategy.is_default), None)


def make_train_function(model: KerasModel, strategy: Strategy) -> Function:
    """Function that `fit` calls."""
    if on_servers(strategy):
        return _scheduled(model, strategy, "train")
    if shared_by_islands(strategy) is not None and internals.has_own_step(model, "train"):
        raise NotImplementedError(
            f"{type(model).__name__} has a train_step of its own, of which ElasticStrategy cannot know that islands "
            "come to the same values. HINT: leave it to Keras, or write the loop with jd.function and strategy.run."
        )
    if internals.takes_data_alone(model, "train"):
        return _repeated(model, _stateful(model, strategy, model.train_step))
    return _repeated(model, Tables.checked(model, _step(model, strategy, train_step)))


def make_test_function(model: KerasModel, strategy: Strategy) -> Function:
    """Function that `evaluate` calls."""
    if on_servers(strategy):
        return _scheduled(model, strategy, "test")
    if internals.takes_data_alone(model, "test"):
        return _repeated(model, _stateful(model, strategy, model.test_step))
    return _repeated(model, _step(model, strategy, test_step))


def make_predict_function(model: KerasModel, strategy: Strategy) -> Function:
    """Function that `predict` calls; its results are all replicas' outputs."""
    if shared_by_islands(strategy) is not None:
        raise NotImplementedError(
            "ElasticStrategy has no predict yet: outputs would have to be brought together. HINT: predict in another "
            "program, with the weights that model.save_weights has written."
        )
    if internals.takes_data_alone(model, "predict"):
        step = _stateful(model, strategy, model.predict_step, joins=True)
    else:
        step = _step(model, strategy, predict_step)

    def whole(batch: Nest, source: Iterator[Any]) -> Any:
        return jax.tree.map(lambda leaf: _joined(leaf, strategy), step(batch, source), is_leaf=_is_distributed)

    # One replica's outputs are arrays.
    return _repeated(model, step if strategy.num_replicas_in_sync == 1 else whole, joins=True)


MAKERS = {"train": make_train_function, "test": make_test_function, "predict": make_predict_function}
"""Maker of the functions that Keras calls."""


def _scheduled(model: KerasModel, strategy: Strategy, kind: str) -> Function:
    from jaxtribute._src.addons.keras.scheduling import make_function

    return make_function(model, strategy, kind)


def _stateful(model: KerasModel, strategy: Strategy, method: Callable[[Any], Any], *, joins: bool = False) -> OnBatch:
    """One step in TensorFlow's form on a batch from Keras: each replica runs it as a loop of the user's own would."""
    lists = Lists.of(model)
    _adopt_all(lists, strategy)
    compiled = model.jit_compile and not model.run_eagerly
    place = Placer(strategy, compiled, whole=joins)

    def ends(share: Share, batch: Nest) -> Ends:
        # Of a part that grows with the rows, the gradient of Keras's own loss does, too: such gradients may be summed.
        with with_part(share.rows, 1) as numbers, attributes_kept(model), gradients_seen() as gradients:
            logs = method(batch)
        share.applied += gradients
        named: dict[Any, Any] = {Number(place): number for place, number in enumerate(numbers)}
        return (), (), {**(logs if isinstance(logs, dict) else {}), **named}, ()

    parts = PartsOfSteps(model, (), ends, writes=True)

    def shown(value: Leaf) -> Any:
        if isinstance(value, PerReplica):
            return strategy.reduce("MEAN", value, axis=None)
        return value.data if isinstance(value, Mirrored) else value

    @cache
    def step_of(rows: int) -> Callable[[Any], Any]:
        def replica(batch: Nest, total: int) -> Any:
            own, context = rows_of(batch), Context.current().replica
            if context is None or joins:
                with with_part(own, total):
                    return method(batch)
            share = share_of(context, own, total)
            told = parts.tell(share, batch)
            with with_part(own, total, told.powers):
                return told.weighted(share, method(batch))

        def step(batch: Nest) -> Any:
            if not compiled and not joins:
                _tell_all(parts, strategy, batch, rows)
            result = strategy.run(replica, (batch, rows))
            return result if joins else jax.tree.map(shown, result, is_leaf=_is_distributed)

        vars(step)["shown_as"] = shown_as(getattr(method, "__name__", ""), rows)
        return function(step).owning_arguments() if compiled else step

    def on_batch(batch: Nest, _: Iterator[Any]) -> Any:
        placed, rows = place(batch)
        return step_of(rows)(placed)

    return on_batch


def _adopt_all(lists: Lists, strategy: Strategy) -> None:
    """Makes a model's variables the strategy's, and says which are an optimizer's, wherever they were made."""
    for variable in (*lists.trainable, *lists.layers, *lists.metrics):
        adopt(variable, strategy)
    # Parameter servers make slots of their own.
    for variable in () if on_servers(strategy) else lists.optimizer:
        adopt(variable, strategy)
        variable.of_optimizer = True


def shown_as(name: str, rows: int) -> str:
    """The name of a step in reports: what Keras does with it, and its rows, by which a last batch is told."""
    kind = {"train": "training step", "test": "validation step"}.get(name.split("_")[0], "step")
    return f"{kind} on {rows} rows"


def _tell_all(parts: PartsOfSteps, strategy: Strategy, batch: Nest, rows: int) -> None:
    """Analyses a step that runs as Python where it may make variables: before replicas run, and for all of them."""
    leaves, tree = jax.tree.flatten(batch, is_leaf=_is_distributed)
    for index, own in enumerate(zip(*map(strategy.experimental_local_results, leaves), strict=True)):
        parts.tell(share_of(ReplicaContext(strategy, index), rows_of(own), rows), tree.unflatten(own))


def _step(model: KerasModel, strategy: Strategy, make: Callable[[Any, Lists], Step]) -> OnBatch:
    """One step on a batch from Keras: compiled, or each replica's Python if the model runs eagerly."""
    lists = Lists.of(model)
    _adopt_all(lists, strategy)
    replica = make(model, lists)
    # Keras's own condition for compiling.
    compiled = model.jit_compile and not model.run_eagerly
    place = Placer(strategy, compiled, whole=make is predict_step)
    # Keras's steps come to the same values on all islands, which a program of one of them does not show.
    alike = compiled and shared_by_islands(strategy) is None

    def _first(value: Leaf) -> Any:
        if isinstance(value, Mirrored):
            return value.data
        return strategy.experimental_local_results(value)[0]

    # A function for each number of rows: steps are calls of arrays alone, which run again without a look at each.
    @cache
    def step_of(total: int) -> Callable[..., Any]:
        def step(batch: Nest, *count: Mirrored) -> Any:
            # New values come out of the replicas rather than being written inside: Keras's steps are pure functions of
            # lists.
            # Past `run` of parameter servers, which warns of code on the coordinator: here Keras means it.
            values, result = Strategy.run(strategy, replica, (batch, total, *count))
            # What cannot be compiled runs as Python, where every replica has values of its own.
            whole = alike and Context.current().executor.traced
            for variable, value in zip(lists.all, values, strict=True):
                if value is not None:
                    _check_alike(variable, value, alike=whole)
                    variable.stored.assign(value if whole else strategy.experimental_local_results(value)[0])
            return result if make is predict_step else jax.tree.map(_first, result, is_leaf=_is_distributed)

        vars(step)["shown_as"] = shown_as(make.__name__, total)
        # Batches are this file's own: cut from arrays that nobody writes to meanwhile, or copied.
        return function(step).owning_arguments() if compiled else step

    padding = Padding.of(model, strategy, _KINDS[make]) if compiled else None
    return _padding(padding, place, step_of, strategy)


def _check_alike(variable: Any, value: Any, *, alike: bool) -> None:
    """Checks that all replicas have come to the same new value of a variable.

    Raises:
      VariableError: they have not.
    """
    if alike and isinstance(value, PerReplica):
        raise VariableError(
            f"the step of fit gave {variable.path or variable.name} another value on each of {value.mesh.size} "
            "replicas, which compute with their own rows. HINT: in a train_step(self, state, data) update weights by "
            "self.optimizer.stateless_apply, which averages gradients over the replicas; for several optimizers write "
            "train_step(self, data)."
        )


def _padding(
    padding: Padding | None, place: Placer, step_of: Callable[[int], Callable[..., Any]], strategy: Strategy
) -> OnBatch:
    """Steps on batches as they are, and on those that are padded first."""

    def cut(outputs: Nest, rows: int) -> Any:
        joined = jax.tree.map(lambda leaf: _joined(leaf, strategy), outputs, is_leaf=_is_distributed)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:rows], joined)

    def on_batch(batch: Nest, source: Iterator[Any]) -> Any:
        padded = None if padding is None else padding(batch, source)
        placed, rows = place(batch if padded is None else padded.batch)
        if padded is None:
            return step_of(rows)(placed)
        if padded.count is None:
            return cut(step_of(rows)(placed), padded.rows)
        return step_of(rows)(placed, padded.count)

    return on_batch


def _repeated(model: KerasModel, step: OnBatch, *, joins: bool = False) -> Function:
    """`steps_per_execution` steps in one call, up to the end of the data."""

    def call(state: Nest, iterator: Iterator[Any]) -> tuple[Any, Any]:
        # Not guarded: the end of the data before any step is what Keras waits for.
        results = [step(next(iterator), iterator)]
        for _ in range(model.steps_per_execution - 1):
            batch = next(iterator, None)
            if batch is None:
                break
            results.append(step(batch, iterator))
        if not joins or len(results) == 1:
            return results[-1], state
        return jax.tree.map(lambda *parts: np.concatenate(list(map(np.asarray, parts))), *results), state

    return call


def _is_distributed(value: Leaf) -> bool:
    return isinstance(value, (Mirrored, PerReplica))


def _joined(value: Leaf, strategy: Strategy) -> Any:
    if isinstance(value, Mirrored):
        return value.data
    if not isinstance(value, PerReplica):
        return value
    # Left where it is, without a collective: Keras makes one NumPy array of all batches, which takes each replica's
    # rows from its device. Other workers' rows cannot be had so.
    if not value.is_ragged and value.component_ndim and value.data.is_fully_addressable:
        return value.data
    return strategy.gather(value, axis=0)
