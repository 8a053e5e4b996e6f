"""Functions of a coordinator: what stands here for variables and optimizers on parameter servers.

Reads fetch what the servers hold, once; nothing is sent to them, and no slot is read: slots are as they begin.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any
from unittest import mock

from jaxtribute import Optimizer, Variable, VariableAggregation
from jaxtribute._src.addons.parameter_servers.scheduling.per_worker import PerWorkerIterator, PerWorkerValues
from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable, ShardedVariable
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.sources import title
from jaxtribute._src.addons.verify.steps import Call, Step
from jaxtribute._src.addons.verify.updating import applied
from jaxtribute._src.addons.verify.verdict import Verdict
from jaxtribute.experimental import Event
from jaxtribute.extending import Function, MirroredPolicy, Nests
from jaxtribute.typing import Function as Callee

_KEPT = frozenset({"__init__", "stored", "layout", "device"})
_OF_WORKERS = (
    "it takes values that only a worker has, as fit of Keras on parameter servers does, where each worker is one "
    "replica. HINT: fit the model under jd.MirroredStrategy to verify its steps"
)


class OnServers(Step):
    """A step that the coordinator takes itself: it runs on copies."""

    asynchronous = True

    def _of_first(self, call: Call) -> Verdict | None:
        if self._in_fit:
            raise CannotVerify(_OF_WORKERS)
        with _on_copies(self._strategies[0]):
            return super()._of_first(call)


class Scheduled(OnServers):
    """A function that `ClusterCoordinator.schedule` is given.

    Args:
      event: the event that tells of it.
    """

    def __init__(self, event: Event) -> None:
        coordinator: Any = event.subject
        function, args, kwargs = event.arguments
        self.function: Any = function
        self._strategy: Any = coordinator.strategy
        self._nest = tuple(args), dict(kwargs)
        name = title(function, "the scheduled function")
        super().__init__(
            name, function.python_function if isinstance(function, Function) else function, [self._strategy]
        )

    def _of_first(self, call: Call) -> Verdict | None:
        # The arguments as a worker would have them, with a batch of each dataset.
        own = [leaf for leaf in Nests.flatten(self._nest)[0] if isinstance(leaf, PerWorkerValues)]
        iterators = [leaf for leaf in own if isinstance(leaf, PerWorkerIterator)]
        if len(iterators) < len(own):
            raise CannotVerify(_OF_WORKERS)
        drawn = {id(leaf): [next(leaf.made_here())] for leaf in iterators}
        call = replace(call, args=self._nest[0], kwargs=self._nest[1], drawn=drawn)
        self._variables = {}
        with _on_copies(self._strategy):
            verification = self.verified(call)
            trial = verification.trial()
            if not trial.ran and not trial.written:
                return None
            if not trial.ran:
                verification = self.verified(call, around=self._in_replica)
            return verification.verdict()

    def _in_replica(self, function: Callee) -> Callee:
        return lambda *args, **kwargs: self._strategy.run(function, args, kwargs)


@contextmanager
def _on_copies(strategy: Any) -> Generator[None]:
    """Lets variables of servers be plain ones, until the block ends."""
    policy, access = MirroredPolicy(strategy.extended.mesh), strategy.extended.server_policy.access
    with ExitStack() as stack:
        for kind in (ServerVariable, ShardedVariable):
            for name, own in list(vars(kind).items()):
                if isinstance(own, FunctionType | property) and hasattr(Variable, name) and name not in _KEPT:
                    stack.enter_context(mock.patch.object(kind, name, getattr(Variable, name)))
        stack.enter_context(mock.patch.object(ServerVariable, "policy", policy))
        fetched = property(lambda variable: access.read([variable.layout])[0])
        stack.enter_context(mock.patch.object(ServerVariable, "stored", fetched))
        # A worker is one replica, of which a variable need not say how several write it.
        stack.enter_context(mock.patch.object(ServerVariable, "aggregation", property(_aggregation)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # that the function runs on the coordinator
        stack.enter_context(mock.patch.object(Optimizer, "apply_gradients", applied(_is_remote)))
        stack.enter_context(strategy.scope())
        yield


def _is_remote(optimizer: Any) -> bool:
    return optimizer.remote is not None


def _aggregation(variable: Any) -> VariableAggregation:
    own = variable._aggregation
    return VariableAggregation.ONLY_FIRST_REPLICA if own is VariableAggregation.NONE else own
