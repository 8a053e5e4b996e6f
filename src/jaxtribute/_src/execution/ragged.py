"""Compiled replicas whose inputs differ in shape: exact results, one program.

The replica function is traced once for each distinct set of input shapes (a *class* of replicas). The traces
are cut at their collectives, which all classes make in the same order; between two collectives each replica
runs the piece of its own class, chosen by one `lax.switch`. What does not depend on the shapes at all, such as
the optimizer's update after the gradients are reduced, is found by numbering equal values over the classes and
is computed once, outside the switches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.execution.cutting import is_cut
from jaxtribute._src.execution.eager import InnerCollective, NotSplittable
from jaxtribute._src.execution.numbering import Number, Numbering, same_type
from jaxtribute._src.jaxprs.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, aval, bind, is_ref, opened
from jaxtribute._src.jaxprs.kinds import repeatable
from jaxtribute._src.jaxprs.walking import variables
from jaxtribute._src.types import Numeric
from jaxtribute._src.values.mesh import AXIS


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
        return any(self.numbers[var] not in common for var in eqn.outvars) or bool(eqn.effects)


def prepare(classes: Sequence[ReplicaClass]) -> set[Number]:
    """Numbers the values of all classes and cuts their programs; returns the numbers that all have.

    Raises:
      NotSplittable: the classes do not make the same collectives.
    """
    numbering = Numbering()
    for index, one in enumerate(classes):
        _number(one, index, numbering)
    first = classes[0]
    for one in classes[1:]:
        same = len(one.collectives) == len(first.collectives) and all(
            numbering.equation(a, ()) == numbering.equation(b, ()) and all(map(same_type, a.invars, b.invars))
            for a, b in zip(first.collectives, one.collectives, strict=True)
        )
        if not same:
            if any(eqn.primitive.name == "cond" for eqn in (*first.collectives, *one.collectives)):
                raise InnerCollective("a collective inside cond")
            raise NotSplittable("the classes of replicas make different collectives")
        pairs = zip(first.collectives, one.collectives, strict=True)
        if any(a.primitive.name == "cond" and first.number(a.invars[0]) != one.number(b.invars[0]) for a, b in pairs):
            raise InnerCollective("a collective inside cond, on a condition that differs between replicas")
    for one in classes:
        _mark_live(one)
    return set[Number].intersection(*({*one.numbers.values(), *one.literals.values()} for one in classes))


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
        elif eqn.effects or not repeatable(eqn):
            # A print or a callback happens for each replica by itself: never equal to that of another class.
            key = ("effect", index, id(eqn))
            segment.append(eqn)
        else:
            inputs = tuple(numbering.atom(atom, numbers) for atom in eqn.invars)
            key = numbering.equation(eqn, inputs)
            segment.append(eqn)
        for place, var in enumerate(eqn.outvars):
            if is_ref(var):
                raise NotSplittable("a mutable jax.Ref")
            numbers[var] = numbering.of((key, place))
    one.segments.append(segment)
    for atom in (*jaxpr.outvars, *(atom for eqn in one.collectives for atom in eqn.invars)):
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
            if eqn.effects or any(var in needed for var in eqn.outvars):
                needed.update(variables(eqn.invars))
    one.live = live[::-1]


class Merged:
    """One replica's program over all classes, to be called inside `shard_map`.

    Args:
      classes: the classes' programs, prepared.
      common: the numbers of the values that all classes have.
      table: the class of each replica.
    """

    def __init__(self, classes: Sequence[ReplicaClass], common: set[Number], table: Sequence[int]) -> None:
        self._classes, self._common, self._table = classes, common, table
        self._shared: dict[Number, Any] = {}
        self._own: list[dict[Any, Any]] = [{} for _ in classes]
        # Common operations are in every class's program, with other variables but equal numbers. Those of the first
        # class stand for all.
        self._pending = [eqn for segment in classes[0].segments for eqn in segment if not classes[0].own(eqn, common)]

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
                    value = value[tuple(slice(0, size) for size in one.shapes[source])]
                self._bind(one, own, var, value)
        count = len(self._classes[0].segments)
        # All replicas come to a collective together, whichever their class: so segments are run one by one, each
        # replica in its class's branch, and the collectives stand between the branches, outside every condition.
        for place in range(count):
            self._advance()
            last = place == count - 1
            wanted = [one.jaxpr.outvars if last else one.collectives[place].invars for one in self._classes]
            shapes = out_shapes if last else [aval(atom).shape for atom in wanted[0]]
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
            operands = [atom if isinstance(atom, Literal) else first.numbers[atom] for atom in eqn.invars]
            if not all(isinstance(operand, Literal) or operand in self._shared for operand in operands):
                later.append(eqn)
                continue
            values = [x.val if isinstance(x, Literal) else self._shared[x] for x in operands]
            for var, result in zip(eqn.outvars, bind(eqn, values), strict=True):
                self._shared[first.numbers[var]] = result
        self._pending = later

    def _segment(self, place: int, wanted: Sequence[Sequence[Any]], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """Runs one segment; returns the wanted values, each from the replica's own class."""
        results: list[Any] = [None] * len(shapes)
        switched: list[int] = []
        for slot in range(len(shapes)):
            # A value with one number in all classes is computed once, outside: gradients that have been reduced, and
            # with them the whole update.
            numbers = {one.number(atoms[slot]) for one, atoms in zip(self._classes, wanted, strict=True)}
            if len(numbers) == 1:
                atom = wanted[0][slot]
                literal = isinstance(atom, Literal)
                results[slot] = jnp.asarray(atom.val, aval(atom).dtype) if literal else self._shared[numbers.pop()]
            else:
                switched.append(slot)
        # A branch ends at the collective, but later segments of its class may need what it has computed. These values
        # come out as further results: zeros in the branches of other classes, which nobody reads.
        carried = [self._carried(index, place) for index in range(len(self._classes))]
        acts = any(eqn.effects for one in self._classes for eqn in one.segments[place])
        if not switched and not any(carried) and not acts:
            return results
        branches = [
            self._branch(
                index, place, [wanted[index][slot] for slot in switched], [shapes[s] for s in switched], carried
            )
            for index in range(len(self._classes))
        ]
        # The class is looked up by the replica's number rather than told by a shape: one program serves all replicas.
        chosen = jnp.asarray(np.asarray(self._table, np.int32))[lax.axis_index(AXIS)]
        outputs = lax.switch(chosen, branches)
        for slot, output in zip(switched, outputs, strict=False):
            results[slot] = output
        rest = iter(outputs[len(switched) :])
        for own, values in zip(self._own, carried, strict=True):
            own.update((var, next(rest)) for var in values)
        return results

    def _carried(self, index: int, place: int) -> list[Any]:
        """The part of a segment that one class computes, and the values needed behind the collective at its end."""
        one = self._classes[index]
        if place + 1 >= len(one.segments):
            return []
        later = set(one.live[place + 1])
        for segment in one.segments[place + 1 :]:
            for eqn in segment:
                later.update(variables(eqn.invars))
        made = [var for eqn in one.segments[place] if one.own(eqn, self._common) for var in eqn.outvars]
        return [var for var in made if var in later and one.numbers[var] not in self._common]

    def _branch(
        self, index: int, place: int, wanted: Sequence[Any], shapes: Sequence[tuple[int, ...]], carried: list[list[Any]]
    ) -> Callable[[], list[Any]]:
        one = self._classes[index]

        def branch() -> list[Any]:
            # Copied, as `lax.switch` traces every branch: what this one makes must not be seen by the next.
            values = dict(self._own[index])

            def read(atom: Any) -> Any:
                if isinstance(atom, Literal):
                    return jnp.asarray(atom.val, aval(atom).dtype)
                return values[atom] if atom in values else self._shared[one.numbers[atom]]

            for eqn in one.segments[place]:
                if one.own(eqn, self._common):
                    operands = [x.val if isinstance(x, Literal) else read(x) for x in eqn.invars]
                    values.update(zip(eqn.outvars, bind(eqn, operands), strict=True))
            results = [_padded(read(atom), shape) for atom, shape in zip(wanted, shapes, strict=True)]
            for other, column in enumerate(carried):
                # All branches of a switch return arrays of the same shapes, in one order.
                results.extend(values[var] if other == index else jnp.zeros_like(var.aval) for var in column)
            return results

        return branch

    def _collective(self, place: int, operands: Sequence[Any]) -> None:
        first = self._classes[0]
        # The first class's operation is bound for all: `prepare` has compared the parameters, and `_segment` has
        # brought the operands of every class to its shapes.
        eqn = first.collectives[place]
        for var, result in zip(eqn.outvars, bind(eqn, operands), strict=True):
            self._shared[first.numbers[var]] = result


def _padded(value: Numeric, shape: tuple[int, ...]) -> Any:
    if value.shape == tuple(shape):
        return value
    blank = jnp.zeros_like(jax.ShapeDtypeStruct(shape, value.dtype))  # a random key has zeros, too
    return blank.at[tuple(slice(0, size) for size in value.shape)].set(value)
