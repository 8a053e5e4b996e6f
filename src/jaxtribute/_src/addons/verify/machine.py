"""Runs one replica's program operation by operation, up to the places where replicas meet, and keeps what it computes.

Each replica is a generator that yields where it needs the others; `together` drives all of them. So loops, conditions
and collectives inside them need nothing special, and replicas of different shapes may run different programs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute._src.addons.tools.installed import is_installed
from jaxtribute._src.addons.verify.operations import apply, as_wide, is_key
from jaxtribute._src.addons.verify.sources import Place, is_theirs, place_of
from jaxtribute.extending import JaxprEqn, Literal, Programs

RANDOM = frozenset({"random_bits", "random_gamma", "rng_bit_generator", "rng_uniform"})
"""Operations that draw random numbers."""
_DENOMINATORS = 2_000
"""Numbers of rows that constants are taken for fractions of."""
_LOOPS_AT_MOST = 20_000
"""Turns of one loop."""


Key = tuple[int, ...]
"""A place in a program: the run, the numbers of the operations from outside to inside, and that of the result."""


class CannotVerify(Exception):  # noqa: N818 (no error of the user's)
    """Something of a step cannot be followed; says what, in words."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a condition: of `lax.cond`, `lax.switch`, or of a `where` whose condition is a single value.

    Attributes:
      place: the line and expression.
      count: number of branches.
      index: the branch's, from 0; -1 for that of any.
    """

    place: Place
    count: int
    index: int = -1

    def is_taken(self, tapes: Sequence[Tape]) -> bool:
        """True if one device and all replicas have taken the branch."""
        return all(self.index in tape.taken.get(Branch(self.place, self.count), ()) for tape in tapes)


@dataclass(slots=True, eq=False)
class Record:
    """One operation that has been computed.

    Attributes:
      name: of the operation.
      operands: what it was given.
      results: what it gave.
      eqn: the operation; None for what the code around the replicas did.
      place: the user's line.
      inside: True within a loop or a condition.
      backwards: True if JAX has made the operation to differentiate, or what it is a part of.
      key: its place in the program, without the number of a result.
      derived: True if it belongs to what is differentiated, or to the derivative.
    """

    name: str
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    eqn: JaxprEqn | None
    place: Place | None
    inside: bool = False
    backwards: bool = False
    key: Key = ()
    derived: bool = False


@dataclass(slots=True, eq=False)
class Tape:
    """The operations of one replica, in order; none if `keeps` is False."""

    keeps: bool = False
    records: list[Record] = field(default_factory=list)
    makers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By the id of a value the numbers of the records that it comes from."""
    folded: frozenset[int] = frozenset()
    """The loops, counted in order, that are kept as one operation each."""
    turns: list[int] = field(default_factory=list)
    """For each loop outside of others how often it went round."""
    taken: dict[Branch, set[int]] = field(default_factory=dict)
    """The branches that were taken."""
    asked: dict[Branch, list[Any]] = field(default_factory=dict)
    """Their conditions."""
    inputs: dict[Key, Any] = field(default_factory=dict)
    """Values that programs were given."""
    parts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By the id of a part of values, or of what is made up of them, the ids of these."""
    constants: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the id of an array that a program closes over, or of its parts: its own id, and its rows."""
    runs: int = 0
    """Number of programs that have begun."""
    asks_finite: bool = False
    """True if an operation asked whether numbers are finite, or NaN."""

    def add(self, record: Record) -> None:
        """Adds an operation."""
        if self.keeps:
            number = (len(self.records),)
            self.records.append(record)
            for value in record.results:
                self.makers[id(value)] = number

    def is_of(self, value: Any, held: Collection[int]) -> bool:
        """True for a value that is among some, which go by their ids, or a part of one of them."""
        todo, seen = [id(value)], set[int]()
        while todo:
            one = todo.pop()
            if one in held:
                return True
            if one not in seen:
                seen.add(one)
                todo += self.parts.get(one, ())
        return False

    def same(self, new: Any, *olds: Any) -> Any:
        """Notes that a value is part of others, or made up of them; returns it."""
        if self.keeps:
            numbers: dict[int, None] = {}
            for old in olds:
                numbers.update(dict.fromkeys(self.makers.get(id(old), ())))
                if id(old) in self.constants:
                    self.constants[id(new)] = self.constants[id(old)]
            self.makers[id(new)] = tuple(numbers)
            self.parts[id(new)] = tuple(map(id, olds))
            self._alive += new, *olds
        return new

    def constant(self, value: Any, given: Any) -> Any:
        """Notes an array that a program closes over, in 64 bits; returns it. A key of the old kind has no rows."""
        if self.keeps and not is_key(value) and np.ndim(value) and (given.dtype, given.shape) != (np.uint32, (2,)):
            self.constants[id(value)] = id(given), len(value)
            self._alive += value, given
        return value

    _alive: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Meeting:
    """An operation for which a replica needs the others."""

    eqn: JaxprEqn
    operands: list[Any]
    place: Place | None


