"""`Common`: what islands that train alone have in common: how it changes when they meet, and how it is sent there."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtribute import OneDeviceStrategy, Optimizer, Variable, VariableAggregation
from jaxtribute._src.addons.elastic.fragments import in_turn, split
from jaxtribute._src.addons.elastic.packing import raw
from jaxtribute._src.addons.elastic.variables import Register, Registered
from jaxtribute._src.addons.elastic.wire import Wire
from jaxtribute._src.addons.wires.formats import FORMATS
from jaxtribute.errors import VariableError
from jaxtribute.extending import Context, Eager, Function, Kinds, updating
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


Role = Callable[[], tuple[bool, VariableAggregation]]
"""Tells whether a variable of another library learns, and how its values become one where it does not."""


@dataclass(frozen=True)
class Changes:
    """An island's changes of its parameters, as they travel.

    Attributes:
      examples: that it has learned from since it last sent the changes of each fragment; negative if it only listens.
      turn: True for the fragments whose changes these are.
      parameters: with their numbers.
      values: theirs, as they were when the changes were computed.
      arrays: one for each parameter, as it travels.
      lost: what rounding has lost of each, if that is kept.
      early: True if steps follow before the islands meet: what the parameters learn in these is the island's own.
    """

    examples: Sequence[int]
    turn: Sequence[bool]
    parameters: Sequence[tuple[int, Variable]]
    values: Sequence[HostArray]
    arrays: Sequence[HostArray]
    lost: Sequence[HostArray | None]
    early: bool

    @property
    def message(self) -> list[HostArray]:
        """The arrays to send."""
        return [np.asarray(self.examples, np.int64), *self.arrays]

    @property
    def mark(self) -> int:
        """A number that is the same on islands that send changes of the same parameters."""
        return zlib.crc32(np.asarray([number for number, _ in self.parameters], np.int64).tobytes())

    def of(self, living: HostArray) -> Changes:
        """The changes of those parameters that all islands still have."""
        keep = [place for place, (number, _) in enumerate(self.parameters) if living[number]]
        names = "parameters", "values", "arrays", "lost"
        return replace(self, **{name: [getattr(self, name)[place] for place in keep] for name in names})


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
      feedback: True if what rounding has lost of a change is added to the next.
      fragments: number of parts of the model, of which a meeting is about one.
    """

    def __init__(
        self,
        register: Register,
        transform: optax.GradientTransformation,
        wire: str | None,
        feedback: bool = False,
        fragments: int = 1,
    ) -> None:
        self._register, self._transform = register, transform
        self._feeds_back, self._count = feedback, fragments
        self._wire = Wire(None if wire in (None, "float32") else FORMATS[wire])
        # On the host, where sums arrive.
        self._host = OneDeviceStrategy("CPU:0")
        self._nests: list[Any] = []
        self._roles: dict[int, Role] = {}
        """The roles of variables of other libraries, by the numbers of the variables that hold them."""
        self._inner: set[int] = set()
        """The numbers of the variables that inner optimizers update."""
        self._optimizer: Optimizer | None = None
        self._apply: Function[..., None]
        self._trained = False
        """True once a step has been taken: what parameters were at first is common no more."""
        self._parameters: dict[int, Variable] = {}
        """The parameters as of the last meeting, on the host, by the numbers of the variables."""
        self._counted: dict[int, HostArray] = {}
        """Values that the islands add to, as of the last meeting."""
        self._given: dict[int, Any] = {}
        """The parameters' arrays after the last meeting, until `begun`."""
        self._apart: set[int] = set()
        """The parameters that did not have the common value after the last meeting."""
        self._fragments: dict[int, int] = {}
        """The fragment of each parameter."""
        self._turn = 0
        """The fragment whose changes are sent next."""
        self._lost: dict[int, HostArray] = {}
        """Parts of this island's changes that rounding has lost."""
        self._rest: list[tuple[int, Variable, Kind]] = []
        """The variables of the message of others than parameters that was made last."""

    def note(self, nest: Nest) -> None:
        """Takes note of the variables that an inner optimizer updates, in their nest."""
        variables = jax.tree.leaves(nest, is_leaf=_is_variable)
        numbers = [self._register.number(variable) for variable in variables]
        new = [v for v, number in zip(variables, numbers, strict=True) if number not in self._inner]
        if new:
            self._nests.append(nest if len(new) == len(variables) else new)
            self._inner.update(numbers)

    def told(self, variable: Variable, role: Role) -> None:
        """Takes note of what a variable is to another library, whose variable holds it."""
        self._roles[self._register.number(variable)] = role

    def kind_of(self, variable: Variable) -> Kind | None:
        """Treatment of a variable when islands meet; None for one that stays the island's own."""
        if not isinstance(variable.policy, Registered) or variable.derived:
            return None
        number = self._register.number(variable)
        if number in self._inner:
            return Kind.PARAMETER
        if number in self._roles:
            learns, aggregation = self._roles[number]()
            return Kind.PARAMETER if learns else _KINDS.get(aggregation)
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
        if self._optimizer is None or (more and not self._trained):
            self._parameters.clear()
            self._given.clear()
            self._apart.clear()
            if not current:
                raise VariableError("there is no parameter yet. HINT: make the model and its jd.Optimizer before.")
            rest = [variable for number, variable in current.items() if number not in self._inner]
            nests = [*self._nests, rest] if rest else self._nests
            with self._at_home():
                copies = jax.tree.map(self._copied, nests[0] if len(nests) == 1 else nests, is_leaf=_is_variable)
                leaves = jax.tree.leaves(copies, is_leaf=_is_variable)
                where = split([leaf.size for leaf in leaves], self._count)
                several = self._count > 1
                transform = in_turn(self._transform, where, self._count) if several else self._transform
                self._optimizer = optimizer = Optimizer(transform, copies)

            def outer_update(grads: Nest, more: dict[str, Any]) -> None:
                optimizer.apply_gradients(grads, reduce_op=None, **more)

            self._apply = Function(outer_update)
            numbers = {id(copy): number for number, copy in self._parameters.items()}
            self._fragments = {numbers[id(leaf)]: part for leaf, part in zip(leaves, where, strict=True)}
        elif more:
            names = [v.name for number, v in current.items() if number not in self._parameters]
            raise VariableError(
                f"parameters {names} were made after the first step, and the outer optimizer has no slots for them. "
                "HINT: make all of them before."
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

    def begun(self) -> None:
        """Takes note that a step has been taken since: nobody asks any more for what the parameters were before."""
        self._given.clear()
        self._trained = True

    def renew(self, variable: Variable) -> None:
        """Takes a variable as it is for what all islands have."""
        number = self._register.number(variable)
        kind = self.kind_of(variable)
        if kind is Kind.SUM:
            self._counted[number] = _read(variable)
        elif number in self._parameters:
            given = self._given.get(number)
            if variable.stored is given:
                return
            now = _read(variable)
            if given is not None and np.array_equal(raw(now), raw(np.array(given))):  # put back, as after an evaluation
                return
            if number in self._apart:
                raise VariableError(
                    f"{variable.name} was assigned after a meeting from which islands went on with values of their "
                    "own, as with overlap_steps or fragments. HINT: call strategy.synchronize() before, on all islands."
                )
            with self._at_home():
                self._parameters[number].assign(_wide(now))

    # A meeting.

    def changes(
        self,
        examples: Sequence[int],
        living: HostArray,
        *,
        whole: bool = False,
        silent: bool = False,
        early: bool = False,
    ) -> Changes:
        """Computes how this island has changed the parameters.

        Args:
          examples: the number of examples since this was done last for each fragment.
          living: for each number of a variable whether all islands still have it: Python's collector may have taken
            what no program can reach from some of them.
          whole: True for those of all fragments, and not of the next one alone.
          silent: True if it has taken no step since, and only listens.
          early: True if it takes further steps before the islands meet.
        """
        alive = self._register.alive().items()
        found = [(number, v) for number, v in alive if living[number] and self.is_parameter(v)]
        self._check_begun(found, self._parameters)
        turn = [whole or part == self._turn for part in range(self._count)]
        found = [(number, v) for number, v in found if turn[self._fragments[number]]]
        values = [_wide(_read(variable)) for _, variable in found]
        starts = [np.asarray(self._parameters[number].stored) for number, _ in found]
        arrays = [start - now for start, now in zip(starts, values, strict=True)]
        lost: list[HostArray | None] = [None] * len(arrays)
        if self._feeds_back:
            arrays = [array + self._lost.get(number, 0) for (number, _), array in zip(found, arrays, strict=True)]
        sent = self._wire.sent(arrays)
        if self._feeds_back:
            arrived = self._wire.received(sent, starts)
            lost = [array - there for array, there in zip(arrays, arrived, strict=True)]
        told = [_SILENT if silent else each for each in examples]
        return Changes(told, turn, found, values if early else [], sent, lost, early)

    def rest(self, examples: int, living: HostArray, *, silent: bool) -> list[HostArray]:
        """Makes the message of the other variables; arguments as for `changes`, examples since the last meeting."""
        arrays: list[HostArray] = [np.int64(_SILENT if silent else examples)[None]]
        alive = [(number, v) for number, v in self._register.alive().items() if living[number]]
        kinds = ((number, v, self.kind_of(v)) for number, v in alive)
        self._rest = [(number, v, kind) for number, v, kind in kinds if kind not in (None, Kind.PARAMETER)]
        self._check_begun([(number, v) for number, v, kind in self._rest if kind is Kind.SUM], self._counted)
        for number, variable, kind in self._rest:
            now = _read(variable)
            if kind is Kind.SUM:
                now = np.zeros_like(now) if silent else now - self._counted[number]
            arrays.append(now)
        return arrays

    @staticmethod
    def _check_begun(variables: Sequence[tuple[int, Variable]], begun: Container[int]) -> None:
        for number, variable in variables:
            if number not in begun:
                raise VariableError(
                    f"{variable.name} was made after the islands had last met, and has no value that all of them began "
                    "with. HINT: make variables before the first step, or after strategy.synchronize()."
                )

    def mean_changes(self, changes: Changes, parts: Parts) -> list[HostArray]:
        """Numbers of examples, and the islands' mean changes of parameters: the same bits on each.

        An island that only listens counts for nothing.
        """
        told = np.maximum([part[0] for part in parts], 0)
        means: list[HostArray] = [told.sum(0)]
        like = [self._parameters[number].stored for number, _ in changes.parameters]
        arrived = [self._wire.received(part[1:], like) for part in parts]
        for place, (number, _) in enumerate(changes.parameters):
            weights = [int(count) for count in told[:, self._fragments[number]]]
            means.append(_mean([each[place] for each in arrived], weights))
        return means

    def combined_rest(self, parts: Parts) -> list[HostArray]:
        """The values of other variables, of the islands' messages: the same bits on each."""
        told = [int(part[0][0]) for part in parts]
        weights = [max(examples, 0) for examples in told]
        # Without any example to learn from, such as in an evaluation, those who have been there count alike.
        of_means = weights if any(weights) else [int(examples != _SILENT) for examples in told]
        results: list[HostArray] = []
        for place, (_, _, kind) in enumerate(self._rest, 1):
            each = [part[place] for part in parts]
            if kind is Kind.FIRST:
                results.append(each[0])
            else:
                results.append(_added(each) if kind is Kind.SUM else _mean(each, of_means))
        return results

    def take(self, changes: Changes, means: Sequence[HostArray], rest: Sequence[HostArray]) -> None:
        """Gives the variables the values that they have from now on.

        Args:
          changes: this island's.
          means: those of `mean_changes`.
          rest: of the other variables.
        """
        examples, *arrays = means
        turn = np.asarray(changes.turn) & (examples > 0)
        if turn.any():
            self._update(changes, arrays, turn)
        common = set[int]()
        with updating:
            for place, (number, variable) in enumerate(changes.parameters):
                lost = changes.lost[place]
                if lost is not None and changes.examples[self._fragments[number]] > 0:
                    self._lost[number] = lost
                value = np.asarray(self._parameters[number].stored)
                if changes.early:
                    value = value + (_wide(_read(variable)) - changes.values[place])
                else:
                    common.add(number)
                _give(variable, value)
            for (number, variable, kind), array in zip(self._rest, rest, strict=True):
                _give(variable, self._counted[number] + array if kind is Kind.SUM else array)
        self._given = {self._register.number(variable): variable.stored for variable in self.parameters}
        self._apart = self._given.keys() - common
        if not all(changes.turn):
            self._turn = (self._turn + 1) % self._count

    def _update(self, changes: Changes, means: Sequence[HostArray], turn: HostArray) -> None:
        pairs = zip(changes.parameters, means, strict=True)
        of_copies = {id(self._parameters[number]): mean for (number, _), mean in pairs}
        optimizer = self.optimizer
        with self._at_home():

            def change_of(copy: Variable) -> HostArray:
                change = of_copies.get(id(copy))
                return np.zeros(copy.shape, copy.dtype) if change is None else change

            grads = jax.tree.map(change_of, optimizer.nest, is_leaf=_is_variable)
            with _unseen():
                self._apply(grads, {} if self._count == 1 else {"turn": jnp.asarray(turn)})

    # For an island that joins.

    @property
    def _outer(self) -> list[Variable]:
        slots = () if self._optimizer is None else self._optimizer.variables
        return [*self._parameters.values(), *slots]

    def state(self) -> list[HostArray]:
        """Returns all that islands have in common besides the values of variables."""
        outer = self._outer
        head = np.asarray([self._trained, self._optimizer is not None, self._turn, *self._counted], np.int64)
        return [head, *(np.asarray(variable.stored) for variable in outer), *self._counted.values()]

    def restore(self, state: Sequence[HostArray]) -> None:
        """The inverse of `state`, on an island that has the same variables: parameters get their common values."""
        (trained, begun, turn, *numbers), *arrays = state
        if begun:
            self.begin()
        outer, self._trained, self._turn = self._outer, bool(trained), int(turn)
        with self._at_home():
            for variable, array in zip(outer, arrays, strict=False):
                variable.assign(array)
        self._counted = dict(zip(map(int, numbers), arrays[len(outer) :], strict=True))
        with updating:
            for number, variable in self._register.alive().items():
                if number in self._parameters:
                    _give(variable, np.asarray(self._parameters[number].stored))


@contextmanager
def _unseen() -> Generator[None]:
    """Hides a compiled function from observers: it is no step of the user's."""
    kinds = [kind for kind in (Kinds.STEP, Kinds.TRACE, Kinds.DISPATCH) if kind.due()]
    for kind in kinds:
        kind.mark(inside=True)
    try:
        yield
    finally:
        for kind in kinds:
            kind.mark(inside=False)


def _give(variable: Variable, value: HostArray) -> None:
    variable.bind(variable.policy.place(np.array(value, variable.dtype).reshape(variable.shape)))


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
