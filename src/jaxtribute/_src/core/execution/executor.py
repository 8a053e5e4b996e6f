"""`Executor`: how code runs where it is, which is asked of nothing else.

    Eager, EagerStep      code that runs as Python: at once, or as one undivided step     eager.py
    LockstepReplica       one replica that runs as Python, and meets the others           lockstep.py
    TracedFunction        a `jd.function` that is being traced                            traced.py
    TracedReplica         one replica of such a function                                  traced.py
    MergedReplicas        a `merge_call` of such replicas                                 merged.py
    Overlay               any of these, while `jd.grad` differentiates by variables       overlay.py

A context (`context.py`) is a strategy and an executor. What a replica asks of the others (`ReplicaContext`), what a
strategy does with values (`Strategy.reduce`), where variables are read and written: all of it is a call of the executor
in force. The defaults here are those of code that has no other replicas beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.callers import caller, warn
from jaxtribute._src.core.collectives import in_replica
from jaxtribute._src.core.collectives.cross_replica import gather_value, reduce_leaves, reduce_value
from jaxtribute._src.core.collectives.options import EXACT
from jaxtribute._src.core.execution import standpoints
from jaxtribute._src.core.execution.standpoints import AcrossReplicas, check_alone
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.values.distributed import META, PerReplica
from jaxtribute._src.core.values.enums import ReduceOp, reduction_of
from jaxtribute._src.core.values.placing import put

if TYPE_CHECKING:
    from jax.sharding import Sharding

    from jaxtribute._src.core.collectives.summation import Summation
    from jaxtribute._src.core.strategies.base import Strategy
    from jaxtribute._src.core.types import Array, Function, Leaf, Nest
    from jaxtribute._src.core.values.creating import Making
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.core.values.variable import Variable

R = TypeVar("R")


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=[*META, "uneven"])
@dataclass(slots=True, repr=False, eq=False)
class LocalPerReplica(PerReplica):
    """A per-replica value seen from inside a compiled `merge_call`: `data` is this replica's component."""

    uneven: bool = False
    """True if the replicas' shapes may differ."""

    @property
    def values(self) -> tuple[Array, ...]:
        return tuple(in_replica.rows(self.data))


