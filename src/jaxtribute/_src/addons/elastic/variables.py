"""Variables of islands: a copy on each, all of which are known by number, so that a newcomer can be given theirs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.elastic.journal import packed, unpacked
from jaxtribute.errors import ClusterError, VariableError
from jaxtribute.extending import MirroredPolicy, PlainPolicy, Policy, ReplicaMesh, Update, updating
from jaxtribute.typing import HostArray

_NUMBER = "_island_number"


class Register:
    """All variables of this island, by the order in which the program has made them.

    A variable that a step has written which this island has not taken is *unknown*: its array is a deleted one, so that
    nothing can be computed from it.

    Attributes:
      read: called with the number of a variable that the program reads outside of steps, and the variable.
      replaces: called before a variable is assigned, whatever it was.
      written: called before code outside of replicas writes a variable.
    """

    def __init__(self) -> None:
        self._made: list[weakref.ref[Variable]] = []
        self.next_is_unknown = False
        self.read: Callable[[int, Variable], None] | None = None
        self.replaces: Callable[[Variable], None] | None = None
        self.written: Callable[[Variable, Update], None] | None = None

    def add(self, variable: Variable) -> None:
        """Gives a new variable its number."""
        vars(variable)[_NUMBER] = len(self._made)
        self._made.append(weakref.ref(variable))
        if self.next_is_unknown:
            self.next_is_unknown = False
            self.forget([variable])

    def number(self, variable: Variable) -> int:
        """The number of a variable."""
        return vars(variable)[_NUMBER]

    def forget(self, variables: Iterable[Variable] | None = None) -> None:
        """Takes note that variables, or all, have been written by steps that this island has not taken."""
        for variable in [ref() for ref in self._made] if variables is None else variables:
            if variable is not None and _NUMBER in vars(variable) and not variable.stored.is_deleted():
                unknown = jnp.empty_like(variable.stored)
                variable.bind(unknown)
                unknown.delete()

    def living(self) -> HostArray:
        """True for each number whose variable the program can still reach, as far as this island has noticed."""
        return np.asarray([ref() is not None for ref in self._made], np.uint8)

    def state(self) -> bytes:
        """The values of all variables."""
        plain: list[Any] = []
        arrays: list[HostArray] = []
        with updating:
            for number, variable in self.alive().items():
                plain.append([number, variable.name])
                arrays.append(np.asarray(variable.stored))
        return packed([len(self._made), plain], arrays)

    def take(self, state: bytes | bytearray) -> None:
        """Gives all variables the values that another island has.

        Raises:
          ClusterError: that island has other variables.
          ValueError: the checksum is another.
        """
        (count, plain), arrays, _ = unpacked(state)
        if count != len(self._made):
            raise ClusterError(
                f"the other islands' program has made {count} variables by now, and this one {len(self._made)}. HINT: "
                "all islands must run the same program; make variables outside of functions that strategy.run calls."
            )
        alive = self.alive()
        with updating:
            for (number, name), array in zip(plain, arrays, strict=True):
                variable = alive.get(number)
                if variable is None:
                    continue
                if (variable.name, variable.shape, variable.dtype) != (name, array.shape, array.dtype):
                    raise ClusterError(
                        f"variable {number} is {name} of {array.dtype.name}{list(array.shape)} on the other islands, "
                        f"and {variable.name} of {variable.dtype.name}{list(variable.shape)} here. HINT: all islands "
                        "must run the same program."
                    )
                variable.bind(variable.policy.place(array))

    def alive(self) -> dict[int, Variable]:
        """The variables that are there, by their numbers."""
        made = ((number, ref()) for number, ref in enumerate(self._made))
        return {number: variable for number, variable in made if variable is not None}


class Registered(Policy):
    """Part that the policies of islands' variables share: they tell the register of writes."""

    register: Register

    def laid_out(self, layout: Any) -> Policy:
        """This policy: a replica has one device."""
        return self

    def made(self, variable: Variable) -> None:
        self.register.add(variable)

    def written_by_all(self, value: Any, update: Update, variable: Variable, shape: tuple[int, ...]) -> Any:
        amount = super().written_by_all(value, update, variable, shape)
        if self.register.written is not None:
            self.register.written(variable, update)
        if update is Update.ASSIGN and self.register.replaces is not None:
            self.register.replaces(variable)
        return amount


class IslandPolicy(Registered, PlainPolicy):
    """One array on each island, all kept equal.

    Args:
      mesh: the island's.
      register: its variables.
    """

    def __init__(self, mesh: ReplicaMesh | None, register: Register) -> None:
        super().__init__(mesh)
        self.register = register


class MirroredIslandPolicy(Registered, MirroredPolicy):
    """A copy on each device of an island.

    Args:
      mesh: the island's.
      register: its variables.
    """

    def __init__(self, mesh: ReplicaMesh, register: Register) -> None:
        super().__init__(mesh)
        self.register = register


def check_known(variable: Variable) -> None:
    """Checks that an island that joins would be given a variable which a step writes.

    Raises:
      VariableError: it would not.
    """
    if not isinstance(variable.policy, Registered):
        raise VariableError(
            f"{variable.name} is written by a step, and was not made in the scope of the ElasticStrategy: an island "
            "that joins would have another value. HINT: make it in `with strategy.scope():`."
        )


class IslandVariable(Variable):
    """A variable of an `ElasticStrategy`: what the program reads of it outside of steps, newcomers are told."""

    def peek(self) -> jax.Array:
        policy = self.policy
        if isinstance(policy, Registered) and policy.register.read is not None:
            policy.register.read(policy.register.number(self), self)
        return super().peek()

    def lease(self) -> Any:
        self.peek()
        return super().lease()
