"""Compiled replicas whose inputs differ in shape: exact results, one program.

The replica function is traced once for each distinct set of input shapes (a *class* of replicas). The traces
are cut at their collectives, which all classes make in the same order; between two collectives each replica
runs the piece of its own class, chosen by one `lax.switch`. Replicas of several devices run the pieces of all
classes and choose from the results: the compiler may move arrays between devices in a piece, for which all wait.
What does not depend on the shapes at all, such as the optimizer's update after the gradients are reduced, is found
by numbering equal values over the classes and is computed once, outside the switches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core.execution.capture import Varying, check_same
from jaxtribute._src.core.execution.cutting import is_cut
from jaxtribute._src.core.execution.eager import InnerCollective, NotSplittable
from jaxtribute._src.core.execution.nests import at
from jaxtribute._src.core.execution.numbering import Number, Numbering
from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, aval, bind, is_ref, opened
from jaxtribute._src.core.jaxprs.kinds import is_free, repeatable
from jaxtribute._src.core.jaxprs.walking import LOOPS, used_by, variables
from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.slices import alike_p


@dataclass
class ReplicaClass:
    """The program of the replicas that have inputs of the same shapes.

    Attributes:
      closed: the lifted program; its inputs are those named by `sources`.
      sources: what each input is, as a key that is equal over classes where the value is.
      shapes: the true local shapes of ragged inputs, by their key.
    """

    closed: ClosedJaxpr
    sources: list[Any]
    shapes: dict[Any, tuple[int, ...]]
    numbers: dict[Any, Number] = field(default_factory=dict)
    literals: dict[int, Number] = field(default_factory=dict)
    segments: list[list[JaxprEqn]] = field(default_factory=list)
    collectives: list[JaxprEqn] = field(default_factory=list)
    live: list[set[Any]] = field(default_factory=list)

    @property
    def jaxpr(self) -> Jaxpr:
        """The program itself."""
        return opened(self.closed)

    def number(self, atom: Any) -> Number:
        """The number of a result or of a collective's operand."""
        return self.literals[id(atom)] if isinstance(atom, Literal) else self.numbers[atom]

    def own(self, eqn: JaxprEqn, common: set[Number]) -> bool:
        """True if an equation belongs to this class alone."""
        return not common.issuperset(at(self.numbers, eqn.outvars)) or not is_free(eqn)

    def all_numbers(self) -> set[Number]:
        """The numbers of all that the program has or makes."""
        return {*self.numbers.values(), *self.literals.values()}


def numbers_of(classes: Sequence[ReplicaClass], atoms: Sequence[Any]) -> set[Number]:
    """The numbers of one atom in each class: one number, if all classes compute the same value."""
    return set(map(ReplicaClass.number, classes, atoms))


def prepare(classes: Sequence[ReplicaClass], *, everywhere: bool = False) -> set[Number]:
    """Numbers the values of all classes and cuts their programs; returns the numbers that all have.

    Raises:
      NotSplittable: the classes do not make the same collectives, or are to run everywhere and print or call back.
    """
    numbering = Numbering()
    for index, one in enumerate(classes):
        _number(one, index, numbering)
    first = classes[0]
    for one in classes[1:]:
        if _meetings(first, numbering) != _meetings(one, numbering):
            for eqn in (*first.collectives, *one.collectives):
                if eqn.primitive.name in LOOPS:
                    raise InnerCollective(f"a collective inside {eqn.primitive.name}")
            which = "no" if any(0 in shape for each in classes for shape in each.shapes.values()) else "fewer or more"
            raise NotSplittable(f"replicas with {which} rows make different collectives")
        for a, b in zip(first.collectives, one.collectives, strict=True):
            apart = [first.number(x) != one.number(y) for x, y in zip(a.invars, b.invars, strict=True)]
            Varying(False).through(a, apart)
    for one in classes:
        _mark_live(one)
    if everywhere and not all(is_free(eqn) for one in classes for eqn in chain.from_iterable(one.segments)):
        raise NotSplittable("a print or a callback on replicas of several devices")
    common = set[Number].intersection(*map(ReplicaClass.all_numbers, classes))
    for eqn in chain.from_iterable(first.segments):
        if eqn.primitive is alike_p:
            check_same(eqn.params["name"], first.own(eqn, common))
    return common


def _meetings(one: ReplicaClass, numbering: Numbering) -> list[Any]:
    """The collectives of a class, with the types of their operands, as keys that can be compared."""
    types = [[(aval(atom).shape, aval(atom).dtype) for atom in eqn.invars] for eqn in one.collectives]
    return [(numbering.equation(eqn, ()), own) for eqn, own in zip(one.collectives, types, strict=True)]


