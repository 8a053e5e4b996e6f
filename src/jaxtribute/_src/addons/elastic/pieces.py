"""`Pieces`: a program cut where islands exchange values, so that the exchanges are plain calls in Python.

A program that calls out of itself takes JAX's slow way in, a thread of XLA's for each call, and copies on both sides:
four times as long as to run the pieces one by one. A program whose exchanges lie in loops or conditions stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.addons.elastic.cutting import Part, parts_of
from jaxtribute._src.addons.elastic.factors import Factors, Joined, joined, makes_product
from jaxtribute._src.addons.elastic.packing import ALONE, array_bytes, groups
from jaxtribute.extending import Programs
from jaxtribute.typing import HostArray

EXCHANGE = "exchange between islands: "
"""Before what an exchange is for, in the name of its call in a program."""
Begin = Callable[[list[Any], str], Callable[[], Sequence[Any]]]
"""Begins an exchange: sends arrays, and returns the function that waits for their sums."""
Pump = Callable[[], object]
_STAGE = 1 << 20
"""Bytes that are sent as soon as they are there, while the rest of the part before an exchange is computed.

Where islands share a host: never, as there is no cable to wait for, and what sends them takes cores from the rest.
"""


class _Whole(Exception):  # noqa: N818
    """An exchange lies where the program cannot be cut."""


class _Packed:
    """Small values of a dtype that travel as one array, which the program itself packs and unpacks.

    Args:
      atoms: the values.
      sums: their sums.
    """

    def __init__(self, atoms: Sequence[Any], sums: Sequence[Any]) -> None:
        self.atoms, self.sums = list(atoms), list(sums)
        self._shapes = [Programs.aval(var).shape for var in self.sums]

    def packed(self, arrays: Sequence[Any]) -> Any:
        """One array of several."""
        sizes = [math.prod(shape) for shape in self._shapes]
        buffer, offset = jnp.zeros(sum(sizes), Programs.aval(self.sums[0]).dtype), 0
        for array, size in zip(arrays, sizes, strict=True):
            # Literals among them, as a number of rows is, are Python's.
            buffer = lax.dynamic_update_slice(buffer, jnp.asarray(array, buffer.dtype).reshape(-1), (offset,))
            offset += size
        return buffer

    def unpacked(self, buffer: Any) -> dict[Any, Any]:
        """The inverse of `packed`, of sums."""
        found, offset = dict[Any, Any](), 0
        for var, shape in zip(self.sums, self._shapes, strict=True):
            size = math.prod(shape)
            found[var] = lax.slice(buffer, (offset,), (offset + size,)).reshape(shape)
            offset += size
        return found


class _Cut:
    """Exchanges that are made together.

    Args:
      eqns: their calls.
      whole: the operations of the program.
      most: bytes that are sent as soon as they are there, while the rest is computed; None for all at once.
      islands: how many islands may send factors in place of products; 1 if they may not.
    """

    def __init__(self, eqns: Sequence[Any], whole: Sequence[Any], most: int | None, islands: int) -> None:
        atoms = [atom for eqn in eqns for atom in eqn.invars]
        sums = [var for eqn in eqns for var in eqn.outvars]
        products = joined(whole, atoms, sums, islands) if islands > 1 else {}
        self.joined = list(products.values())
        """Sums of products, which are computed behind the exchange."""
        self.factors = list(dict.fromkeys(atom for each in self.joined for atom in each.factors))
        """The values that they are computed of, which all islands are given."""
        atoms, sums = ([each for place, each in enumerate(all_) if place not in products] for all_ in (atoms, sums))
        self.what = ", ".join(dict.fromkeys(_exchange_of(eqn) or "" for eqn in eqns))
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in map(Programs.aval, sums)]
        self.sent: list[Any] = []
        """The values that are sent: atoms of the program, and packed ones."""
        self.got: list[Any] = []
        """Their sums."""
        for places in groups(shapes):
            packed = _Packed([atoms[place] for place in places], [sums[place] for place in places])
            alone = len(places) == 1
            self.sent.append(packed.atoms[0] if alone else packed)
            self.got.append(packed.sums[0] if alone else packed)
        self.stages = _stages(self.sent, math.inf if most is None else most)
        self.got = [self.got[place] for stage in self.stages for place in stage]
        self.packed = [each for each in self.sent if isinstance(each, _Packed)]
        self.alone = [each for each in self.sent if not isinstance(each, _Packed)]


def _stages(sent: Sequence[Any], most: float) -> list[list[int]]:
    """The places of values by when they are sent. They tell by sizes alone, which are the same on all islands.

    From the end: what belongs to the last layer is there first in a backward pass. Small ones come last.
    """
    sizes = [0 if isinstance(each, _Packed) else array_bytes(Programs.aval(each)) for each in sent]
    stages: list[list[int]] = [[]]
    for place in reversed(range(len(sent))):
        if sizes[place] >= ALONE:
            if sum(sizes[other] for other in stages[-1]) >= most:
                stages.append([])
            stages[-1].append(place)
    stages[-1] += [place for place, size in enumerate(sizes) if size < ALONE]
    return stages


class _Piece(NamedTuple):
    """Part of a program between two exchanges.

    Attributes:
      run: the compiled piece.
      inputs: the values that it takes, among them packed sums.
      outputs: those that it makes, and that are used behind it, and packed values to send.
    """

    run: Any
    inputs: list[Any]
    outputs: list[Any]


def _exchange_of(eqn: Any) -> str | None:
    """Purpose of an exchange, as its name says; None for other operations."""
    name = eqn.params.get("name")
    return name.removeprefix(EXCHANGE) if isinstance(name, str) and name.startswith(EXCHANGE) else None


def _has_exchange(eqn: Any) -> bool:
    if _exchange_of(eqn) is not None:
        return True
    inside = (Programs.opened(program).eqns for program in Programs.programs_in(eqn))
    return any(_has_exchange(each) for eqns in inside for each in eqns)


def _flat(program: Any, *, products: bool) -> Any:
    """The program with every call that has exchanges inside written out, and perhaps those with products inside."""

    def handle(eqn: Any, operands: list[Any]) -> Sequence[Any] | None:
        if _exchange_of(eqn) is not None or not (_has_exchange(eqn) or (products and makes_product(eqn))):
            return None
        inner = Programs.called(eqn)
        if inner is None:
            raise _Whole
        return Programs.evaluate(inner, operands, handle)

    inputs = [Programs.aval(var) for var in Programs.opened(program).invars]
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in inputs]
    return jax.make_jaxpr(lambda *given: Programs.evaluate(program, given, handle))(*shapes)


class Pieces:
    """A program cut at its exchanges.

    Args:
      program: one that `_flat` has written out.
      begin: begins to sum arrays over the islands.
      pump: lets what has been begun go on, for a moment; None if nothing is to be sent while the rest is computed.
      exchanged: called after the last exchange, before the piece behind it runs.
      apart: True if each exchange is to be made alone.
      factors: how islands give each other the factors of products; None if they sum the products.

    Attributes:
      is_pure: True if the program calls and prints nothing.
    """

    def __init__(
        self,
        program: Any,
        begin: Begin,
        pump: Pump | None,
        exchanged: Callable[[], object],
        apart: bool,
        factors: Factors | None,
    ) -> None:
        self._program, self._begin, self._pump, self._exchanged = program, begin, pump, exchanged
        self._factors = factors
        whole = Programs.opened(program)
        self._inputs, self._outputs = list(whole.invars), list(whole.outvars)
        self._constants = dict(zip(whole.constvars, Programs.constants(program), strict=True))
        parts = parts_of(whole.eqns, lambda eqn: _exchange_of(eqn) is not None, apart)
        islands = factors.islands if factors else 1
        self._cuts = [_Cut(part.exchanges, whole.eqns, _STAGE if pump else None, islands) for part in parts[:-1]]
        several = [each for cut in self._cuts for each in (*cut.packed, *cut.joined)]
        self._packs = {var: each for each in several for var in each.sums}
        self.is_pure = not any(eqn.effects for eqn in whole.eqns if _exchange_of(eqn) is None)
        self._pieces = self._compiled(parts)

    def _compiled(self, parts: Sequence[Part]) -> list[list[_Piece]]:
        return self._pieces_of(parts, self._outputs)

    def _pieces_of(self, parts: Sequence[Part], outputs: Sequence[Any]) -> list[list[_Piece]]:
        """The parts, compiled, each in as many pieces as its exchange has stages; `outputs` are those of the last."""
        pieces: list[list[_Piece]] = []
        # From the end, as a piece puts out what is used behind it. The last one unpacks what the program puts out.
        needed = Programs.used_by([], outputs)
        unpacked = [var for var in needed if var in self._packs]
        for number, part in reversed(list(enumerate(parts))):
            packed, stages = [], [part.eqns]
            if number < len(self._cuts):
                cut = self._cuts[number]
                packed, stages = cut.packed, _staged(part.eqns, cut)
                sent = Programs.used_by([], [*cut.alone, *cut.factors])
                needed |= sent
                # A sum that came packed, and is to be summed again as it is.
                unpacked = [var for var in sent if var in self._packs]
            pieces.insert(0, [])
            for stage, eqns in reversed(list(enumerate(stages))):
                pieces[0].insert(0, self._piece(Part(eqns, []), needed, packed, [] if stage else unpacked))
                # Also what is packed, which an earlier stage may have made.
                needed |= Programs.used_by(eqns, [atom for each in packed for atom in each.atoms])
                packed = []
            needed |= Programs.used_by(part.exchanges)
        return pieces

    @classmethod
    def of(
        cls,
        program: Any,
        begin: Begin,
        pump: Pump | None = None,
        exchanged: Callable[[], object] = bool,
        *,
        apart: bool = False,
        factors: Factors | None = None,
    ) -> Pieces | None:
        """The program in pieces; None if it cannot be cut."""
        try:
            return cls(_flat(program, products=factors is not None), begin, pump, exchanged, apart, factors)
        except _Whole:
            return None

    def _piece(self, part: Part, needed: dict[Any, None], packed: list[_Packed], unpacked: list[Any]) -> _Piece:
        """Compiles a part.

        Args:
          part: the part.
          needed: the values that are used behind it.
          packed: what it is to pack.
          unpacked: the sums that it is to put out, of those that came packed or as factors.
        """
        made = dict.fromkeys(var for eqn in part.eqns for var in eqn.outvars)
        outputs = [*(var for var in made if var in needed), *unpacked]
        small = [atom for each in packed for atom in each.atoms]
        used = Programs.used_by(part.eqns, [*unpacked, *small])
        inputs = [var for var in used if var not in made and var not in self._constants]
        run = Programs.as_function(Programs.piece(self._program, inputs, part.eqns, [*outputs, *small]))
        # Sums that came packed, or as factors, are taken so.
        taken = list(dict.fromkeys(self._packs.get(var, var) for var in inputs))

        def whole(*given: Any) -> list[Any]:
            values = dict(zip(taken, given, strict=True))
            for each in [each for each in taken if isinstance(each, _Packed | Joined)]:
                values.update(each.unpacked(values[each]))
            results = run(*[values[var] for var in inputs])
            rest = iter(results[len(outputs) :])
            return [*results[: len(outputs)], *(each.packed([next(rest) for _ in each.atoms]) for each in packed)]

        return _Piece(jax.jit(whole), taken, [*outputs, *packed])

    def _begun(self, given: Sequence[Any]) -> dict[Any, Any]:
        """The values that are known before anything runs."""
        return {**self._constants, **dict(zip(self._inputs, given, strict=True))}

    @staticmethod
    def _run(piece: _Piece, values: dict[Any, Any]) -> None:
        if piece.outputs:
            results = piece.run(*[values[var] for var in piece.inputs])
            values.update(zip(piece.outputs, results, strict=True))

    def __call__(self, *given: Any) -> list[Any]:
        """The program's results."""
        values = self._begun(given)
        for number, stages in enumerate(self._pieces):
            for piece in stages:
                self._run(piece, values)
            if number < len(self._cuts):
                self._exchange(self._cuts[number], values)
                if number == len(self._cuts) - 1:
                    self._exchanged()
        return self._results(values)

    def _exchange(self, cut: _Cut, values: dict[Any, Any]) -> None:
        """Makes the exchanges of a cut: sums, and what sums of products are computed of."""
        begun = [self._begun_stage(cut, stage, values) for stage in cut.stages]
        factors = self._factors if cut.factors else None
        gathering = factors and factors.begun([values[atom] for atom in cut.factors], cut.what)
        sums = [total for finish in begun for total in finish()]
        values.update(zip(cut.got, sums, strict=True))
        if gathering is not None:
            rows = dict(zip(cut.factors, zip(*gathering(), strict=True), strict=True))
            values.update({each: [rows[atom] for atom in each.factors] for each in cut.joined})

    def _begun_stage(self, cut: _Cut, stage: list[int], values: dict[Any, Any]) -> Callable[[], Sequence[Any]]:
        """Begins to send values as soon as they are computed, while later ones still are."""
        given: list[Any] = [_read(cut.sent[place], values) for place in stage]
        if self._pump is not None and len(cut.stages) > 1:
            # What is on its way goes on meanwhile.
            while not all(array.is_ready() for array in given if hasattr(array, "is_ready")):
                self._pump()
        # Literals among them are Python's or NumPy's.
        return self._begin([each if isinstance(each, jax.Array) else np.asarray(each) for each in given], cut.what)

    def _results(self, values: dict[Any, Any]) -> list[Any]:
        """The results, each an array of JAX's and of its own, though a value may be given out twice."""
        taken: set[int] = set()
        results: list[Any] = []
        for atom in self._outputs:
            value = _read(atom, values)
            if not isinstance(value, jax.Array) or id(value) in taken:
                value = jnp.array(value)
            taken.add(id(value))
            results.append(value)
        return results