Running = Generator[Meeting, "list[Any]", "list[Any]"]


class Machine:
    """Runs programs of one replica.

    Args:
      replica: its number.
      tape: keeps what is computed.
      factor: what gradients are multiplied by as they leave what JAX made to differentiate.
      changed: by their places numbers that are others than what is computed.
    """

    def __init__(self, replica: int, tape: Tape, factor: float = 1.0, changed: Mapping[Key, Any] | None = None) -> None:
        self._replica, self._tape, self._factor, self._changed = replica, tape, factor, changed or {}
        self._path: Key = (tape.runs,)
        """The place of the operation that is running."""
        tape.runs += 1
        self._looping = 0
        self._inside = 0
        self._backwards = 0
        """Number of differentiated operations whose programs are running."""
        self._derived = 0
        """Number of operations of what is differentiated whose programs are running."""

    def begin(self, program: Any, inputs: Sequence[Any]) -> Running:
        """Runs the whole program of the replica."""
        given = [self._changed_to((*self._path, number), value) for number, value in enumerate(inputs)]
        if self._tape.keeps:
            self._tape.inputs.update({(*self._path, number): value for number, value in enumerate(given)})
        return self.run(program, given)

    def run(
        self, program: Any, inputs: Sequence[Any], caller: Place | None = None, *, own: bool = True, part: int = 0
    ) -> Running:
        """Runs a program.

        Args:
          program: the program, with its constants.
          inputs: its inputs.
          caller: the line that calls it.
          own: False if the program is not the user's, so that lines in it tell nothing.
          part: which of its operation's programs it is.
        """
        outer = self._path
        jaxpr = Programs.opened(program)
        given = Programs.constants(program)
        wide = (self._tape.constant(as_wide(each), each) for each in given)
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, wide, strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        scaled: dict[Any, Any] = {}

        def read(atom: Any, *, backwards: bool) -> Any:
            if isinstance(atom, Literal):
                return _constant(atom.val, Programs.aval(atom).dtype)
            return values[atom] if backwards else scaled.get(atom, values[atom])

        for number, eqn in enumerate(jaxpr.eqns):
            self._path = (*outer, part, number)
            backwards, derived = is_backwards(eqn), is_derived(eqn)
            operands = [read(atom, backwards=backwards) for atom in eqn.invars]
            place = (place_of(eqn) or caller) if own else caller
            self._backwards += backwards
            self._derived += derived
            results = yield from self._results(eqn, operands, place)
            self._backwards -= backwards
            self._derived -= derived
            values.update(zip(eqn.outvars, results, strict=True))
            if backwards and self._factor != 1 and not self._backwards:
                scaled.update(zip(eqn.outvars, map(self._scaled, results), strict=True))
        self._path = outer
        return [read(atom, backwards=False) for atom in jaxpr.outvars]

    def _changed_to(self, key: Key, value: Any) -> Any:
        """A number, or what it is changed to."""
        if key not in self._changed:
            return value
        return np.full(np.shape(value), self._changed[key], np.asarray(value).dtype)

    def _scaled(self, value: Any) -> Any:
        """A gradient, for what is made of it."""
        if is_key(value) or np.asarray(value).dtype.kind != "f":
            return value
        return self._tape.same(value * self._factor, value)

    def _results(self, eqn: JaxprEqn, operands: list[Any], place: Place | None) -> Running:
        name = eqn.primitive.name
        inner = Programs.called(eqn)
        if inner is not None:
            return (yield from self.run(inner, operands, place, own=is_users(inner)))
        structure = self._STRUCTURES.get(name)
        if structure is not None:
            self._inside += 1
            try:
                return (yield from structure(self, eqn, operands, place))
            finally:
                self._inside -= 1
        if name == "axis_index":
            results: list[Any] = [np.int32(self._replica) + np.zeros((), np.int32)]
        elif Programs.names_axis(eqn, AXIS) or (name in RANDOM and not self._looping):
            results = yield Meeting(eqn, operands, place)
        else:
            if name == "select_n" and not np.ndim(operands[0]) and _is_written(place):
                self._note(place, len(operands) - 1, operands[0])
            results = self._plain(eqn, operands, place)
        # Own objects: a value that an operation hands through would else be taken for what was there before.
        results = [value if is_key(value) else np.asarray(value).view() for value in results]
        if self._changed:
            results = [self._changed_to((*self._path, number), value) for number, value in enumerate(results)]
        flags = self._inside > 0, self._backwards > 0, self._path, self._derived > 0
        self._tape.add(Record(name, tuple(operands), tuple(results), eqn, place, *flags))
        return results

    def _plain(self, eqn: JaxprEqn, operands: list[Any], place: Place | None) -> list[Any]:
        name = eqn.primitive.name
        if "callback" in name or name in ("infeed", "outfeed"):
            if not eqn.outvars:
                return []  # it prints, or the like
            raise CannotVerify(f"{place or 'an unknown line'} calls Python on the host ({name})")
        if name in ("debug_print", "create_token", "after_all"):
            return [np.zeros(()) for _ in eqn.outvars]
        if (name in Programs.STRUCTURES or name == "pallas_call" or Programs.mentions(eqn, AXIS)) and next(
            Programs.programs_in(eqn), None
        ):
            raise CannotVerify(f"{place or 'an unknown line'} makes {name!r}, which runs programs in a way of its own")
        if name == "is_finite" or (name == "ne" and operands[0] is operands[1]):
            self._tape.asks_finite = True
        try:
            with np.errstate(all="ignore"):
                return apply(eqn, operands)
        except CannotVerify:
            raise
        except Exception as error:
            raise CannotVerify(f"{place or 'an unknown line'} makes {name!r}: {error}") from error

    # Structures.

    def _scan(self, eqn: JaxprEqn, operands: list[Any], place: Place | None) -> Running:
        params = eqn.params
        body = params.get("jaxpr")
        consts, carries, length = Programs.scan_counts(eqn)
        held, carry, whole = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]
        if length > _LOOPS_AT_MOST:
            raise CannotVerify(f"{place or 'an unknown line'} loops {length:,} times")
        self._turned(length)
        turns = range(length)
        columns: list[list[Any]] = [[] for _ in range(len(eqn.outvars) - carries)]
        for turn in reversed(turns) if params["reverse"] else turns:
            slices = [self._tape.same(value[turn], value) for value in whole]
            results = yield from self.run(body, [*held, *carry, *slices], place, own=is_users(body))
            carry = results[:carries]
            for column, value in zip(columns, results[carries:], strict=True):
                column.append(value)
        stacked: list[Any] = []
        for column, var in zip(columns, eqn.outvars[carries:], strict=True):
            if params["reverse"]:
                column.reverse()
            stacked.append(self._tape.same(_stacked(column, Programs.aval(var)), *column))
        return [*carry, *stacked]

    def _while(self, eqn: JaxprEqn, operands: list[Any], place: Place | None) -> Running:
        params = eqn.params
        first, second = params["cond_nconsts"], params["body_nconsts"]
        asked, held, carry = operands[:first], operands[first : first + second], operands[first + second :]
        self._looping += 1
        try:
            for turn in range(_LOOPS_AT_MOST):
                (more,) = yield from self.run(params["cond_jaxpr"], [*asked, *carry], place)
                if not np.any(more):
                    self._turned(turn)
                    return carry
                after = yield from self.run(params["body_jaxpr"], [*held, *carry], place, part=1)
                carry = (
                    [self._gone_on(more, *pair) for pair in zip(after, carry, strict=True)] if np.ndim(more) else after
                )
        finally:
            self._looping -= 1
        raise CannotVerify(f"{place or 'an unknown line'} loops more than {_LOOPS_AT_MOST:,} times")

    def _gone_on(self, more: Any, after: Any, before: Any) -> Any:
        """A value of several loops in one, as `jax.vmap` makes them: each ends by its own condition."""
        shape = (*np.shape(more), *(1,) * (after.ndim - np.ndim(more)))
        if not is_key(after):
            return self._tape.same(np.where(np.reshape(more, shape), after, before), after, before)
        import jax.numpy as jnp

        return jnp.where(jnp.reshape(more, shape), after, before)

    def _cond(self, eqn: JaxprEqn, operands: list[Any], place: Place | None) -> Running:
        branches = eqn.params["branches"]
        chosen = int(np.clip(int(operands[0]), 0, len(branches) - 1))
        if any("/jax/" not in _file_of(branch).replace("\\", "/") for branch in branches):
            self._note(place, len(branches), operands[0], chosen)
        results = yield from self.run(branches[chosen], operands[1:], place, part=chosen)
        # The condition has a say in what comes of it.
        return [self._tape.same(value if is_key(value) else value.view(), value, operands[0]) for value in results]

    def _solve(self, eqn: JaxprEqn, operands: list[Any], place: Place | None) -> Running:
        counts, solver = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
        before = counts.matvec + counts.vecmat
        held, given = operands[before : before + counts.solve], operands[sum(counts) :]
        return (yield from self.run(solver, [*held, *given], place, own=is_users(solver)))

    def _note(self, place: Place | None, count: int, condition: Any, index: int | None = None) -> None:
        """Notes which branch a condition asks for."""
        if place is not None:
            branch = Branch(place, count)
            self._tape.taken.setdefault(branch, set()).add(int(condition) if index is None else index)
            if self._tape.keeps:
                self._tape.asked.setdefault(branch, []).append(condition)

    def _loop(self, eqn: JaxprEqn, operands: list[Any], place: Place | None) -> Running:
        run = self._scan if eqn.primitive.name == "scan" else self._while
        tape = self._tape
        if self._inside > 1 or len(tape.turns) not in tape.folded:
            return (yield from run(eqn, operands, place))
        # Other turns on replicas than on one device: only the whole can be compared.
        keeps, tape.keeps = tape.keeps, False
        try:
            results = yield from run(eqn, operands, place)
        finally:
            tape.keeps = keeps
        results = [value if is_key(value) else np.asarray(value).view() for value in results]
        flags = True, self._backwards > 0, (), self._derived > 0
        tape.add(Record(eqn.primitive.name, tuple(operands), tuple(results), eqn, place, *flags))
        return results

    def _turned(self, turns: int) -> None:
        if self._inside == 1:
            self._tape.turns.append(turns)

    _STRUCTURES: ClassVar[dict[str, Any]] = {
        "scan": _loop,
        "while": _loop,
        "cond": _cond,
        "custom_linear_solve": _solve,
    }


