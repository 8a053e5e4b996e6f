"""Interface of all storage policies of a variable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec, Sharding

from jaxtribute._src.types import Numeric
from jaxtribute._src.values.described import DescribedArray
from jaxtribute._src.values.distributed import PerReplica
from jaxtribute._src.values.enums import ReduceOp, VariableAggregation
from jaxtribute._src.values.mesh import AXIS
from jaxtribute._src.values.numbers import check_range, row_ids
from jaxtribute._src.values.operators import operand
from jaxtribute.errors import ArgumentTypeError, ShapeError, VariableError

if TYPE_CHECKING:
    from jaxtribute._src.context import Context
    from jaxtribute._src.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.values.slices import Cut
    from jaxtribute._src.values.variable import Variable


class Update(Enum):
    """Treatment of the old value in a write."""

    ASSIGN = "assign"
    ADD = "assign_add"
    SUB = "assign_sub"

    def apply(self, old: Numeric, value: Numeric) -> Any:
        """Returns the new value."""
        if self is Update.ASSIGN:
            return value
        return old + value if self is Update.ADD else old - value


class Policy(ABC):
    """Places of a variable's copies, and the meaning of a read or a write in each context."""

    label: str = "Variable"
    """Name of the kind of variable in `repr`."""
    split: bool = False
    """True if the global array holds one slice of axis 0 for each replica."""
    remote: bool = False
    """True if the value is in another process, which is sent operations on it; see `changed`."""
    program: Any = None
    """Runner of compiled functions over such variables, where `execution.program.Program` cannot be it."""
    parameter_device: jax.Device | None = None
    """The one device that stores the value and computes its updates, where replicas run on others."""
    regathers: bool = False
    """True if the backward pass puts the value together again from its slices rather than keep it."""

    layout: Layout = ()
    """The axes within a replica that the value is split over."""

    @property
    def cut(self) -> Cut | None:
        """The way in which the value is cut into one piece a replica, if it is."""
        return None

    @property
    def form(self) -> str:
        """Form of the stored array in checkpoints: the `value`, the `flat` value with padding, `rows` of values."""
        return "value"

    @property
    def where(self) -> Sharding | None:
        """The placement of the stored array; None for a variable that no strategy placed."""
        mesh = self.mesh
        return None if mesh is None else mesh.laid_out((AXIS, *self.layout) if self.split else self.layout)

    @property
    def spec(self) -> PartitionSpec:
        """The axis of the stored array that lies over the replicas, if any."""
        return PartitionSpec(AXIS) if self.split else PartitionSpec()

    def laid_out(self, layout: Layout) -> Policy:
        """The policy for a variable that is split over axes within a replica, where it can be: see `Variable`."""
        del layout
        return self

    @property
    def shared(self) -> bool:
        """True if all replicas see one value, however it is stored."""
        return not self.split

    def fitted(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Policy:
        """The policy for a variable of this shape and dtype."""
        return self

    @property
    @abstractmethod
    def mesh(self) -> ReplicaMesh | None:
        """The replicas' devices; None for a variable that no strategy placed."""

    def stored(self, value: Numeric) -> jax.Array:
        """Returns what `place` does; on devices that are only described, the array's shape and placement alone."""
        mesh = self.mesh
        if mesh is None or not mesh.described or self.where is None:
            return self.place(value)
        return DescribedArray(self.stored_shape(tuple(value.shape)), value.dtype, self.where)

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the array that stores a value of shape `shape`."""
        return shape

    @abstractmethod
    def place(self, value: Numeric) -> jax.Array:
        """Returns the global array that stores `value`, of the variable's shape, in memory of its own."""

    @abstractmethod
    def read(self, variable: Variable, context: Context) -> Any:
        """Returns the variable's value, of the variable's shape, as `context` sees it."""

    @abstractmethod
    def write(self, variable: Variable, value: Numeric, update: Update, context: Context) -> None:
        """Applies a write made in `context`; `value` is what the user gave."""

    def store(self, variable: Variable, value: Numeric, context: Context) -> None:
        """Replaces the whole value by one of the variable's shape, already checked, the same on all replicas."""
        context.executor.set(variable, value)

    def changed(self, executor: Any, variable: Variable, value: Numeric) -> None:
        """Takes the new value that a program being traced gives a `remote` variable."""
        raise NotImplementedError

    def lookup(self, variable: Any, ids: Numeric, context: Context) -> Any:
        """The rows `ids` of the value, of shape `(*ids.shape, *variable.shape[1:])`."""
        ids = row_ids(ids, variable.shape[0], variable.name)
        return jnp.take(self.read(variable, context), ids, axis=0)

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """The shape of the piece that one replica holds."""
        return variable.shape

    def gradient(self, variable: Variable, gradient: Numeric, context: Context) -> Any:
        """The gradient for the value that `read` gives, from that for the stored array."""
        return gradient

    def whole(self, variable: Variable, context: Context) -> Any:
        """The value where it is stored, of the variable's shape, for an update."""
        return context.executor.get(variable)

    def admit(self, value: Numeric) -> Any:
        """`value`, which may lie on the replicas' devices, where an update of the stored array can use it."""
        return value

    def value(self, array: Numeric) -> Any:
        """The value that the stored `array` holds, as part of a program."""
        return array

    def spread(self, array: jax.Array) -> jax.Array:
        """The value that the stored `array` holds, on the replicas' devices."""
        return array

    def collected(self, array: jax.Array) -> jax.Array:
        """The stored array for the value that replicas have written on their devices: the inverse of `spread`."""
        return self.admit(array)

    def derivable(self, variable: Variable, context: Context) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        """Value to differentiate by, to get the gradient that `gradient` then takes.

        Returns:
          A value; and a function of it that gives what the differentiated function sees: the variable's array, and
          what `Executor.derive` makes of it, if anything.
        """
        return context.executor.get(variable), lambda value: (value, None)

    def distributed(self, variable: Variable, context: Context) -> Any:
        """The variable as a value with one component a replica, if it has several."""
        return context.executor.get(variable)


def combined(variable: Variable, value: Numeric, update: Update, context: Context, replicas: int) -> Any:
    """Returns the value that a write amounts to: as it is, or combined with what the other replicas write.

    Raises:
      VariableError: several replicas write, and the aggregation is NONE, or SUM of a Python number.
    """
    if context.replica is None or replicas == 1:
        return coerce(variable, value)
    check_aggregation(variable, value, update, replicas)
    value = coerce(variable, value)
    if variable.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return context.executor.select(value, 0)
    return context.replica.all_reduce(ReduceOp.from_variable_aggregation(variable.aggregation), value)


def check_aggregation(variable: Variable, value: Numeric, update: Update, replicas: int) -> None:
    """Checks that the variable says how to combine the values that several replicas write.

    Raises:
      VariableError: aggregation NONE, or SUM of a Python number.
    """
    if variable.aggregation is VariableAggregation.NONE:
        raise VariableError(
            f"{variable.name}.{update.value} was called by each of {replicas} replicas, and the variable does "
            "not say how to combine what they write. HINT: create it with aggregation=jd.VariableAggregation.SUM, "
            "MEAN or ONLY_FIRST_REPLICA, or write it outside strategy.run."
        )
    if variable.aggregation is VariableAggregation.SUM and isinstance(value, (bool, int, float, complex)):
        raise VariableError(
            f"{variable.name}.{update.value}({value!r}): the same Python number from every replica cannot be summed "
            "without doubt about what is meant. HINT: pass an array, or create the variable with "
            "aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA."
        )


def coerce(variable: Variable, value: Numeric) -> Any:
    """Checks that `value` fits the variable and gives it the variable's dtype.

    Python numbers, NumPy arrays and weakly typed arrays are cast within their kind; other arrays must have
    the variable's dtype. Shapes must be equal.

    Raises:
      ShapeError: if the shapes differ.
      ArgumentTypeError: if the value is no array or has a dtype that would lose information silently.
    """
    value = operand(value)
    if isinstance(value, PerReplica):
        raise VariableError(
            f"{variable.name} has one value, but a PerReplica with {value.mesh.size} was assigned to it. "
            "HINT: reduce it first, e.g. strategy.reduce('MEAN', value, axis=None)."
        )
    if not isinstance(value, jax.Array):
        value = _host_array(variable, value)
    elif value.dtype != variable.dtype:
        if not value.weak_type:
            raise ArgumentTypeError(
                f"{variable.name} has dtype {variable.dtype}, the assigned array {value.dtype}. "
                f"HINT: assign value.astype('{variable.dtype}')."
            )
        value = value.astype(variable.dtype)
    if value.shape != variable.shape:
        raise ShapeError(
            f"{variable.name} has shape {variable.shape}, the assigned value {value.shape}. "
            "HINT: a variable keeps its shape; reshape or broadcast the value first."
        )
    return value


def _host_array(variable: Variable, value: Numeric) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    scalar = isinstance(value, (bool, int, float, complex))
    if array.dtype == object or not (
        np.can_cast(array.dtype, variable.dtype, "same_kind") or (scalar and np.can_cast(array.dtype, variable.dtype))
    ):
        raise ArgumentTypeError(
            f"cannot assign {value!r} of type {type(value).__name__} to {variable.name} of dtype {variable.dtype}. "
            "HINT: assign a number or an array of that dtype."
        )
    check_range(array, variable.dtype, f"what is assigned to {variable.name}")
    return array.astype(variable.dtype)
