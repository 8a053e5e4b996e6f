"""`Policy`: interface of all ways in which a variable is stored over the replicas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import PartitionSpec, Sharding

from jaxtribute._src.core import settings
from jaxtribute._src.core.types import Device, Numeric
from jaxtribute._src.core.values.described import DescribedArray
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute._src.core.values.enums import VariableAggregation
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.numbers import check_numbers
from jaxtribute._src.core.values.operators import operand
from jaxtribute.errors import ArgumentTypeError, ShapeError, VariableError

if TYPE_CHECKING:
    from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
    from jaxtribute._src.core.values.slices import Cut
    from jaxtribute._src.core.values.variable import Variable


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


class Writes(Enum):
    """Treatment of what several replicas write."""

    TOGETHER = "combined as the variable's aggregation says, then written once"
    IN_TURN = "written to the one copy by one replica after the other"
    OWN = "each replica writes a part of its own"


class Policy(ABC):
    """Storage of a variable over the replicas: functions of arrays, which know nothing of the code that asks.

    What a read or a write means where some code runs is said by `execution.standpoints`, in terms of these.
    """

    label: str = "Variable"
    """Name of the kind of variable in `repr`."""
    writes: Writes = Writes.TOGETHER
    """Treatment of what several replicas write."""
    mirrored: bool = False
    """True if the variable is a `Mirrored` value: each replica has, or gets, an equal copy."""
    split: bool = False
    """True if the global array holds one slice of axis 0 for each replica."""
    remote: bool = False
    """True if the value is in another process, which is sent operations on it; see `Variable.replaced_in`."""
    program: Any = None
    """Runner of compiled functions over such variables, where `execution.program.Program` cannot be it."""
    parameter_device: Device | None = None
    """The one device that stores the value and computes its updates, where replicas run on others."""
    by_rows: bool = False
    """True if gradients are `IndexedSlices` and an update changes some rows alone; see `row_updates`."""
    stripes: int = 1
    """Number of runs in which the stored array has rows that follow each other in the value: see `checkpoint/forms`."""
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
        """The policy for a variable that is split over axes within a replica, if it can be: see `Variable`."""
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
        # Only the compiler will see it: the devices are not there, and neither is their memory.
        shape = self.stored_shape(tuple(value.shape))
        if shape == value.shape:
            return DescribedArray.of(value, value.dtype, self.where)
        return DescribedArray(shape, value.dtype, self.where)

    def made(self, variable: Variable) -> None:  # noqa: B027 (most policies keep no account)
        """Called with each new variable that is stored so, for policies that keep account of them."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the array that stores a value of shape `shape`."""
        return shape

    @abstractmethod
    def place(self, value: Numeric) -> jax.Array:
        """Returns the global array that stores `value`, of the variable's shape, in memory of its own."""

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """The shape of the part that one replica holds."""
        return variable.shape

    # What code sees of the stored array, and what becomes of its writes. Who asks is known to the executor alone.

    def value(self, array: Numeric) -> Any:
        """The value that the stored `array` holds, for an update in a program: the inverse of `pieces`."""
        return array

    def pieces(self, value: Numeric) -> Any:
        """The stored array of a value of the variable's shape, in a program."""
        return value

    def combined(self, array: Numeric, variable: Variable) -> Any:
        """The one value that code of all replicas sees of the stored `array`.

        Raises:
          VariableError: the variable has no such value.
        """
        return self.value(array)

    def read_by_python(self, array: Numeric, variable: Variable) -> Any:
        """The value of `combined` for code that runs as Python, which will compute with it beside other arrays."""
        return self.combined(array, variable)

    def component(self, part: Numeric, variable: Variable) -> Any:
        """The value that a replica sees, from its part of the stored array or from what `join` gave."""
        return part

    @property
    def join(self) -> Callable[..., Any] | None:
        """The function of a replica's part, in a program, that gives the value of all parts; see `Cut.whole`.

        None if a replica needs nothing of the others to read.
        """
        return None

    def own_piece(self, value: Numeric, variable: Variable) -> Any:
        """One replica's part, in a program, of a value that is the same on all of them."""
        return value

    def written_by_all(self, value: Numeric, update: Update, variable: Variable, shape: tuple[int, ...]) -> Any:
        """The value to which a write by code of all replicas amounts.

        Args:
          value: what the user gave.
          update: the write.
          variable: the variable.
          shape: that of the stored array, as far as the code has it.
        """
        return self.admit(coerce(variable, value))

    def written_by_one(self, value: Numeric, variable: Variable) -> Any:
        """A replica's new part of the stored array, where each writes its own."""
        return coerce(variable, value)

    def gradient(self, gradient: Numeric, variable: Variable) -> Any:
        """The gradient for the value that code of all replicas sees, from that for the stored array."""
        return gradient

    @property
    def by_component(self) -> bool:
        """True if the variable is a value of one component for each replica: see `components`."""
        return False

    def components(self, array: Numeric, variable: Variable) -> tuple[Any, bool]:
        """The components, one after another along axis 0, in the stored array; and whether each is a scalar."""
        return array, not variable.shape

    def row_updates(self, optimizer: Any, update: Any, parameters: Any, slots: Any, options: Any) -> Any:
        """The updates of an optimizer whose gradients of such a variable are rows, if `by_rows` holds.

        Args:
          optimizer: the optimizer.
          update: its update, as a function of flat lists.
          parameters: the nest of its variables.
          slots: its state.
          options: what it was asked for besides, by name; None for what it was not.

        Returns:
          An object with the methods `updated`, for a program, and `apply_eagerly`; both are given gradients as
          `IndexedSlices`, and read and write those rows alone.
        """
        raise NotImplementedError

    def accumulated(self) -> Policy:
        """The policy of sums of gradients of such a variable, which no device should hold more of than it must."""
        return self

    def contributed(self, array: Numeric) -> Any:
        """The share of one replica of a program in the sum over all replicas of `array`, for its part of the sum."""
        return array

    def admit(self, value: Numeric) -> Any:
        """`value`, which may lie on the replicas' devices, where an update of the stored array can use it."""
        return value

    def spread(self, array: jax.Array) -> jax.Array:
        """The value that the stored `array` holds, on the replicas' devices."""
        return array

    def collected(self, array: jax.Array) -> jax.Array:
        """The stored array for the value that replicas have written on their devices: the inverse of `spread`."""
        return self.admit(array)