def _number(one: ReplicaClass, index: int, numbering: Numbering) -> None:
    numbers, jaxpr = one.numbers, one.jaxpr
    for var, const in zip(jaxpr.constvars, one.closed.consts, strict=True):
        numbers[var] = numbering.constant(const)
    for var, source in zip(jaxpr.invars, one.sources, strict=True):
        # A ragged input has another shape in each class, so it is another value there. All other inputs, variables
        # among them, are one value, and what only they go into is numbered alike.
        numbers[var] = numbering.of((source, index if source in one.shapes else None))
    segment: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        if is_cut(eqn):
            # The classes make the same collectives in one order, which `prepare` checks afterwards: so the results of
            # the n-th one are the same value in all of them, although its operands differ.
            key: Any = ("collective", len(one.collectives))
            one.collectives.append(eqn)
            one.segments.append(segment)
            segment = []
        elif not (is_free(eqn) and repeatable(eqn)):
            # A print or a callback happens for each replica by itself: never equal to that of another class.
            key = ("effect", index, id(eqn))
            segment.append(eqn)
        else:
            key = numbering.equation(eqn, [numbering.atom(atom, numbers) for atom in eqn.invars])
            segment.append(eqn)
        for place, var in enumerate(eqn.outvars):
            if is_ref(var):
                raise NotSplittable("a mutable jax.Ref")
            numbers[var] = numbering.of((key, place))
    one.segments.append(segment)
    for atoms in (jaxpr.outvars, *map(attrgetter("invars"), one.collectives)):
        for atom in atoms:
            # By its id, as literals cannot be keys.
            if isinstance(atom, Literal):
                one.literals[id(atom)] = numbering.atom(atom, numbers)


def _mark_live(one: ReplicaClass) -> None:
    """For each segment, the variables that something behind it needs."""
    needed = set(variables(one.jaxpr.outvars))
    live: list[set[Any]] = []
    # Backwards, since an operation is needed only if something behind it is.
    for place in reversed(range(len(one.segments))):
        if place < len(one.collectives):
            needed.update(variables(one.collectives[place].invars))
        live.append(set(needed))
        for eqn in reversed(one.segments[place]):
            if not is_free(eqn) or not needed.isdisjoint(eqn.outvars):
                needed.update(variables(eqn.invars))
    one.live = live[::-1]


