"""The default strategy, in force outside every scope: one replica on JAX's default device."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax

from jaxtribute._src.core.context import Context, fallback
from jaxtribute._src.core.execution.replica_context import ReplicaContext
from jaxtribute._src.core.strategies.base import Strategy
from jaxtribute._src.core.strategies.extended import EAGER, StrategyExtended
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ContextError


class DefaultExtended(StrategyExtended):
    """One replica; nothing is bound to a device, as in plain JAX."""

    def __init__(self) -> None:
        # Not by the base class, which would be given the mesh: it would start JAX while the library is imported.
        self._strategy = None

    @property
    def mesh(self) -> ReplicaMesh:
        return self._default

    @cached_property
    def _default(self) -> ReplicaMesh:
        with jax.ensure_compile_time_eval():  # the first use may come while a function is traced
            return ReplicaMesh((jax.numpy.zeros(()).devices().pop(),))

    @property
    def home(self) -> ReplicaMesh | None:
        return None

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Not defined: the default strategy chooses no device.

        Raises:
          ContextError: always.
        """
        raise ContextError(
            f"{self.strategy!r} chooses no devices. HINT: make a strategy, e.g. jd.OneDeviceStrategy('/cpu:0')."
        )

    def check_variable(self, variable: Variable) -> None:
        """Nothing to check: outside every scope each variable is used as its own strategy says."""

    def _only_id(self) -> Any:
        return 0


class DefaultStrategy(Strategy):
    """The strategy outside every scope; `jd.get_strategy()` returns it there.

    Source: the default strategy of `tf.distribute.get_strategy`.
    """

    is_default = True

    def __init__(self) -> None:
        super().__init__(DefaultExtended())

    @property
    def num_replicas_in_sync(self) -> int:
        return 1


_DEFAULT = DefaultStrategy()
_CONTEXT = Context(_DEFAULT, ReplicaContext(_DEFAULT, 0), EAGER)


def install() -> None:
    """Makes the default strategy what holds outside every scope."""
    fallback.make, fallback.context = lambda: _CONTEXT, _CONTEXT
