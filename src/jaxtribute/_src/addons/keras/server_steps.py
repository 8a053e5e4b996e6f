"""Steps of a Keras model whose variables are on parameter servers: what a worker computes, and what it sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jaxtribute import Optimizer, Strategy, function
from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.merging import State, start_of_layers, start_of_metrics
from jaxtribute._src.addons.keras.server_optimizer import clips_before
from jaxtribute._src.addons.keras.share import Share, entered
from jaxtribute._src.addons.keras.steps import Lists, Logs, rows_of, values_of
from jaxtribute._src.addons.parameter_servers.scheduling.worker_task import experimental_get_current_worker_index
from jaxtribute.extending import Context
from jaxtribute.typing import Nest


class Runner:
    """A model's steps in this process: a worker's, or the coordinator's.

    Args:
      model: the model.
      optimizer: what applies its gradients on the servers; None for evaluation alone.
      strategy: the strategy in this process.
    """

    def __init__(self, model: KerasModel, optimizer: Optimizer | None, strategy: Strategy) -> None:
        self._model, self._lists, self._optimizer = model, Lists.of(model), optimizer
        self._strategy, self._worker = strategy, experimental_get_current_worker_index() or 0
        self._passes: dict[str, tuple[int, Any]] = {}
        self._steps = {"train": self._compiled(self._train), "test": self._compiled(self._test)}

    def batches(self, kind: str, dataset: Iterable[Nest], turn: int) -> Iterator[Any]:
        """The pass number `turn` over a dataset; the last one for training, and for evaluation, is kept."""
        known = self._passes.get(kind)
        if known is None or known[0] != turn:
            if known is not None:
                # The last pass may have ended early; its prefetching thread ends with it.
                known[1].close()
            known = self._passes[kind] = turn, iter(dataset)
        return known[1]

    def run(self, kind: str, batches: Iterable[Any]) -> Logs:
        """Trains (`train`) or evaluates (`test`) on batches; returns the last one's own logs."""
        logs: Logs = {}
        for batch in batches:
            logs = self._steps[kind](batch)
        return logs

    def _compiled(self, step: Callable[[Any], Logs]) -> Callable[[Any], Logs]:
        @function
        def compiled(batch: Nest) -> Logs:
            # Past `run` of parameter servers, which warns of code on the coordinator: here Keras means it.
            return Strategy.run(self._strategy, step, args=(batch,))

        return compiled

    def _train(self, batch: Nest) -> Logs:
        lists, share = self._lists, self._share(batch)
        trainable, layers, slots, metrics = map(
            values_of, (lists.trainable, lists.layers, lists.optimizer, lists.metrics)
        )
        start = start_of_layers(lists.layers, layers, share), start_of_metrics(lists.metrics, metrics, share)
        with entered(share):
            logs, state = self._model.train_step((trainable, start[0], slots, start[1]), batch)
        gradients = share.gradients
        # On the servers each sees a part of the gradients only, of which a norm over all cannot be told.
        if gradients is not None and clips_before(self._model.optimizer):
            gradients = internals.clipped(self._model.optimizer, gradients)
        _send(lists.trainable, trainable, state[0])
        _send(lists.layers, start[0], state[1])
        _send(lists.metrics, start[1], state[3])
        if gradients is not None and self._optimizer is not None:
            self._optimizer.apply_gradients(gradients)
        return logs

    def _test(self, batch: Nest) -> Logs:
        lists, share = self._lists, self._share(batch)
        trainable, layers, metrics = map(values_of, (lists.trainable, lists.layers, lists.metrics))
        start = start_of_layers(lists.layers, layers, share), start_of_metrics(lists.metrics, metrics, share)
        with entered(share):
            logs, state = self._model.test_step((trainable, *start), batch)
        _send(lists.layers, start[0], state[1])
        _send(lists.metrics, start[1], state[2])
        return logs

    def _share(self, batch: Nest) -> Share:
        context = Context.current().replica
        assert context is not None
        rows = rows_of(batch)
        return Share(context, rows, rows, worker=self._worker, metrics=self._lists.metric_ids)


def _send(variables: Sequence[Any], before: State, after: Sequence[Any]) -> None:
    """Sends what a step changes: the differences, which add up with those of other workers, where values are sums."""
    for variable, old, new in zip(variables, before, after, strict=True):
        # Nothing was written: nothing travels.
        if new is not None and new is not old:
            variable.send(old, new)