class Merged:
    """One replica's program over all classes, to be called inside `shard_map`.

    Args:
      classes: the classes' programs, prepared.
      common: the numbers of the values that all classes have.
      table: the class of each replica.
      everywhere: whether each replica runs the pieces of all classes, and chooses from what they give.
    """

    def __init__(
        self, classes: Sequence[ReplicaClass], common: set[Number], table: Sequence[int], *, everywhere: bool
    ) -> None:
        self._classes, self._common, self._table, self._everywhere = classes, common, table, everywhere
        self._shared: dict[Number, Any] = {}
        self._own: list[dict[Any, Any]] = [{} for _ in classes]
        # Common operations are in every class's program, with other variables but equal numbers. Those of the first
        # class stand for all.
        first = classes[0]
        self._pending = [eqn for eqn in chain.from_iterable(first.segments) if not first.own(eqn, common)]

    def __call__(self, inputs: dict[Any, Any], out_shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """Runs the program.

        Args:
          inputs: each input by its source's key; ragged ones padded to a common shape.
          out_shapes: the shape of each output, to which every class's own is padded.
        """
        for one, own in zip(self._classes, self._own, strict=True):
            for var, const in zip(one.jaxpr.constvars, one.closed.consts, strict=True):
                self._bind(one, own, var, const)
            for var, source in zip(one.jaxpr.invars, one.sources, strict=True):
                value = inputs[source]
                if source in one.shapes:
                    # Ragged inputs come padded to the largest shape. A class cuts off the padding here, in every
                    # replica; only its own replicas run the branch that uses what is cut.
                    value = value[_corner(one.shapes[source])]
                self._bind(one, own, var, value)
        count = len(self._classes[0].segments)
        # All replicas come to a collective together, whichever their class: so segments are run one by one, each
        # replica in its class's branch, and the collectives stand between the branches, outside every condition.
        for place in range(count):
            self._advance()
            last = place == count - 1
            wanted = [one.jaxpr.outvars if last else one.collectives[place].invars for one in self._classes]
            shapes = out_shapes if last else _shapes(wanted[0])
            results = self._segment(place, wanted, shapes)
            if last:
                return results
            self._collective(place, results)
        raise AssertionError

    def _bind(self, one: ReplicaClass, own: dict[Any, Any], var: Any, value: Numeric) -> None:
        number = one.numbers[var]
        if number in self._common:
            self._shared[number] = value
        else:
            own[var] = value

    def _advance(self) -> None:
        """Computes what all classes share and whose operands are there."""
        first, later = self._classes[0], []
        for eqn in self._pending:
            if not self._shared.keys() >= set(at(first.numbers, variables(eqn.invars))):
                later.append(eqn)
                continue
            self._share(eqn, _operands(eqn, lambda var: self._shared[first.numbers[var]]))
        self._pending = later

    def _share(self, eqn: JaxprEqn, operands: Sequence[Any]) -> None:
        """Computes an operation of the first class for all of them."""
        first = self._classes[0]
        self._shared.update(zip(at(first.numbers, eqn.outvars), bind(eqn, operands), strict=True))

    def _segment(self, place: int, wanted: Sequence[Sequence[Any]], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """Runs one segment; returns the wanted values, each from the replica's own class."""
        results: list[Any] = [None] * len(shapes)
        switched: list[int] = []
        for slot in range(len(shapes)):
            # A value with one number in all classes is computed once, outside: gradients that have been reduced, and
            # with them the whole update.
            atoms = [atoms[slot] for atoms in wanted]
            numbers = numbers_of(self._classes, atoms)
            if len(numbers) == 1:
                atom = atoms[0]
                results[slot] = _constant(atom) if isinstance(atom, Literal) else self._shared[numbers.pop()]
            else:
                switched.append(slot)
        # A branch ends at the collective, but later segments of its class may need what it has computed. These values
        # come out as further results: zeros in the branches of other classes, which nobody reads.
        carried = [self._carried(index, place) for index in range(len(self._classes))]
        if not switched and not any(carried) and not self._acts(place):
            return results
        asked = at(shapes, switched)
        branches = [
            self._branch(index, place, at(atoms, switched), asked, carried) for index, atoms in enumerate(wanted)
        ]
        # The class is looked up by the replica's number rather than told by a shape: one program serves all replicas.
        chosen = jnp.asarray(np.asarray(self._table, np.int32))[lax.axis_index(AXIS)]
        if self._everywhere:
            outputs = [lax.select_n(chosen, *column) for column in zip(*[branch() for branch in branches], strict=True)]
        else:
            outputs = lax.switch(chosen, branches)
        for slot, output in zip(switched, outputs, strict=False):
            results[slot] = output
        rest = iter(outputs[len(switched) :])
        for own, values in zip(self._own, carried, strict=True):
            for var in values:
                own[var] = next(rest)
        return results

    def _acts(self, place: int) -> bool:
        """True if a class prints or calls back in a segment, which must happen whoever wants the results."""
        segments = [one.segments[place] for one in self._classes]
        return not all(map(is_free, chain.from_iterable(segments)))

    def _carried(self, index: int, place: int) -> list[Any]:
        """The part of a segment that one class computes, and the values needed behind the collective at its end."""
        one = self._classes[index]
        if place + 1 >= len(one.segments):
            return []
        later = one.live[place + 1].union(used_by(list(chain.from_iterable(one.segments[place + 1 :]))))
        carried: list[Any] = []
        for eqn in one.segments[place]:
            if one.own(eqn, self._common):
                carried.extend(var for var in eqn.outvars if var in later and one.numbers[var] not in self._common)
        return carried

    def _branch(
        self, index: int, place: int, wanted: Sequence[Any], shapes: Sequence[tuple[int, ...]], carried: list[list[Any]]
    ) -> Callable[[], list[Any]]:
        one = self._classes[index]

        def branch() -> list[Any]:
            # Copied, as `lax.switch` traces every branch: what this one makes must not be seen by the next.
            values = dict(self._own[index])

            def read(atom: Any) -> Any:
                if isinstance(atom, Literal):
                    return _constant(atom)
                return values[atom] if atom in values else self._shared[one.numbers[atom]]

            for eqn in one.segments[place]:
                if one.own(eqn, self._common):
                    values.update(zip(eqn.outvars, bind(eqn, _operands(eqn, read)), strict=True))
            results = list(map(_padded, map(read, wanted), shapes))
            for other, column in enumerate(carried):
                # All branches of a switch return arrays of the same shapes, in one order.
                results.extend(values[var] if other == index else jnp.zeros_like(var.aval) for var in column)
            return results

        return branch

    def _collective(self, place: int, operands: Sequence[Any]) -> None:
        # The first class's operation is bound for all: `prepare` has compared the parameters, and `_segment` has
        # brought the operands of every class to its shapes.
        self._share(self._classes[0].collectives[place], operands)


def _shapes(atoms: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(aval(atom).shape) for atom in atoms]


def _operands(eqn: JaxprEqn, read: Callable[[Any], Any]) -> list[Any]:
    """An operation's operands: literals as they are, all else as it is read."""
    return [atom.val if isinstance(atom, Literal) else read(atom) for atom in eqn.invars]


def _constant(literal: Literal) -> jax.Array:
    """The value of a literal, of the dtype that it has in the program."""
    return jnp.asarray(literal.val, aval(literal).dtype)


def _corner(shape: Sequence[int]) -> tuple[slice, ...]:
    """The part of a padded array that is no padding, as an index."""
    return tuple(slice(0, size) for size in shape)


def _padded(value: Numeric, shape: tuple[int, ...]) -> Any:
    if value.shape == tuple(shape):
        return value
    blank = jnp.zeros_like(jax.ShapeDtypeStruct(shape, value.dtype))  # a random key has zeros, too
    return blank.at[_corner(value.shape)].set(value)
