"""The enumerations that say how a variable is kept in sync and how values are combined."""

from __future__ import annotations

from enum import Enum
from typing import Literal, TypeAlias

from jaxtribute._src.core.values.reductions import REDUCTIONS, Reduction
from jaxtribute.errors import ArgumentError


class VariableSynchronization(Enum):
    """Time at which the copies of a variable are brought together.

    `AUTO` lets the strategy choose (ON_WRITE under strategies that mirror). `ON_WRITE` keeps the copies equal
    by aggregating each write. `ON_READ` keeps one local value a replica and aggregates when it is read in
    cross-replica context. `NONE` asks for a single unsynchronized copy.

    Examples:
      >>> with jd.MirroredStrategy(2).scope():
      ...     seen = jd.Variable(0, synchronization=jd.VariableSynchronization.ON_READ, aggregation="SUM")
      >>> results = jd.MirroredStrategy(2).run(lambda: seen.assign_add(1))
      >>> int(seen.read_value())  # each replica counts for itself; a reader gets the sum
      2

    Source: `tf.VariableSynchronization`.
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(Enum):
    """Combination of the replicas' values when a variable is written or read across replicas.

    Examples:
      >>> strategy = jd.MirroredStrategy(2)
      >>> with strategy.scope():
      ...     mean = jd.Variable(0.0, aggregation=jd.VariableAggregation.MEAN)
      >>> ids = lambda: jd.get_replica_context().replica_id_in_sync_group
      >>> results = strategy.run(lambda: mean.assign(ids().astype("float32")))
      >>> float(mean)
      0.5

    Source: `tf.VariableAggregation`.
    """

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class ReduceOp(Enum):
    """Combination of values over replicas: `SUM` or `MEAN`.

    Examples:
      >>> strategy = jd.MirroredStrategy(2)
      >>> strategy.reduce(jd.ReduceOp.MEAN, strategy.run(lambda: jnp.float32(3)), axis=None)
      Array(3., dtype=float32)

    Source: `tf.distribute.ReduceOp`.
    """

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def from_variable_aggregation(aggregation: VariableAggregation) -> ReduceOp:
        """Returns the reduction that an aggregation stands for.

        Raises:
          ArgumentError: if `aggregation` is NONE or ONLY_FIRST_REPLICA, which reduce nothing.
        """
        if aggregation.name not in REDUCTIONS:
            raise ArgumentError(f"{aggregation} is no reduction. HINT: use VariableAggregation.SUM or MEAN.")
        return ReduceOp[aggregation.name]

    @staticmethod
    def parse(value: ReduceOpLike) -> ReduceOp:
        """Returns the `ReduceOp` that `value`, an enum member or its name in any case, means.

        Raises:
          ArgumentError: if there is no such reduction.
        """
        op = ReduceOp.__members__.get(value.upper()) if isinstance(value, str) else value
        if isinstance(op, ReduceOp) and op.name in REDUCTIONS:
            return op
        raise ArgumentError(
            f'unknown reduce_op {value!r}. HINT: use jd.ReduceOp.SUM, jd.ReduceOp.MEAN, "SUM" or "MEAN".'
        )


ReduceOpLike: TypeAlias = ReduceOp | Literal["SUM", "MEAN", "sum", "mean"]
"""A reduction, or its name in any case."""
SynchronizationLike: TypeAlias = (
    VariableSynchronization
    | Literal["AUTO", "NONE", "ON_WRITE", "ON_READ"]
    | Literal["auto", "none", "on_write", "on_read"]
)
"""A member, or its name in any case."""
AggregationLike: TypeAlias = (
    VariableAggregation
    | Literal["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"]
    | Literal["none", "sum", "mean", "only_first_replica"]
    | None
)
"""A member, or its name in any case; None is NONE."""


def reduction_of(op: ReduceOp) -> Reduction:
    """Returns what an operation does with values.

    Raises:
      ArgumentError: the operation has no reduction.
    """
    return REDUCTIONS[ReduceOp.parse(op).name]
