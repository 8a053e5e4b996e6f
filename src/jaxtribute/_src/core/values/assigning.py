"""Mixin of `Variable`: writes to all of it, and names of TensorFlow for what needs no name here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.policies.base import Update, check_arithmetic

if TYPE_CHECKING:
    import jax

    from jaxtribute._src.core.values.variable import Variable


class AssignMethods:
    """Mixin of `Variable`: assignments, with TensorFlow's arguments. Of them only `value` has a meaning here."""

    def assign(
        self, value: Numeric, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Self:
        """Replaces the value; in replica context what the replicas give is aggregated first. Returns the variable.

        Args:
          value: the new value, of the variable's shape.
          use_locking: accepted for compatibility.
          name: accepted for compatibility.
          read_value: accepted for compatibility.

        Raises:
          ShapeError: the shape differs from the variable's.
          ArgumentTypeError: the dtype does not fit.
          VariableError: replicas write a variable without aggregation, or the call stands inside `jax.jit`,
            `jax.grad`, `lax.scan` or the like, from where a value cannot get out.

        Source: `tf.Variable.assign`.
        """
        return self._update(value, Update.ASSIGN)

    def assign_add(
        self, delta: Numeric, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Self:
        """Adds `delta` to the value; otherwise as `assign`. Source: `tf.Variable.assign_add`."""
        check_arithmetic(cast("Variable", self), "assign_add")
        return self._update(delta, Update.ADD)

    def assign_sub(
        self, delta: Numeric, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Self:
        """Subtracts `delta` from the value; otherwise as `assign`. Source: `tf.Variable.assign_sub`."""
        check_arithmetic(cast("Variable", self), "assign_sub")
        return self._update(delta, Update.SUB)

    def value(self) -> jax.Array:
        """Reads like `Variable.read_value`. Source: `tf.Variable.value`."""
        return cast("Variable", self).read_value()

    def initialized_value(self) -> jax.Array:
        """Reads like `Variable.read_value`: a variable is initialised when it is made. Source: `tf.Variable`."""
        return cast("Variable", self).read_value()

    def get_shape(self) -> tuple[int, ...]:
        """Returns the shape of the value on one replica. Source: `tf.Variable.get_shape`."""
        return cast("Variable", self).shape

    @property
    def initializer(self) -> None:
        """Nothing to run: a variable is initialised when it is made. Source: `tf.Variable.initializer`."""

    @property
    def constraint(self) -> None:
        """No function is applied after updates: assign what you have projected. Source: `tf.Variable.constraint`."""

    @property
    def handle(self) -> Self:
        """The variable itself. Source: the `handle` of TensorFlow's variables."""
        return self

    def _update(self, value: Numeric, update: Update) -> Self:
        raise NotImplementedError
