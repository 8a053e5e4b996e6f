"""All-reduce, all-gather and broadcast by size, against the bare collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute import ReplicaContext, Strategy, Variable, VariableAggregation, function, get_replica_context
from jaxtribute._src.addons.bench.rates import alternate
from jaxtribute.extending import ReplicaMesh
from jaxtribute.typing import Leaf

KINDS = ("all-reduce", "all-gather", "broadcast")
_AT_ONCE = 1 << 26


@dataclass(frozen=True, slots=True)
class CollectiveRate:
    """One collective of one size.

    Attributes:
      kind: one of `KINDS`.
      nbytes: bytes of its result on each device.
      replicas: how many take part.
      seconds: through the library.
      bare: the collective in a `jax.jit` of its own.
    """

    kind: str
    nbytes: int
    replicas: int
    seconds: float
    bare: float

    @property
    def rate(self) -> float:
        """Bytes a second that each device must send at least: independent of their number where links are equal."""
        share = (self.replicas - 1) / self.replicas
        factor = {"all-reduce": 2 * share, "all-gather": share, "broadcast": 1.0}[self.kind]
        return factor * self.nbytes / self.seconds


def measure(strategy: Strategy, sizes: Sequence[int], rounds: int) -> list[CollectiveRate]:
    """Measures every kind at every size, in bytes; nothing if there is one replica."""
    mesh = strategy.extended.mesh
    if mesh.size == 1:
        return []
    return [_measure(strategy, kind, nbytes, rounds) for kind in KINDS for nbytes in sizes]


def _measure(strategy: Strategy, kind: str, nbytes: int, rounds: int) -> CollectiveRate:
    mesh = strategy.extended.mesh
    # At least one number for each replica.
    whole = max(nbytes // 4, mesh.size)
    each = whole // mesh.size if kind == "all-gather" else whole
    value = strategy.experimental_distribute_values_from_function(lambda _: jnp.ones(each, jnp.float32))
    replica, local = _by_library(strategy, kind, each), _by_hand(kind)

    @function
    def through_library(value: Leaf) -> Any:
        return strategy.run(replica, (value,))

    # The same arrays on the same devices: only the library lies between the two.
    bare = jax.jit(_manual(local, mesh))
    calls: dict[str, Callable[[], Any]] = {"library": lambda: through_library(value), "bare": lambda: bare(value.data)}
    # Results of many calls in flight would fill the memory of small devices.
    count = min(max(_AT_ONCE // max(nbytes * mesh.size, 1), 2), 32)
    found = alternate(calls, count=count, rounds=rounds)
    size = (each * mesh.size if kind == "all-gather" else each) * 4
    return CollectiveRate(kind, size, mesh.size, found["library"], found["bare"])


def _manual(local: Callable[[Any], Any], mesh: ReplicaMesh) -> Callable[..., Any]:
    return mesh.map_replicas(local, jax.P(AXIS), jax.P())


def _by_library(strategy: Strategy, kind: str, size: int) -> Callable[[Any], Any]:
    """A replica function that makes the collective as a user would write it."""
    if kind == "broadcast":
        # An assignment of which the first replica's value holds is a broadcast.
        with strategy.scope():
            variable = Variable(jnp.zeros(size), aggregation=VariableAggregation.ONLY_FIRST_REPLICA, name="broadcast")
        return lambda value: variable.assign(value).read_value()

    def replica(value: Leaf) -> Any:
        context = get_replica_context()
        assert isinstance(context, ReplicaContext)
        return context.all_reduce("SUM", value) if kind == "all-reduce" else context.all_gather(value, axis=0)

    return replica


def _by_hand(kind: str) -> Callable[[Any], Any]:
    if kind == "all-reduce":
        return lambda value: lax.psum(value, AXIS)
    if kind == "all-gather":
        return lambda value: lax.all_gather(value, AXIS, tiled=True)
    # All but the first give zeros, so the sum is the first one's value.
    return lambda value: lax.psum(jnp.where(lax.axis_index(AXIS) == 0, value, jnp.zeros_like(value)), AXIS)