def is_backwards(eqn: JaxprEqn) -> bool:
    """True if JAX has made an operation to differentiate."""
    return "transpose" in str(eqn.source_info.name_stack)


def is_derived(eqn: JaxprEqn) -> bool:
    """True if an operation belongs to what JAX differentiates, or to the derivative."""
    return "jvp" in str(eqn.source_info.name_stack)


def _constant(value: Any, dtype: Any) -> Any:
    """A number of a program; a fraction such as 5 / 11, which 32 bits do not hold, as it was meant."""
    array = as_wide(np.asarray(value, dtype))
    if dtype == np.float32 and array.ndim == 0 and np.isfinite(array) and array % 1:
        simple = Fraction(float(array)).limit_denominator(_DENOMINATORS)
        if np.float32(float(simple)) == np.float32(array):
            return np.float64(float(simple))
    return array


def is_users(program: Any) -> bool:
    """True if a program inside an operation was traced from the user's own function, and not of a library's."""
    file = _file_of(program)
    return not (is_installed(file) or file.startswith("<"))


def _file_of(program: Any) -> str:
    return getattr(getattr(Programs.opened(program), "debug_info", None), "func_filename", None) or ""


def _is_written(place: Place | None) -> bool:
    """True if the user has written a choice on a line, and no library that the line calls."""
    return place is not None and is_theirs(place.file) and any(word in place.text for word in ("where", "select"))


