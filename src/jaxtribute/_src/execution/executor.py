"""`Executor`: how code runs where it is, which is asked of nothing else.

    Eager, EagerStep      code that runs as Python: at once, or as one undivided step     eager.py
    LockstepReplica       one replica that runs as Python, and meets the others           lockstep.py
    TracedFunction        a `jd.function` that is being traced                            traced.py
    TracedReplica         one replica of such a function                                  traced.py
    MergedReplicas        a `merge_call` of such replicas                                 traced.py
    Overlay               any of these, while `jd.grad` differentiates by variables       overlay.py

A context (`context.py`) is a strategy and an executor. What a replica asks of the others (`ReplicaContext`), what a
strategy does with values (`Strategy.reduce`), where variables are read and written: all of it is a call of the executor
in force. The defaults here are those of code that has no other replicas beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import jax

from jaxtribute._src import context as contexts
from jaxtribute._src.collectives import in_replica
from jaxtribute._src.collectives.cross_replica import gather_value, reduce_leaves, reduce_value
from jaxtribute._src.execution import standpoints
from jaxtribute._src.execution.standpoints import AcrossReplicas, Derivable
from jaxtribute._src.jaxprs.core import Tracer
from jaxtribute._src.values.distributed import PerReplica
from jaxtribute._src.values.enums import ReduceOp
from jaxtribute._src.values.mesh import put
from jaxtribute.errors import ArgumentError, ContextError

if TYPE_CHECKING:
    from jaxtribute._src.collectives.summation import Summation
    from jaxtribute._src.strategies.base import Strategy
    from jaxtribute._src.types import Array, Function, Leaf, Nest
    from jaxtribute._src.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.values.policies.base import Update
    from jaxtribute._src.values.variable import Variable

R = TypeVar("R")
ApplyGradients = Callable[["list[Array]", "ReduceOp | None"], None]
"""Updates variables by gradients, which are reduced as said."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["data"],
    meta_fields=["mesh", "scalar", "shapes", "idle", "uneven"],
)
@dataclass(slots=True, repr=False, eq=False)
class LocalPerReplica(PerReplica):
    """A per-replica value seen from inside a compiled `merge_call`: `data` is this replica's component."""

    uneven: bool = False
    """True if the replicas' shapes may differ."""

    @property
    def values(self) -> tuple[Array, ...]:
        """All replicas' components, gathered."""
        return tuple(in_replica.rows(self.data))


