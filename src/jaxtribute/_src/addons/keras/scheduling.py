"""`fit` and `evaluate` under `ParameterServerStrategy`: a model goes to workers, where its steps are scheduled."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute._src.addons.keras.data import UnsizedAdapter
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.server_optimizer import optimizer_on_servers
from jaxtribute._src.addons.keras.server_steps import Runner
from jaxtribute._src.addons.keras.steps import Lists, Logs
from jaxtribute._src.addons.keras.trainer import SCHEDULER, scheduler_of
from jaxtribute._src.addons.keras.unpickling import run_steps, runner
from jaxtribute._src.addons.keras.variables import adopt
from jaxtribute._src.addons.parameter_servers.scheduling import pickling
from jaxtribute._src.addons.parameter_servers.scheduling.coordinator import ClusterCoordinator
from jaxtribute._src.addons.parameter_servers.scheduling.per_worker import PerWorkerDataset, PerWorkerValues
from jaxtribute.extending import Context
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute import InputOptions, Optimizer, Strategy
    from jaxtribute._src.addons.parameter_servers.scheduling.remote_value import RemoteValue
    from jaxtribute.experimental import DatasetCreator


def shipped_runner(model: KerasModel, optimizer: Optimizer | None) -> PerWorkerValues:
    """A model's steps, as each worker gets its own of."""
    # The optimizer is on the servers already, or there is none to be.
    blob = pickling.dumps((model, optimizer), completes=False)
    return PerWorkerValues(lambda: runner(blob))


Function = Callable[[Any, Iterator[Any]], tuple[Any, Any]]
# One number for each pass over data: a worker that meets another number begins its dataset again.
_passes = itertools.count(1)
_AHEAD = 16
"""Number of executions scheduled per worker before the oldest is waited for."""


@dataclass(frozen=True)
class Turn:
    """Stand-in for a batch that a worker will draw.

    Attributes:
      dataset: each worker's own.
      number: which pass over it.
    """

    dataset: PerWorkerDataset
    number: int


class ScheduledAdapter(UnsizedAdapter):
    """Stand-ins that Keras reads instead of the batches that each worker makes for itself.

    Args:
      creator: makes a worker's dataset.
      strategy: the strategy.
    """

    def __init__(self, creator: DatasetCreator, strategy: Strategy) -> None:
        self._make = partial(_dataset, creator.dataset_fn, creator.input_options)
        self._dataset = PerWorkerDataset(self._make)
        self._strategy = strategy

    def get_jax_iterator(self) -> Iterator[Turn]:
        """Turns, without end."""
        turn = Turn(self._dataset, next(_passes))
        while True:
            yield turn

    get_numpy_iterator = get_jax_iterator

    def like_a_batch(self) -> Iterator[Any]:
        """An array for each of a batch's, with one example. It makes the dataset here, once."""
        with self._strategy.scope():
            spec = self._make().element_spec
        yield jax.tree.map(lambda leaf: np.zeros([n or 1 for n in leaf.shape], leaf.dtype), spec)


def _dataset(dataset_fn: Callable[[Any], Any], options: InputOptions | None) -> Any:
    return Context.current().strategy.distribute_datasets_from_function(dataset_fn, options)


class Scheduler:
    """One model's objects on the workers.

    Args:
      model: the model.
      strategy: its strategy.
    """

    def __init__(self, model: KerasModel, strategy: Strategy) -> None:
        self._coordinator = ClusterCoordinator(strategy)
        self._model, self._strategy = model, strategy
        self._ahead = _AHEAD * self._coordinator.workers
        self._running: deque[RemoteValue] = deque()
        self.logs: Logs | None = None
        """Result of the last known execution on a worker; None if the last one was here."""

    def function(self, kind: str) -> Function:
        """Function that `fit` (`train`) or `evaluate` (`test`) calls for each execution."""
        model = self._model
        optimizer = self._optimizer() if kind == "train" else None
        # Pickled once for each `fit`, when the model is built: workers keep what they have unpickled.
        runner = shipped_runner(model, optimizer)
        here: list[Runner] = []

        def call(state: Nest, batches: Iterator[Any]) -> tuple[Logs, Any]:
            first = next(batches)
            # Data that the coordinator reads itself, such as validation arrays, are computed here.
            if isinstance(first, Turn):
                return self._schedule((runner, kind, first.dataset, first.number, model.steps_per_execution)), state
            self.logs = None
            if not here:
                here.append(Runner(model, optimizer, self._strategy))
            rest = itertools.islice(batches, model.steps_per_execution - 1)
            return here[0].run(kind, itertools.chain([first], rest)), state

        return call

    def _optimizer(self) -> Optimizer | None:
        """Function that applies gradients on the servers; None if nothing is trained."""
        keras_optimizer, variables = self._model.optimizer, list(self._model.trainable_variables)
        if variables:
            return optimizer_on_servers(keras_optimizer, variables, self._strategy)
        for variable in keras_optimizer.variables:
            adopt(variable, self._strategy)
        return None

    def _schedule(self, arguments: Sequence[Any]) -> Logs:
        if not self._running:
            self.logs = {}
        try:
            self._running.append(self._coordinator.schedule(run_steps, args=arguments))
            self._take_finished()
        except BaseException:
            self._running.clear()
            self._coordinator.join()  # if another function failed before, raises what it did
            raise
        return self.logs or {}

    def _take_finished(self) -> None:
        # The oldest first: logs are those of the last step in the order of scheduling that is known to have ended.
        while self._running and (self._running[0].is_done or len(self._running) > self._ahead):
            self.logs = self._running.popleft().fetch()

    def finish(self) -> None:
        """Waits for all that is scheduled."""
        if not self._running:
            return
        # Forgotten before the wait: if that raises, no later call asks for the results of steps that failed.
        last = self._running[-1]
        self._running.clear()
        self._coordinator.join()
        self.logs = last.fetch()


def make_function(model: KerasModel, strategy: Strategy, kind: str) -> Function:
    """Runs `fit` and `evaluate` under a `ParameterServerStrategy`."""
    lists = Lists.of(model)
    for variable in (*lists.trainable, *lists.layers, *lists.metrics):
        adopt(variable, strategy)
    scheduler = scheduler_of(model)
    if scheduler is None:
        scheduler = Scheduler(model, strategy)
        object.__setattr__(model, SCHEDULER, scheduler)
    return scheduler.function(kind)
