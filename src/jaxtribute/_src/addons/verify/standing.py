"""Virtual replicas in the place of a strategy's own: they are one device, as often as there are replicas."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute import Optimizer, Strategy, Variable
from jaxtribute._src.addons.verify.holding import is_rows
from jaxtribute._src.addons.verify.stage import Stage
from jaxtribute._src.addons.verify.tables import whole_tables
from jaxtribute.extending import InReplica, MirroredPolicy, OnReadPolicy, ReplicaMesh


class VirtualMesh(ReplicaMesh):
    """The replicas that stand for those of a strategy; equal to its mesh, so that values of both meet.

    Args:
      real: the strategy's mesh.
      count: number of replicas.
    """

    def __init__(self, real: ReplicaMesh, count: int) -> None:
        self._real, device = real, real.devices[0]
        devices = (device,) * count
        super().__init__(devices)
        where = SingleDeviceSharding(device)
        vars(self).update(
            _bounded=False,
            local_ids=tuple(range(count)),
            local_devices=devices,
            local_places=devices,
            mesh=Mesh(np.array([device], dtype=object), (AXIS,)),
            replicated=where,
            split=where,
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (not isinstance(other, VirtualMesh) and self._real == other)

    def __hash__(self) -> int:
        return hash(self._real)


@contextmanager
def standing_in(strategy: Any, variables: Iterable[Variable], stage: Stage) -> Generator[None]:
    """Gives a strategy and its variables the virtual replicas of `stage`, until the block ends.

    The strategy's own mesh stays as it is: threads that put batches on its devices have that.
    """
    extended = strategy.extended
    real = extended.mesh
    mesh = VirtualMesh(real, stage.found.arrangement.replicas)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(extended, "_mesh", mesh))
        stack.enter_context(whole_tables(variables))
        for variable in variables:
            if variable.policy.mesh == real:
                policy = OnReadPolicy(mesh) if is_rows(variable) else MirroredPolicy(mesh)
                stack.enter_context(mock.patch.object(variable, "_policy", policy))
        stack.enter_context(mock.patch.object(extended, "call_for_each_replica", stage.run))
        # Islands reduce in a way of their own.
        for name in ("run", "reduce", "gather"):
            if getattr(type(strategy), name) is not getattr(Strategy, name):
                stack.enter_context(mock.patch.object(strategy, name, partial(getattr(Strategy, name), strategy)))
        # Slices of slots are a way to store them: every virtual replica updates whole ones.
        stack.enter_context(mock.patch.object(Optimizer, "_in_slices", return_value=False))
        # One device reduces as several do, so that their operations pair up.
        stack.enter_context(mock.patch.object(InReplica, "reducible", lambda _self, _strategy, grads, op: (grads, op)))
        yield
