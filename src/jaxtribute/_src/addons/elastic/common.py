"""`Common`: what islands that train alone have in common: how it changes when they meet, and how it is sent there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtribute import OneDeviceStrategy, Optimizer, Variable, VariableAggregation
from jaxtribute._src.addons.elastic.variables import Register, Registered
from jaxtribute._src.addons.wires.formats import BLOCK, FORMATS, Format
from jaxtribute.errors import VariableError
from jaxtribute.extending import Context, Eager, updating
from jaxtribute.typing import HostArray, Nest

_SILENT = -1
"""In place of the number of examples, from an island that has only been told what the others did."""
Parts = Sequence[Sequence[HostArray]]
"""The arrays of all islands, in the order of their ranks."""


class Kind(Enum):
    """Treatment of a variable when islands meet."""

    PARAMETER = "the outer optimizer updates it by the islands' mean change"
    MEAN = "it becomes the mean over the examples"
    SUM = "the islands' changes add up"
    FIRST = "it becomes the first island's"


_KINDS = {
    VariableAggregation.MEAN: Kind.MEAN,
    VariableAggregation.SUM: Kind.SUM,
    VariableAggregation.ONLY_FIRST_REPLICA: Kind.FIRST,
}


class Common:
    """The variables that islands have in common.

    Args:
      register: the island's variables.
      transform: the outer Optax transformation.
      wire: the type in which changes of parameters travel; None for their own.
    """

    def __init__(self, register: Register, transform: optax.GradientTransformation, wire: str | None) -> None:
        self._register, self._transform = register, transform
        self._wire = None if wire in (None, "float32") else Wire(FORMATS[wire])
        # On the host, where sums arrive.
        self._host = OneDeviceStrategy("CPU:0")
        self._nests: list[Any] = []
        self._inner: set[int] = set()
        """The numbers of the variables that inner optimizers update."""
        self._optimizer: Optimizer | None = None
        self._used = False
        self._parameters: dict[int, Variable] = {}
        """The parameters as of the last meeting, on the host, by the numbers of the variables."""
        self._counted: dict[int, HostArray] = {}
        """Values that the islands add to, as of the last meeting."""
        self._meeting: list[tuple[int, Variable, Kind]] = []
        """The variables of the message that was made last."""

    def note(self, nest: Nest) -> None:
        """Takes note of the variables that an inner optimizer updates, in their nest."""
        variables = jax.tree.leaves(nest, is_leaf=_is_variable)
        numbers = [self._register.number(variable) for variable in variables]
        new = [v for v, number in zip(variables, numbers, strict=True) if number not in self._inner]
        if new:
            self._nests.append(nest if len(new) == len(variables) else new)
            self._inner.update(numbers)

    def kind_of(self, variable: Variable) -> Kind | None:
        """Treatment of a variable when islands meet; None for one that stays the island's own."""
        if not isinstance(variable.policy, Registered) or variable.derived:
            return None
        if self._register.number(variable) in self._inner:
            return Kind.PARAMETER
        if variable.aggregation is VariableAggregation.NONE:
            learns = variable.trainable and jnp.issubdtype(variable.dtype, np.floating)
            return Kind.PARAMETER if learns else None
        return _KINDS.get(variable.aggregation)

    def is_parameter(self, variable: Variable) -> bool:
        """True if the outer optimizer updates a variable."""
        return self.kind_of(variable) is Kind.PARAMETER

    @property
    def parameters(self) -> list[Variable]:
        """The variables that the outer optimizer updates."""
        return [variable for variable in self._register.alive().values() if self.is_parameter(variable)]

    @property
    def optimizer(self) -> Optimizer:
        """The outer optimizer, of copies of the parameters on the host.

        Raises:
          VariableError: there are other parameters than when it was made.
        """
        current = {self._register.number(variable): variable for variable in self.parameters}
        # Those that are gone keep their slots, and change no more.
        more = not current.keys() <= self._parameters.keys()
        if self._optimizer is None or (more and not self._used):
            self._parameters.clear()
            if not current:
                raise VariableError("there is no parameter yet. HINT: make the model and its jd.Optimizer before.")
            rest = [variable for number, variable in current.items() if number not in self._inner]
            nests = [*self._nests, rest] if rest else self._nests
            with self._at_home():
                copies = jax.tree.map(self._copied, nests[0] if len(nests) == 1 else nests, is_leaf=_is_variable)
                self._optimizer = Optimizer(self._transform, copies)
        elif more:
            names = [v.name for number, v in current.items() if number not in self._parameters]
            raise VariableError(
                f"parameters {names} were made after the islands had met, and the outer optimizer has no slots for "
                "them. HINT: make all of them before."
            )
        return self._optimizer

    def _copied(self, variable: Variable) -> Variable:
        copy = Variable(_wide(_read(variable)), name=variable.name.removesuffix(":0"))
        self._parameters[self._register.number(variable)] = copy
        return copy

    def _at_home(self) -> Any:
        return Context(self._host, None, Eager()).entered()

    def begin(self) -> None:
        """Takes the variables as they are for what all islands have."""
        if self.parameters:
            _ = self.optimizer
        self._counted.clear()
        for variable in self._register.alive().values():
            self.renew(variable)

    def renew(self, variable: Variable) -> None:
        """Takes a variable as it is for what all islands have."""
        number = self._register.number(variable)
        kind = self.kind_of(variable)
        if kind is Kind.SUM:
            self._counted[number] = _read(variable)
        elif number in self._parameters:
            with self._at_home():
                self._parameters[number].assign(_wide(_read(variable)))

    # A meeting.

    def message(self, examples: int, living: HostArray, *, silent: bool) -> list[HostArray]:
        """Makes the message that this island sends.

        Args:
          examples: the number of examples since the last meeting.
          living: for each number of a variable whether all islands still have it: Python's collector may have taken
            what no program can reach from some of them.
          silent: True if it has taken no step since, and only listens.
        """
        arrays: list[HostArray] = [np.int64(_SILENT if silent else examples)[None]]
        alive = [(number, v) for number, v in self._register.alive().items() if living[number]]
        self._meeting = [(number, v, kind) for number, v in alive if (kind := self.kind_of(v))]
        for number, variable, kind in self._meeting:
            if kind in (Kind.PARAMETER, Kind.SUM) and number not in self._parameters and number not in self._counted:
                raise VariableError(
                    f"{variable.name} was made after the islands had last met, and has no value that all of them began "
                    "with. HINT: make variables before the first step, or after strategy.synchronize()."
                )
            now = _read(variable)
            if kind is Kind.PARAMETER:
                change = np.asarray(self._parameters[number].stored) - _wide(now)
                now = self._wire.sent(change) if self._wire is not None and self._wire.takes(change) else change
            elif kind is Kind.SUM:
                now = np.zeros_like(now) if silent else now - self._counted[number]
            arrays.append(now)
        return arrays

    def combined(self, parts: Parts) -> list[HostArray]:
        """Combines the islands' messages, to the same bits on each: new values, and mean changes of parameters."""
        told = [int(part[0][0]) for part in parts]
        weights = [max(examples, 0) for examples in told]
        results: list[HostArray] = [np.int64(sum(weights))[None]]
        # Without any example to learn from, such as in an evaluation, those who have been there count alike.
        of_means = weights if any(weights) else [int(examples != _SILENT) for examples in told]
        for place, (number, _, kind) in enumerate(self._meeting, 1):
            each = [part[place] for part in parts]
            if kind is Kind.PARAMETER:
                like = self._parameters[number].stored
                if self._wire is not None and self._wire.takes(like):
                    each = [self._wire.received(array, like.shape) for array in each]
            if kind is Kind.FIRST:
                results.append(each[0])
            elif kind is Kind.SUM:
                results.append(_added(each))
            else:
                results.append(_mean(each, weights if kind is Kind.PARAMETER else of_means))
        return results

    def take(self, results: Sequence[HostArray]) -> None:
        """Gives the variables the values that all islands have from now on."""
        (examples,), *arrays = results
        if examples:
            self._update(arrays)
        with updating:
            for (number, variable, kind), array in zip(self._meeting, arrays, strict=True):
                if kind is Kind.PARAMETER:
                    array = np.asarray(self._parameters[number].stored)
                elif kind is Kind.SUM:
                    array = self._counted[number] + array
                variable.bind(variable.policy.place(np.array(array, variable.dtype).reshape(variable.shape)))

    def _update(self, arrays: Sequence[HostArray]) -> None:
        changes = zip(self._meeting, arrays, strict=True)
        of_copies = {id(self._parameters[n]): change for (n, _, kind), change in changes if kind is Kind.PARAMETER}
        optimizer, self._used = self.optimizer, True
        with self._at_home():

            def change_of(copy: Variable) -> jax.Array:
                change = of_copies.get(id(copy))
                return jnp.zeros_like(copy.stored) if change is None else jnp.asarray(change)

            grads = jax.tree.map(change_of, optimizer.nest, is_leaf=_is_variable)
            optimizer.apply_gradients(grads, reduce_op=None)

    # For an island that joins.

    @property
    def _outer(self) -> list[Variable]:
        slots = () if self._optimizer is None else self._optimizer.variables
        return [*self._parameters.values(), *slots]

    def state(self) -> list[HostArray]:
        """Returns all that islands have in common besides the values of variables."""
        outer = self._outer
        head = np.asarray([self._used, self._optimizer is not None, *self._counted], np.int64)
        return [head, *(np.asarray(variable.stored) for variable in outer), *self._counted.values()]

    def restore(self, state: Sequence[HostArray]) -> None:
        """The inverse of `state`, on an island that has the same variables."""
        (used, begun, *numbers), *arrays = state
        if begun:
            self.begin()
        outer, self._used = self._outer, bool(used)
        with self._at_home():
            for variable, array in zip(outer, arrays, strict=False):
                variable.assign(array)
        self._counted = dict(zip(map(int, numbers), arrays[len(outer) :], strict=True))


