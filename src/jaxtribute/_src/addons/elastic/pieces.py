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
from jaxtribute._src.addons.elastic.packing import groups
from jaxtribute.extending import Programs
from jaxtribute.typing import HostArray

EXCHANGE = "exchange between islands: "
"""Before what an exchange is for, in the name of its call in a program."""
Exchange = Callable[[list[HostArray], str], Sequence[HostArray]]


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
        buffer, offset = jnp.zeros(sum(sizes), arrays[0].dtype), 0
        for array, size in zip(arrays, sizes, strict=True):
            buffer = lax.dynamic_update_slice(buffer, array.reshape(-1), (offset,))
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
    """

    def __init__(self, eqns: Sequence[Any]) -> None:
        atoms = [atom for eqn in eqns for atom in eqn.invars]
        sums = [var for eqn in eqns for var in eqn.outvars]
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

        self.packed = [each for each in self.sent if isinstance(each, _Packed)]
        self.alone = [each for each in self.sent if not isinstance(each, _Packed)]


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


def _flat(program: Any) -> Any:
    """The program with every call that has exchanges inside written out."""

    def handle(eqn: Any, operands: list[Any]) -> Sequence[Any] | None:
        if _exchange_of(eqn) is not None or not _has_exchange(eqn):
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
      exchange: sums arrays over the islands.
      exchanged: called after the last exchange, before the piece behind it runs.
      apart: True if each exchange is to be made alone.
    """

    def __init__(self, program: Any, exchange: Exchange, exchanged: Callable[[], object], apart: bool) -> None:
        self._program, self._exchange, self._exchanged = program, exchange, exchanged
        whole = Programs.opened(program)
        self._inputs, self._outputs = list(whole.invars), list(whole.outvars)
        self._constants = dict(zip(whole.constvars, Programs.constants(program), strict=True))
        parts = parts_of(whole.eqns, lambda eqn: _exchange_of(eqn) is not None, apart)
        self._cuts = [_Cut(part.exchanges) for part in parts[:-1]]
        self._packs = {var: packed for cut in self._cuts for packed in cut.packed for var in packed.sums}
        self._pieces = self._compiled(parts)

    def _compiled(self, parts: Sequence[Part]) -> list[_Piece]:
        return self._pieces_of(parts, self._outputs)

    def _pieces_of(self, parts: Sequence[Part], outputs: Sequence[Any]) -> list[_Piece]:
        """The parts, compiled; `outputs` are those of the last."""
        pieces: list[_Piece] = []
        # From the end, as a piece puts out what is used behind it. The last one unpacks what the program puts out.
        needed = Programs.used_by([], outputs)
        unpacked = [var for var in needed if var in self._packs]
        for number, part in reversed(list(enumerate(parts))):
            packed = []
            if number < len(self._cuts):
                packed = self._cuts[number].packed
                needed |= Programs.used_by([], self._cuts[number].alone)
            pieces.insert(0, self._piece(part, needed, packed, unpacked))
            needed |= Programs.used_by([*part.eqns, *part.exchanges])
            unpacked = []
        return pieces

    @classmethod
    def of(
        cls, program: Any, exchange: Exchange, exchanged: Callable[[], object] = bool, *, apart: bool = False
    ) -> Pieces | None:
        """The program in pieces; None if it cannot be cut."""
        try:
            return cls(_flat(program), exchange, exchanged, apart)
        except _Whole:
            return None

    def _piece(self, part: Part, needed: dict[Any, None], packed: list[_Packed], unpacked: list[Any]) -> _Piece:
        """Compiles a part.

        Args:
          part: the part.
          needed: the values that are used behind it.
          packed: what it is to pack.
          unpacked: the sums that it is to put out, of those that came packed.
        """
        made = dict.fromkeys(var for eqn in part.eqns for var in eqn.outvars)
        outputs = [*(var for var in made if var in needed), *unpacked]
        small = [atom for each in packed for atom in each.atoms]
        used = Programs.used_by(part.eqns, [*unpacked, *small])
        inputs = [var for var in used if var not in made and var not in self._constants]
        run = Programs.as_function(Programs.piece(self._program, inputs, part.eqns, [*outputs, *small]))
        # Sums that came packed are taken so.
        taken = list(dict.fromkeys(self._packs.get(var, var) for var in inputs))

        def whole(*given: Any) -> list[Any]:
            values = dict(zip(taken, given, strict=True))
            for each in [each for each in taken if isinstance(each, _Packed)]:
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
        for number, piece in enumerate(self._pieces):
            self._run(piece, values)
            if number < len(self._cuts):
                cut = self._cuts[number]
                sums = self._exchange([np.asarray(_read(each, values)) for each in cut.sent], cut.what)
                values.update(zip(cut.got, sums, strict=True))
                if number == len(self._cuts) - 1:
                    self._exchanged()
        return self._results(values)

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

    def _compiled(self, parts: Sequence[Part]) -> list[_Piece]:
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
        for piece, cut in zip(self._pieces, self._cuts, strict=True):
            self._run(piece, values)
            sums = yield [_read(each, values) for each in cut.sent], cut.what
            values.update(zip(cut.got, sums, strict=True))

    def results(self, given: Sequence[Any], sums: Sequence[Sequence[HostArray]]) -> list[Any]:
        """The program's results, which are the same for all replicas."""
        values = self._begun(given)
        for cut, each in zip(self._cuts, sums, strict=True):
            values.update(zip(cut.got, each, strict=True))
        self._run(self._common, values)
        return self._results(values)


def _read(atom: Any, values: dict[Any, Any]) -> Any:
    # A literal; on JAX 0.10 it may not be looked for, as it has no hash.
    return atom.val if hasattr(atom, "val") else values[atom]