class Executor(ABC):
    """Answers how code runs: the values that it sees, what becomes of its writes, and how replicas meet."""

    local: bool = False
    """True if variables' arrays are those of one replica."""
    traced: bool = False
    """True if the code is being traced into a compiled program."""
    eager_run: Any = None
    """The run on replicas, as Python, that the code is one replica of (`lockstep.LockstepRun`); None elsewhere."""
    differentiating: bool = False
    """True if the code is being differentiated by variables."""
    gathers: Any = None
    """The lengths of gathered arrays on all replicas (`gathers.Gathers`), if they may differ."""
    standpoint: AcrossReplicas = standpoints.ACROSS_REPLICAS
    """The meaning of the code's reads, writes and updates, in terms of `get`, `set` and how replicas meet."""

    def running(self, fn: Function, mesh: ReplicaMesh | None) -> Function:
        """Notes that replicas on the devices of `mesh` will run a function; returns what they run in its place."""
        return fn

    def placement(self, value: jax.Array) -> Sharding | None:
        """The placement on devices of an array that all replicas are given; None if it is not known."""
        return None if isinstance(value, Tracer) else value.sharding

    def compiling(self) -> AbstractContextManager[None]:
        """Within it a `jd.function` is compiled, also where that of the user runs as Python."""
        return nullcontext()

    # Variables.

    @property
    @abstractmethod
    def view(self) -> Hashable:
        """The view of variables that functions which JAX keeps traced have here; see `traced_reads`."""

    @abstractmethod
    def get(self, variable: Variable) -> Array:
        """Returns the variable's current array, as the code sees it."""

    @abstractmethod
    def set(self, variable: Variable, value: Array) -> None:
        """Rebinds the variable's array."""

    def together(self, operation: Callable[[Executor], R]) -> R:
        """Returns what `operation` does with an executor as one: no other thread writes what it has read meanwhile."""
        return operation(self)

    @abstractmethod
    def derive(self, variable: Variable, make: Callable[[Array], Array]) -> Array:
        """Returns `make` of the variable's array, computed once for each array."""

    @abstractmethod
    def create(self, make: Making) -> Variable:
        """Makes a variable from within the code."""

    # One replica and the others.

    @property
    def idle(self) -> tuple[int, ...]:
        """The replicas that got no data."""
        return ()

    def all_reduce(self, values: list[Array], op: ReduceOp, summation: Summation | None = None) -> list[Array]:
        """Returns each array reduced over the replicas, added up by `summation`."""
        check_alone()
        return in_replica.alone(values, op)

    def all_gather(self, values: list[Array], axis: int) -> list[Array]:
        """Returns each array concatenated over the replicas along `axis`."""
        check_alone()
        return list(map(jnp.asarray, values))

    def select(self, value: Array, replica: int) -> Array:
        """Returns the array of one replica."""
        check_alone()
        return value

    def merge(self, fn: Function, args: Nest, kwargs: Nest) -> Nest:
        """Returns the result of `fn(strategy, *args, **kwargs)`, run once for all replicas."""
        check_alone()
        strategy = contexts.current().strategy
        with contexts.entered(contexts.Context(strategy, None, self)):
            return fn(strategy, *args, **kwargs)

    def queue_loss(self, loss: Leaf) -> None:  # noqa: B027 (most have nothing to do)
        """Adds a replica's loss to its next sum of gradients over the replicas, where that costs nothing."""

    def reduce_gradients(
        self, grads: Sequence[Array], op: ReduceOp, replicas: int, summation: Summation
    ) -> list[Array]:
        """Returns a replica's gradients in a program reduced over the replicas."""
        return in_replica.all_reduce(grads, op, replicas, summation, self.idle)

    def constrain(self, value: Array, layout: Layout, mesh: ReplicaMesh) -> Array:
        """Returns an array split over the axes of `mesh` within a replica."""
        where = mesh.laid_out(layout)
        if isinstance(value, Tracer):
            return jax.lax.with_sharding_constraint(value, where)
        return put(value, where)

    # All replicas.

    def reduce(
        self, strategy: Strategy, values: Sequence[Leaf], op: ReduceOp, axis: int | tuple[int, ...] | None
    ) -> list[Array]:
        """Returns each value of the replicas reduced over them, and along `axis` within each; see `Strategy.reduce`."""
        mesh = strategy.extended.mesh
        if axis is not None:
            return [reduce_value(value, op, axis, mesh) for value in values]
        for told in {getattr(value, "wrong_mean", "") for value in values if op is ReduceOp.MEAN} - {""}:
            warn(f"{caller()} takes the mean of the replicas' means. {told}", RuntimeWarning)
        # A loss that went along with gradients is reduced already: only the rest costs a collective.
        totals = [_known_total(value, op) for value in values]
        rest = [value for value, total in zip(values, totals, strict=True) if total is None]
        others = iter(reduce_leaves(rest, op, mesh, strategy.extended.summation(EXACT)))
        return [next(others) if total is None else total for total in totals]

    def gather(self, value: Leaf, axis: int) -> Array:
        """Returns a value of the replicas concatenated over them along `axis`; see `Strategy.gather`."""
        return gather_value(value, axis)

    def component(self, value: Array, mesh: ReplicaMesh, *, scalar: bool) -> PerReplica:
        """Returns an array that holds what the code sees of a value, split over the replicas, as that value."""
        if self.local:
            return LocalPerReplica(value.reshape(()) if scalar else value, mesh, scalar)
        return PerReplica(value, mesh, scalar=scalar)


def _known_total(value: Leaf, op: ReduceOp) -> Array | None:
    """The reduced value, where the sum over the replicas is known already: a loss that went along with gradients."""
    if not isinstance(value, PerReplica) or value.total is None:
        return None
    return reduction_of(op).finish(value.total, value.mesh.size)