class Wire:
    """A type in which changes travel between islands; large float32 arrays alone are rounded.

    Args:
      wire: how elements travel.
    """

    def __init__(self, wire: Format) -> None:
        self._block = wire.block
        self._encode, self._decode = jax.jit(wire.encode), jax.jit(wire.decode)

    @staticmethod
    def takes(array: Any) -> bool:
        """True for an array that is rounded."""
        return array.dtype == np.float32 and array.size >= BLOCK

    def sent(self, array: HostArray) -> HostArray:
        """Rounds an array, to bytes that travel."""
        flat = np.pad(array.reshape(-1), (0, -array.size % self._block))
        return self._on_host(self._encode, flat)

    def received(self, array: HostArray, shape: tuple[int, ...]) -> HostArray:
        """The array that another island has sent."""
        size = int(np.prod(shape))
        return self._on_host(self._decode, np.ascontiguousarray(array))[:size].reshape(shape)

    @staticmethod
    def _on_host(call: Callable[[Any], Any], array: HostArray) -> HostArray:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return np.asarray(call(array))


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, Variable)


def _read(variable: Variable) -> HostArray:
    """A variable's value, once it is computed; not kept by anybody else."""
    return np.array(variable.stored)


def _wide(array: HostArray) -> HostArray:
    """An array in which updates can be added up: float32 in place of narrower floats."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32), copy=False)


def _added(arrays: Sequence[HostArray]) -> HostArray:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = total + array
    return total


def _mean(arrays: Sequence[HostArray], weights: Sequence[int]) -> HostArray:
    """The mean by numbers of examples, in at least float32. An island without any may have NaN: it does not count."""
    counting = [array for array, weight in zip(arrays, weights, strict=True) if weight]
    if not counting:
        return np.zeros_like(_wide(arrays[0]))
    if all(np.array_equal(array, counting[0]) for array in counting):
        return counting[0]  # integers of more digits than float32 has, too
    having = [(_wide(array), weight) for array, weight in zip(arrays, weights, strict=True) if weight]
    total = _added([array * array.dtype.type(weight) for array, weight in having])
    return total / total.dtype.type(sum(weights))
