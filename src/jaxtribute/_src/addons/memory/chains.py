"""`Chain`: a traced loss as a list of operations, with what the backward pass of each of them needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxtribute._src.addons.memory.costs import SLOW, seconds
from jaxtribute.extending import JaxprEqn, Literal, Programs

AXIS = "replica"
_SIMPLE = Programs.ELEMENTWISE - {"optimization_barrier"} | {"iota", "broadcast_in_dim"}
CHEAP = {True: _SIMPLE - SLOW, False: _SIMPLE}
"""Names of the operations that the compiler puts into each of their users rather than keep what they give.

By whether it compiles for CPUs, whose compiler repeats none that takes many instructions.
"""
VIEWS = frozenset("reshape squeeze expand_dims".split())
"""Names of the operations whose result is the same memory as their operand."""
_WHOLE = "jd_whole"


@dataclass(frozen=True, slots=True)
class Needs:
    """The values that the backward pass of an operation uses.

    Attributes:
      values: the numbers of values of the chain.
      further: bytes that only its own forward pass makes.
    """

    values: frozenset[int]
    further: int = 0


@dataclass(slots=True, eq=False)
class Operation:
    """An operation of a chain.

    Attributes:
      eqn: the operation of the traced program.
      reads: the numbers of its operands.
      writes: the numbers of its results.
      seconds: how long it takes, in units that only compare.
      once: True if it must not run again.
      kept: what JAX keeps for it.
      held: what is in memory for it once the compiler has put cheap operations into their users.
      body: the chain that a scan runs, if it is one; and how often.
    """

    eqn: JaxprEqn
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    seconds: float
    once: bool
    kept: Needs
    held: Needs = field(default_factory=lambda: Needs(frozenset()))
    body: Chain | None = None
    turns: int = 1


class Chain:
    """The operations of a program in their order; calls that do nothing else are taken apart.

    Values are numbered: constants and literals, inputs, and the results of operations.

    Args:
      program: the program, closed or not.
      active: for each of its inputs whether it is differentiated by.
      gathers: True if gathered variables are gathered anew, so that they take no memory until then.
      cpu: whether the program runs on CPUs.
    """

    def __init__(self, program: Any, active: Sequence[bool], *, gathers: bool, cpu: bool) -> None:
        self.program = program
        self._cpu = cpu
        self.sizes: list[int] = []
        self.known: dict[int, Any] = {}
        self.operations: list[Operation] = []
        self.makers: dict[int, int] = {}
        self._gathers = gathers
        self._active: set[int] = set()
        self._views: dict[int, int] = {}
        self._sources: dict[int, frozenset[int]] = {}
        self._cache: dict[Any, Any] = {}
        jaxpr = Programs.opened(program)
        numbers: dict[Any, int] = {}
        consts = Programs.constants(program)
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            numbers[var] = self._number(0)
            self.known[numbers[var]] = value
        self.inputs = [self._number(0) for _ in jaxpr.invars]
        numbers.update(zip(jaxpr.invars, self.inputs, strict=True))
        self._active |= {one for one, differs in zip(self.inputs, active, strict=True) if differs}
        self.outputs = self._walk(jaxpr, numbers)
        self.given = frozenset(range(len(consts) + len(self.inputs))) | frozenset(self.known)

    @property
    def free(self) -> frozenset[int]:
        """Values that take no memory of the backward pass: they are there anyway, or are gathered anew."""
        gathered = (op for op in self.operations if self._gathers and op.eqn.primitive.name == _WHOLE)
        return self.given | {one for op in gathered for one in op.writes}

    def bytes(self, values: frozenset[int] | set[int]) -> int:
        """Bytes of some values."""
        return sum(self.sizes[one] for one in values)

    def active(self, numbers: Sequence[int]) -> list[bool]:
        """For each of some values whether the gradient goes through it."""
        return [one in self._active for one in numbers]

    def _number(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _walk(self, jaxpr: Any, numbers: dict[Any, int]) -> list[int]:
        def number(atom: Any) -> int:
            if not isinstance(atom, Literal):
                return numbers[atom]
            made = self._number(0)
            self.known[made] = atom.val
            return made

        for eqn in jaxpr.eqns:
            reads = list(map(number, eqn.invars))
            inner = _plain_call(eqn)
            if inner is None:
                results = self._add(eqn, reads)
            else:
                opened = Programs.opened(inner)
                inside = dict(zip(opened.invars, reads, strict=True))
                for var, value in zip(opened.constvars, Programs.constants(inner), strict=True):
                    inside[var] = self._number(0)
                    self.known[inside[var]] = value
                results = self._walk(opened, inside)
            numbers.update(zip(eqn.outvars, results, strict=True))
        return list(map(number, jaxpr.outvars))

    def _add(self, eqn: JaxprEqn, reads: list[int]) -> list[int]:
        results = [self._number(nbytes(Programs.aval(var))) for var in eqn.outvars]
        operation = Operation(
            eqn, tuple(reads), tuple(results), seconds(eqn, cpu=self._cpu), _only_once(eqn), Needs(frozenset())
        )
        body = self._scanned(eqn, reads)
        goes = any(self.active(reads))
        if body is not None:
            operation.body, operation.turns = body, Programs.scan_counts(eqn)[2]
        self._note_sources(operation)
        if goes:
            for var, one in zip(eqn.outvars, results, strict=True):
                if np.issubdtype(Programs.aval(var).dtype, np.inexact) or _is_float(Programs.aval(var)):
                    self._active.add(one)
            operation.kept, direct = self._needs(operation)
            operation.held = self._held(operation, direct)
        for one in results:
            self.makers[one] = len(self.operations)
        self.operations.append(operation)
        return results

    def _scanned(self, eqn: JaxprEqn, reads: Sequence[int]) -> Chain | None:
        if eqn.primitive.name != "scan" or not any(self.active(reads)):
            return None
        consts, carries, _ = Programs.scan_counts(eqn)
        active = self.active(reads)
        body = eqn.params["jaxpr"]
        while True:
            # What is carried may become active in one turn, and all that follows from it in the next.
            chain = Chain(body, active, gathers=self._gathers, cpu=self._cpu)
            after = chain.active(chain.outputs[:carries])
            carried = [one or other for one, other in zip(active[consts : consts + carries], after, strict=True)]
            if carried == active[consts : consts + carries]:
                return chain
            active[consts : consts + carries] = carried

    def _needs(self, operation: Operation) -> tuple[Needs, Needs]:
        """The values that JAX keeps; and a choice with operands and results for what is cheap to make of them."""
        eqn, reads = operation.eqn, operation.reads
        active = tuple(self.active(reads))
        key = _key(eqn, active)
        if key not in self._cache:
            # The operation is kept alive with the answer: the key may have its parameters by their addresses.
            self._cache[key] = eqn, _residuals(eqn, active, CHEAP[self._cpu])
        ends = [*reads, *operation.writes]
        kept, direct = self._cache[key][1]
        return tuple(Needs(frozenset(ends[one] for one in places), rest) for places, rest in (kept, direct))  # pyright: ignore[reportReturnType]

    def _held(self, operation: Operation, direct: Needs) -> Needs:
        name = operation.eqn.primitive.name
        if name in Programs.ELEMENTWISE or name.startswith(("reduce_", "custom_jvp")):
            values = frozenset().union(*(self.sources(one) for one in direct.values))
        else:
            values = frozenset(self._views.get(one, one) for one in direct.values)
        return Needs(values, direct.further)

    def sources(self, value: int) -> frozenset[int]:
        """The values in memory that the compiler makes a value of where it is used."""
        return self._sources.get(value, frozenset((value,)))

    def view(self, value: int) -> int:
        """The value whose memory a value is."""
        return self._views.get(value, value)

    def _note_sources(self, operation: Operation) -> None:
        name = operation.eqn.primitive.name
        if name in VIEWS:
            (result,) = operation.writes
            self._views[result] = self.view(operation.reads[0])
            self._sources[result] = self.sources(operation.reads[0])
        elif is_cheap(operation.eqn, CHEAP[self._cpu]):
            made = frozenset().union(*(self.sources(one) for one in operation.reads))
            self._sources.update(dict.fromkeys(operation.writes, made))


def is_cheap(eqn: JaxprEqn, cheap: frozenset[str]) -> bool:
    """True if the compiler rather computes an operation again in each of its users."""
    name = eqn.primitive.name
    if name in cheap or name in VIEWS:
        return True
    inner = Programs.called(eqn) if name in ("custom_jvp_call", "jit") else None
    return inner is not None and all(is_cheap(each, cheap) for each in Programs.opened(inner).eqns)


def nbytes(aval: Any) -> int:
    """Bytes of a value of a program."""
    try:
        return math.prod(aval.shape) * aval.dtype.itemsize
    except (AttributeError, TypeError):
        return 0


def _is_float(aval: Any) -> bool:
    return jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact)


def _only_once(eqn: JaxprEqn) -> bool:
    # A sum over the replicas is never repeated: programs of other shapes, on other workers, would sum another number
    # of times.
    return bool(eqn.effects) or not Programs.repeatable(eqn) or Programs.mentions(eqn, AXIS)


def _plain_call(eqn: JaxprEqn) -> Any:
    """The program of a `jit` within the loss that says nothing of devices; None for all else."""
    if eqn.primitive.name not in ("jit", "pjit"):
        return None
    shardings = [*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ())]
    if any(type(one).__name__ != "UnspecifiedValue" for one in shardings):
        return None
    return Programs.called(eqn)


def _key(eqn: JaxprEqn, active: tuple[bool, ...]) -> Any:
    avals = tuple(_aval_key(var) for var in eqn.invars)
    params = tuple((name, _hashable(value)) for name, value in sorted(eqn.params.items()))
    return eqn.primitive, avals, active, params


def _aval_key(atom: Any) -> Any:
    # Of a literal the value counts: a power of it may be the derivative's own.
    return (str(atom.aval), str(atom.val)) if isinstance(atom, Literal) else str(atom.aval)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def _residuals(
    eqn: JaxprEqn, active: Sequence[bool], cheap: frozenset[str]
) -> tuple[tuple[tuple[int, ...], int], tuple[tuple[int, ...], int]]:
    """Places among operands and results of what the backward pass uses, and bytes of the rest; twice.

    The second time what is cheap to make of operands and results counts as these.
    """
    places = [place for place, differs in enumerate(active) if differs]

    def forward(*operands: Any) -> Any:
        def call(*chosen: Any) -> Any:
            whole = list(operands)
            for place, value in zip(places, chosen, strict=True):
                whole[place] = value
            return list(Programs.bind(eqn, whole))

        results, pull = jax.vjp(call, *(operands[place] for place in places))
        return results, jax.tree.leaves(pull)

    jaxpr = Programs.opened(jax.make_jaxpr(forward)(*map(_outline, eqn.invars)))
    ends = [*jaxpr.invars, *jaxpr.outvars[: len(eqn.outvars)]]
    where = {var: place for place, var in reversed(list(enumerate(ends))) if not isinstance(var, Literal)}
    residuals = {var for var in jaxpr.outvars[len(eqn.outvars) :] if not isinstance(var, Literal)}
    kept = tuple(where[var] for var in residuals if var in where)
    rest = [var for var in residuals if var not in where and var not in jaxpr.constvars]
    makers = {var: inner for inner in jaxpr.eqns for var in inner.outvars}
    direct, further = set(kept), 0
    for var in rest:
        traced = _made_of(var, makers, where, cheap)
        direct |= traced or set()
        further += 0 if traced is not None else nbytes(Programs.aval(var))
    size = sum(nbytes(Programs.aval(var)) for var in rest)
    return (kept, size), (tuple(direct), further)


def _made_of(var: Any, makers: dict[Any, Any], where: dict[Any, int], cheap: frozenset[str]) -> set[int] | None:
    if isinstance(var, Literal):
        return set()
    if var in where:
        return {where[var]}
    if var not in makers or not is_cheap(makers[var], cheap):
        return None if var in makers else set()
    parts = [_made_of(atom, makers, where, cheap) for atom in makers[var].invars]
    return None if None in parts else set().union(*(part for part in parts if part is not None))


def _outline(atom: Any) -> Any:
    aval = Programs.aval(atom)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