class ReplicaPieces(Pieces):
    """A program that several replicas of an island run, cut at its exchanges.

    What comes before the last exchange each replica computes with its own rows. Behind it the island computes once what
    is the same for all, from the program's inputs and the sums.
    """

    def _compiled(self, parts: Sequence[Part]) -> list[list[_Piece]]:
        results = Programs.used_by([], self._outputs)
        needed, eqns = dict(results), list[Any]()
        last = {id(eqn) for eqn in parts[-1].eqns}
        for eqn in reversed([eqn for part in parts for eqn in part.eqns]):
            if (id(eqn) in last and eqn.effects) or any(var in needed for var in eqn.outvars):
                eqns.insert(0, eqn)
                needed |= Programs.used_by([eqn])
        packed = [var for var in results if var in self._packs]
        self._common = self._piece(Part(eqns, []), results, [], packed)
        return self._pieces_of([*parts[:-1], Part([], [])], [])[:-1]

    def differing(self, place: int) -> list[int]:
        """The outputs that depend on an input, but for sums: by their numbers, or -1 for an effect."""
        whole = Programs.opened(self._program)
        changed: dict[Any, None] = {whole.invars[place]: None}
        for eqn in whole.eqns:
            if _exchange_of(eqn) is None and any(var in changed for var in Programs.used_by([eqn])):
                changed |= dict.fromkeys(eqn.outvars)
        outputs = [number for number, var in enumerate(self._outputs) if Programs.used_by([], [var]).keys() & changed]
        return outputs or ([-1] if whole.invars[place] in self._common.inputs else [])

    def contributions(self, given: Sequence[Any]) -> Generator[tuple[list[Any], str], Sequence[HostArray]]:
        """Runs a replica: gives what it brings to each exchange, as it is being computed, and takes the sums."""
        values = self._begun(given)
        for stages, cut in zip(self._pieces, self._cuts, strict=True):
            for piece in stages:
                self._run(piece, values)
            sent = [cut.sent[place] for stage in cut.stages for place in stage]
            sums = yield [_read(each, values) for each in sent], cut.what
            values.update(zip(cut.got, sums, strict=True))

    def results(self, given: Sequence[Any], sums: Sequence[Sequence[HostArray]]) -> list[Any]:
        """The program's results, which are the same for all replicas."""
        values = self._begun(given)
        for cut, each in zip(self._cuts, sums, strict=True):
            values.update(zip(cut.got, each, strict=True))
        self._run(self._common, values)
        return self._results(values)


def _staged(eqns: list[Any], cut: _Cut) -> list[list[Any]]:
    """The operations before an exchange: for each of its stages what that needs and no earlier one does."""
    stages: list[list[Any]] = []
    for stage in cut.stages[:-1]:
        needed = Programs.used_by([], [cut.sent[place] for place in stage])
        found, rest, effect = list[Any](), list[Any](), False
        for eqn in reversed(eqns):
            # Those with effects stay in their order.
            if any(var in needed for var in eqn.outvars) or (effect and eqn.effects):
                needed |= Programs.used_by([eqn])
                effect |= bool(eqn.effects)
                found.append(eqn)
            else:
                rest.append(eqn)
        stages.append(found[::-1])
        eqns = rest[::-1]
    return [*stages, eqns]


def _read(atom: Any, values: dict[Any, Any]) -> Any:
    # A literal; on JAX 0.10 it may not be looked for, as it has no hash.
    return atom.val if hasattr(atom, "val") else values[atom]