class Executor(ABC):
    """Answers how code runs: the values that it sees, what becomes of its writes, and how replicas meet."""

    local: bool = False
    """True if variables' arrays are those of one replica."""
    traced: bool = False
    """True if the code is being traced into a compiled program."""
    differentiating: bool = False
    """True if the code is being differentiated by variables."""
    standpoint: AcrossReplicas = standpoints.ACROSS_REPLICAS
    """The meaning of the code's reads and writes, in terms of `get`, `set` and how replicas meet."""

    # Functions that replicas run.

    def replica_function(self, fn: Function) -> Function:
        """Returns what is called in place of a replica function."""
        return fn

    def enter(self, mesh: ReplicaMesh) -> None:  # noqa: B027 (most have nothing to do)
        """Notes the devices that `strategy.run` uses, as a program has one set of them."""

    # Variables, as users know them. `in_replica` is True in replica context.

    def read(self, variable: Variable, *, in_replica: bool) -> Array:
        """Returns the variable's value, of the variable's shape."""
        return self.standpoint.read(self, variable, in_replica)

    def write(self, variable: Variable, value: Leaf, update: Update, *, in_replica: bool) -> None:
        """Applies a write of what the user gave."""
        self.standpoint.write(self, variable, value, update, in_replica)

    def whole(self, variable: Variable) -> Array:
        """Returns the value where it is stored, for an update."""
        return self.standpoint.whole(self, variable)

    def store(self, variable: Variable, value: Array) -> None:
        """Replaces the value by one of the form of `whole`, already checked, the same on all replicas."""
        self.standpoint.store(self, variable, value)

    def derivable(self, variable: Variable, *, in_replica: bool) -> Derivable:
        """Returns a value to differentiate by, to get the gradient that `gradient` then takes."""
        return self.standpoint.derivable(self, variable, in_replica)

    def gradient(self, gradient: Array, variable: Variable) -> Array:
        """Returns the gradient for the value that `read` gives."""
        return self.standpoint.gradient(gradient, variable)

    def distributed(self, variable: Variable) -> Leaf:
        """Returns the variable as a `Mirrored` or `PerReplica` value, or as an array where there is one copy."""
        return self.standpoint.distributed(self, variable)

    # Variables, as they are stored.

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
    def create(self, make: Callable[[], Variable]) -> Variable:
        """Makes a variable from within the code."""

    # One replica and the others.

    @property
    def idle(self) -> tuple[int, ...]:
        """The replicas that got no data."""
        return ()

    def all_reduce(self, values: list[Array], op: ReduceOp, summation: Summation | None = None) -> list[Array]:
        """Returns each array reduced over the replicas, added up by `summation`."""
        _check_alone()
        return values

    def all_gather(self, values: list[Array], axis: int) -> list[Array]:
        """Returns each array concatenated over the replicas along `axis`."""
        _check_alone()
        return values

    def select(self, value: Array, replica: int) -> Array:
        """Returns the array of one replica."""
        _check_alone()
        return value

    def merge(self, fn: Function, args: Nest, kwargs: Nest) -> Nest:
        """Returns the result of `fn(strategy, *args, **kwargs)`, run once for all replicas."""
        _check_alone()
        strategy = contexts.current().strategy
        with contexts.entered(contexts.Context(strategy, None, self)):
            return fn(strategy, *args, **kwargs)

    def apply(self, update: ApplyGradients, grads: list[Array], op: ReduceOp | None) -> None:
        """Calls `update(grads, op)` where an optimizer's update is computed: once, for all replicas.

        Args:
          update: the update.
          grads: gradients as the code that calls has them.
          op: how they are reduced; None if they are.
        """
        if contexts.current().replica is not None:
            _check_alone()
        update(grads, op)

    def reducible(
        self, strategy: Strategy, grads: list[Array], op: ReduceOp | None
    ) -> tuple[list[Array], ReduceOp | None]:
        """Reduces gradients over the replicas, if the code has those of all.

        Args:
          strategy: the strategy of the replicas.
          grads: the gradients; those that are not `PerReplica` are taken as reduced.
          op: how the others are reduced.

        Returns:
          The gradients; and how they are still to be reduced, where the code is one replica's.

        Raises:
          ArgumentError: `PerReplica` gradients without a way to reduce them.
        """
        own = [grad for grad in grads if isinstance(grad, PerReplica)]
        if not own:
            return grads, None
        if op is None:
            raise ArgumentError(
                f"reduce_op=None with a gradient that differs between {strategy.num_replicas_in_sync} replicas. "
                "HINT: pass reduce_op='SUM' or 'MEAN', or reduce the gradients before."
            )
        totals = iter(strategy.reduce(op, own, axis=None))
        return [next(totals) if isinstance(grad, PerReplica) else grad for grad in grads], None

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
        totals = [_known_total(value, op) for value in values]
        rest = [value for value, total in zip(values, totals, strict=True) if total is None]
        others = iter(reduce_leaves(rest, op, mesh, strategy.extended.summation(None)))
        return [next(others) if total is None else total for total in totals]

    def gather(self, value: Leaf, axis: int) -> Array:
        """Returns a value of the replicas concatenated over them along `axis`; see `Strategy.gather`."""
        return gather_value(value, axis)

    def as_replica(self) -> Executor | None:
        """Returns the executor of one replica, for code of all of them that each replica runs; else None."""
        return None

    def rows_of_all(self, rows: Array) -> Array:
        """Returns the rows of all replicas, of an array that holds one row for each replica that the code sees."""
        return rows

    def component(self, value: Array, mesh: ReplicaMesh, *, scalar: bool) -> PerReplica:
        """Returns an array that holds what the code sees of a value, split over the replicas, as that value."""
        if self.local:
            return LocalPerReplica(value.reshape(()) if scalar else value, mesh, scalar)
        return PerReplica(value, mesh, scalar=scalar)


def _known_total(value: Leaf, op: ReduceOp) -> Array | None:
    """The reduced value, where the sum over the replicas is known already: a loss that went along with gradients."""
    if not isinstance(value, PerReplica) or value.total is None:
        return None
    return value.total if op is ReduceOp.SUM else in_replica.divided(value.total, value.mesh.size)


def _check_alone() -> None:
    """Checks that the replica whose code runs has no others.

    Raises:
      ContextError: it has: `with ReplicaContext(strategy, 1)`.
    """
    strategy = contexts.current().strategy
    if strategy.num_replicas_in_sync > 1:
        raise ContextError(
            f"a replica of {strategy!r} was entered alone, and no other replica runs that could take part. "
            "HINT: reduce, gather and merge in the function passed to strategy.run."
        )
