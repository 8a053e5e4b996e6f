"""Bytes of variables and slots on each device, for any number of replicas: asked of what places them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, Sharding

from jaxtribute import Variable
from jaxtribute._src.addons.tables.rows import Places
from jaxtribute._src.addons.tools.sizes import bytes_on_each
from jaxtribute.extending import MirroredPolicy, OnReadPolicy, PlainPolicy, Policy, ReplicaMesh, ShardedPolicy, Slots

Shape = tuple[int, ...]
_SEVERAL = 2
"""Replicas that a strategy is asked for: it keeps variables alike on all numbers from two on."""


class Imagined(ReplicaMesh):
    """A mesh of replicas that are not there, to ask policies how arrays would lie.

    Args:
      size: the number of replicas.
      group: the axes within each of them.
    """

    def __init__(self, size: int, group: Mapping[str, int]) -> None:
        self.size, self.group, self.group_size = size, dict(group), math.prod(group.values())
        self.devices, self.peers, self.described = (), None, True

    @property
    def in_tiles(self) -> bool:
        """False: nobody knows what the devices are."""
        return False

    def laid_out(self, layout: Any) -> Sharding:
        """The placement of an array on such devices."""
        mesh = AbstractMesh((self.size, *self.group.values()), ("replica", *self.group))
        return NamedSharding(mesh, PartitionSpec(*layout))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of policy, as JSON can hold it.

    Attributes:
      name: a name of `_KINDS`; "table" for rows that lie over the replicas, "" for a policy that is not known.
      number: of slices the bytes from which variables are cut, of tables the number of stripes.
    """

    name: str
    number: int = 0

    @classmethod
    def of(cls, policy: Policy) -> Kind:
        """The kind of a policy."""
        if policy.by_rows:
            return cls("table", policy.stripes)
        name = next((name for name, made in _KINDS.items() if type(policy) is made), "")
        return cls(name, policy.min_bytes if isinstance(policy, ShardedPolicy) else 0)

    def on(self, mesh: ReplicaMesh) -> Policy:
        """The policy of a new variable on these replicas."""
        if self.name == "sharded":
            return ShardedPolicy(mesh, min_bytes=self.number)
        return _KINDS[self.name](mesh)


_KINDS: dict[str, Any] = {
    "plain": PlainPolicy,
    "mirrored": MirroredPolicy,
    "rows": OnReadPolicy,
    "sharded": ShardedPolicy,
}


@dataclass(frozen=True, slots=True)
class Held:
    """Arrays of a step's state that are alike.

    Attributes:
      shape: that of their values.
      dtype: their dtype.
      seen: bytes of each on a device of the step that was looked at.
      alone: how their strategy keeps new variables on a single replica.
      several: likewise on several.
      layout: how they, or the variables that they lie beside, lie on the devices of a replica.
      group: the axes of those, with their lengths.
      role: "variable", "slot" or "sum" (of gradients).
      owner: shape and dtype of the variable that a slot or a sum lies beside.
      shard_update: the setting of a slot's optimizer.
      times: how many there are.
    """

    shape: Shape
    dtype: str
    seen: int
    alone: Kind
    several: Kind
    layout: tuple[Any, ...] = ()
    group: tuple[tuple[str, int], ...] = ()
    role: str = "variable"
    owner: tuple[Shape, str] | None = None
    shard_update: bool | str | None = None
    times: int = 1

    @classmethod
    def of(cls, variable: Variable) -> Held:
        """Facts of a variable."""
        policy = variable.policy
        owner, setting = variable.follows or (variable, None)
        mesh = policy.mesh
        group = {} if mesh is None else mesh.group
        extended = variable.distribute_strategy.extended

        def kind(replicas: int) -> Kind:
            if policy.by_rows:
                return Kind.of(policy)
            if Kind.of(policy).name == "" or policy.parameter_device is not None or policy.remote:
                return Kind("")
            there = extended.on(Imagined(replicas, group))
            made = Kind.of(there.variable_policy(owner.synchronization)[0])
            # A strategy of one replica is planned on more as `MirroredStrategy` is.
            return Kind("mirrored") if made.name == "plain" and replicas > 1 else made

        stored = variable.stored
        return cls(
            shape=variable.shape,
            dtype=str(variable.dtype),
            seen=bytes_on_each(stored.shape, variable.dtype, stored.sharding),
            alone=kind(1),
            several=kind(_SEVERAL),
            layout=owner.policy.layout,
            group=tuple(group.items()),
            role="variable" if variable.follows is None else "sum" if setting is None else "slot",
            owner=None if variable.follows is None else (owner.shape, str(owner.dtype)),
            shard_update=setting,
        )

    def on(self, replicas: int) -> int:
        """Bytes of one on each device of so many replicas."""
        kind = self.alone if replicas == 1 else self.several
        if kind.name == "":
            return self.seen
        if kind.name == "table":
            # A table of one replica has no stripes.
            stripes = kind.number if replicas > 1 else 1
            rows = Places(self.shape[0], replicas, stripes).part
            return bytes_on_each((rows, *self.shape[1:]), self.dtype, None)
        policy = self._policy(kind.on(Imagined(replicas, dict(self.group))))
        return bytes_on_each(policy.stored_shape(self.shape), self.dtype, policy.where)

    def _policy(self, plain: Policy) -> Policy:
        """The policy of it, where new variables have the policy `plain`."""
        dtype = np.dtype(self.dtype)
        if self.owner is None:
            return (plain.laid_out(self.layout) if self.layout else plain).fitted(self.shape, dtype)
        shape, owner_dtype = self.owner
        owner = (plain.laid_out(self.layout) if self.layout else plain).fitted(shape, np.dtype(owner_dtype))
        if self.role == "sum":
            return owner.accumulated()
        cut = owner.cut or Slots.shared_out(owner, shape, owner_dtype, self.shard_update)
        return Slots.policy(plain, self.shape, dtype, owner, cut)

    @classmethod
    def loaded(cls, data: dict[str, Any]) -> Held:
        """Makes one of what `asdict` gave, out of JSON."""
        made: dict[str, Any] = {**data, "shape": tuple(data["shape"])}
        made |= {"alone": Kind(**data["alone"]), "several": Kind(**data["several"])}
        made["layout"] = tuple([tuple(axis) if isinstance(axis, list) else axis for axis in data["layout"]])
        made["group"] = tuple([(name, size) for name, size in data["group"]])
        made["owner"] = None if data["owner"] is None else (tuple(data["owner"][0]), data["owner"][1])
        return cls(**made)


def holdings(variables: Iterable[Variable]) -> tuple[Held, ...]:
    """Lists what is held of these variables, those that are alike together."""
    counts = Counter(map(Held.of, variables))
    return tuple([replace(one, times=times) for one, times in counts.items()])


@cache
def held_on(state: tuple[Held, ...], replicas: int) -> int:
    """Bytes of a state on each device of so many replicas."""
    return sum(one.times * one.on(replicas) for one in state)
