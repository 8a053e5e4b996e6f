"""`WorkerHome`: what pickled functions refer to by numbers, on one worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import optax

from jaxtribute import Optimizer
from jaxtribute._src.addons.parameter_servers.scheduling import pickling
from jaxtribute._src.addons.parameter_servers.variables.optimizer import RemoteOptimizer
from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable, VariableDescription
from jaxtribute.extending import Function
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.parameter_servers.strategy import ParameterServerStrategy


class WorkerHome:
    """A worker's own view of the cluster's variables, functions and optimizers.

    Attributes:
      strategy: the worker's strategy, once it runs.
      resources: objects that functions made once on this worker.
    """

    strategy: ParameterServerStrategy

    def __init__(self) -> None:
        self._variables: dict[int, ServerVariable] = {}
        self._functions: dict[tuple[int, int], Function[..., Any]] = {}
        self._optimizers: dict[int, Optimizer] = {}
        self.resources: dict[int, Any] = {}

    def variable(self, description: VariableDescription) -> ServerVariable:
        """The variable of that description."""
        found = self._variables.get(description.key)
        if found is None:
            found = self._variables[description.key] = ServerVariable.described(description, self.strategy)
        return found

    def function(
        self,
        key: tuple[int, int],
        kind: type[pickling.F],
        python_function: Callable[..., Any],
        signature: Nest,
        donated: Sequence[int],
    ) -> pickling.F:
        """The compiled function of that number."""
        if key not in self._functions:
            self._functions[key] = kind(python_function, signature, donated)
        found = self._functions[key]
        assert isinstance(found, kind)
        return found

    def optimizer(self, remote: RemoteOptimizer, transform: optax.GradientTransformation, variables: Nest) -> Optimizer:
        """The optimizer of that number."""
        if remote.key not in self._optimizers:
            self.strategy.parameter_servers.known_optimizer = remote
            self._optimizers[remote.key] = Optimizer(transform, variables)
        return self._optimizers[remote.key]

    def resource(self, key: int, blob: bytes) -> Any:
        """Object that a function makes once on each worker."""
        if key not in self.resources:
            self.resources[key] = pickling.loads(blob)()
        return self.resources[key]