def _stacked(column: list[Any], var: Any) -> Any:
    if not column:
        return as_wide(np.zeros(var.shape, var.dtype))
    if is_key(column[0]):
        import jax.numpy as jnp

        return jnp.stack(column)
    return np.stack(column)


def together(running: Sequence[Running], meet: Callable[[list[Meeting]], list[list[Any]]]) -> list[list[Any]]:
    """Drives all replicas; returns the results of each.

    Args:
      running: what each replica runs.
      meet: gives each replica the results of an operation that all have come to.

    Raises:
      CannotVerify: they come to different operations.
    """
    results: list[Any] = [None] * len(running)
    sent: list[Any] = [None] * len(running)
    while True:
        meetings: list[Meeting | None] = []
        for number, (replica, given) in enumerate(zip(running, sent, strict=True)):
            try:
                meetings.append(replica.send(given))
            except StopIteration as end:
                results[number] = end.value
                meetings.append(None)
        present = [meeting for meeting in meetings if meeting is not None]
        if not present:
            return results
        names = {meeting.eqn.primitive.name for meeting in present}
        if len(present) < len(running) or len(names) > 1:
            raise CannotVerify(
                f"{present[0].place or 'an unknown line'} comes to {' and '.join(sorted(names))}, not the same on each "
                "replica. verify takes their operations in pairs, and says nothing of such a batch, right or wrong"
            )
        sent = list(meet(present))
