"""`LocalElasticStrategy`: what `ElasticStrategy` is with `sync_every`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jaxtribute import (
    InputOptions,
    OneDeviceStrategy,
    Optimizer,
    Strategy,
    StrategyExtended,
    VariableSynchronization,
)
from jaxtribute._src.addons.elastic.arguments import LocalSettings
from jaxtribute._src.addons.elastic.common import Common
from jaxtribute._src.addons.elastic.local import LocalMesh, LocalProgram
from jaxtribute._src.addons.elastic.shares import LocalDataset
from jaxtribute._src.addons.elastic.strategy import ElasticStrategy, refuse_on_read
from jaxtribute._src.addons.elastic.variables import IslandPolicy, IslandVariable, MirroredIslandPolicy
from jaxtribute.extending import Context, EagerStep, Function, Overlay, Policy
from jaxtribute.typing import Device, Foreign, Nest


class LocalExtended(StrategyExtended):
    """The plug of `LocalElasticStrategy`: the inner strategy's, which counts steps.

    Args:
      mesh: the island's devices, and the other islands.
      inner: the inner strategy.
    """

    variable_kind = IslandVariable

    def __init__(self, mesh: LocalMesh, inner: Strategy | None) -> None:
        super().__init__(mesh)
        self._local = mesh
        # What sums between the devices of the island is the inner strategy's.
        chosen = {} if inner is None else vars(inner.extended)
        vars(self).update({name: chosen[name] for name in ("_cross_device_ops", "_hints") if name in chosen})

    def variable_policy(self, synchronization: VariableSynchronization) -> tuple[Policy, VariableSynchronization]:
        """A copy on each device of the island.

        Raises:
          ArgumentError: ON_READ or NONE.
        """
        refuse_on_read(synchronization)
        kind = IslandPolicy if self._local.size == 1 else MirroredIslandPolicy
        policy = kind(self._local, self._local.register)
        policy.program = LocalProgram
        return policy, VariableSynchronization.ON_WRITE

    def remote_optimizer(self, transform: Any, variables: Nest) -> None:
        """Takes note of what an optimizer of the island updates."""
        self._local.common.note(variables)

    def call_for_each_replica(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Nest = None) -> Any:
        """Calls `fn` on each replica of the island; outside of programs that is a step, if it updates parameters."""
        executor = Context.current().executor

        def run() -> Any:
            return super(LocalExtended, self).call_for_each_replica(fn, args, kwargs)

        if executor.traced or isinstance(fn, Function) or isinstance(executor, (EagerStep, Overlay)):
            return run()
        before = [(variable, variable.stored) for variable in self._local.common.parameters]
        return self._local.call(run, (args, kwargs), lambda: any(v.stored is not array for v, array in before))


class LocalElasticStrategy(ElasticStrategy):
    """Islands that train alone for some steps and meet then: what `ElasticStrategy` makes with `sync_every`."""

    def _plug(self, inner: Strategy | None, devices: list[Device], local: LocalSettings | None) -> StrategyExtended:
        assert local is not None
        self._local = self._mesh = mesh = LocalMesh(devices, self._islands, local.every, local.overlap, local.fragments)
        mesh.common = Common(mesh.register, local.outer, local.wire, local.feedback, local.fragments)
        mesh.introduce()
        return LocalExtended(mesh, inner)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas of this island."""
        return self._local.size

    @property
    def outer_optimizer(self) -> Optimizer:
        """The outer optimizer; see `ElasticStrategy.outer_optimizer`."""
        return self._local.common.optimizer

    def synchronize(self) -> None:
        """Meets the other islands now; see `ElasticStrategy.synchronize`."""
        self._local.meet()

    # Values are the island's own: its replicas are those of the inner strategy.
    reduce = Strategy.reduce
    gather = Strategy.gather

    def experimental_distribute_dataset(self, dataset: Foreign, options: InputOptions | None = None) -> LocalDataset:  # type: ignore[override]
        """Lets every island read all batches, each batched by the global batch size, and take its replicas' rows.

        All islands must read the same batches in the same order: seed what shuffles. What an island that has died
        would have taken of a batch is left out until the islands meet.
        """
        on_host = {"experimental_fetch_to_device": False, "experimental_prefetch_to_device": False}
        reader = OneDeviceStrategy(self._local.devices[0])
        whole = reader.experimental_distribute_dataset(dataset, replace(options or InputOptions(), **on_host))
        return LocalDataset(whole, self._local)