def check_arithmetic(variable: Variable, write: str) -> None:
    """Checks that a variable's values can be added up and counted: booleans would become numbers, or stay true.

    Raises:
      VariableError: the variable holds booleans.
    """
    if variable.dtype == np.bool_:
        raise VariableError(
            f"{variable.name}.{write}: the variable has dtype bool, and booleans have no sum or difference of their "
            "dtype. HINT: create it with dtype='int32' to count, or use assign and, in strategy.run, "
            "aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA."
        )


def check_aggregation(variable: Variable, value: Numeric, update: Update, replicas: int) -> None:
    """Checks that the variable says how to combine the values that several replicas write.

    Raises:
      VariableError: aggregation NONE, or SUM of booleans, or of a Python number where replicas have no own values.
    """
    if variable.aggregation is VariableAggregation.NONE:
        raise VariableError(
            f"{variable.name}.{update.value} was called by each of {replicas} replicas, and the variable does "
            "not say how to combine what they write. HINT: create it with aggregation=jd.VariableAggregation.SUM, "
            "MEAN or ONLY_FIRST_REPLICA, or write it outside strategy.run."
        )
    if variable.aggregation is not VariableAggregation.SUM:
        return
    check_arithmetic(variable, f"{update.value} with aggregation SUM")
    if isinstance(value, (bool, int, float, complex)) and variable.synchronization.name != "ON_READ":
        raise VariableError(
            f"{variable.name}.{update.value}({value!r}): a Python number is the same on every replica, and may be "
            "meant once or once per replica. HINT: pass an array, or create the variable with "
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
            "HINT: reduce it first, e.g. strategy.reduce('MEAN', value, axis=None); in a replica function use one that "
            "was passed to strategy.run, where it is the replica's own."
        )
    if not isinstance(value, jax.Array) and hasattr(value, "__jax_array__"):
        value = value.__jax_array__()  # of another library's variable, which may hold a tracer
    if not isinstance(value, jax.Array):
        value = _host_array(variable, value)
    elif value.dtype != variable.dtype:
        check_numbers(value.dtype, f"the value for {variable.name}")
        # The array of a Python number has a weak type, which gives way to the variable's.
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
    # Within its kind a number may lose digits, as 0.1 does in float32; from float to integer it would lose its meaning.
    if array.dtype == object or not (
        np.can_cast(array.dtype, variable.dtype, "same_kind") or (scalar and np.can_cast(array.dtype, variable.dtype))
    ):
        raise ArgumentTypeError(
            f"cannot assign {value!r} of type {type(value).__name__} to {variable.name} of dtype {variable.dtype}. "
            "HINT: assign a number or an array of that dtype."
        )
    settings.check_range(array, variable.dtype, f"what is assigned to {variable.name}")
    return array.astype(variable.dtype)
