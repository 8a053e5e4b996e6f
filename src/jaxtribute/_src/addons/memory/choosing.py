"""Chooses what a backward pass computes again: pieces of a chain, at the least time for a number of bytes.

A *plan* cuts a chain into pieces. Of a piece that is *kept*, the values that its backward pass needs are kept. Of a
piece that is *recomputed*, only those that it starts from are; its backward pass makes the others, needs memory for
them, and gives it back. A scan has a plan for its body.

For a price of a byte the cheapest plan is found exactly, from the first operation to the last. The lowest price whose
plan fits wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jaxtribute._src.addons.memory.chains import Chain, Operation
from jaxtribute.extending import Programs

_PLACES = 48
"""The most places at which a chain may be cut: time of the search grows with their square."""
_PRICES = 14
_NOWHERE = math.inf


@dataclass(frozen=True, slots=True)
class Piece:
    """Operations of a chain that stand behind each other.

    Attributes:
      start: the number of the first.
      stop: the number behind the last.
      recomputed: True if the backward pass computes them again.
      body: the plan of the body, if it is a scan whose body has one.
    """

    start: int
    stop: int
    recomputed: bool
    body: Plan | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A chain in pieces.

    Attributes:
      pieces: in the order of the chain.
      kept: bytes that are kept for the backward pass.
      work: bytes that the backward pass needs besides for the largest piece that it computes again.
      peak: the most bytes at a time, of both.
      seconds: time of what is computed again, in units that only compare.
      needs: values of the chain that are kept.
    """

    pieces: tuple[Piece, ...]
    kept: int
    work: int
    peak: int
    seconds: float
    needs: frozenset[int] = field(repr=False)

    @property
    def recomputes(self) -> bool:
        """True if anything is computed again."""
        return any(piece.recomputed or piece.body is not None for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class _Option:
    """The costs of one way of running a piece."""

    piece: Piece
    needs: frozenset[int]
    further: int
    work: int
    seconds: float
    size: int


class Search:
    """The plans of one chain, and of the scans in it.

    Args:
      chain: the chain.
      within: values that take no memory besides; None for those of the chain itself.
      body: True if the chain is the body of a scan, for each turn of which JAX itself keeps values.
    """

    def __init__(self, chain: Chain, within: frozenset[int] | None = None, *, body: bool = False) -> None:
        self.chain = chain
        self._body = body
        self._free = chain.free if within is None else within
        self.places = _places(chain, self._free)
        self._scans: dict[int, Search] = {}
        for number, operation in enumerate(chain.operations):
            if operation.body is not None:
                self._scans[number] = Search(operation.body, _fixed_in(operation), body=True)
        self._plain = [self._keep(start, stop) for start, stop in zip(self.places, self.places[1:], strict=False)]
        self._again = dict(self._recomputations())

    def everything(self) -> Plan:
        """The plan that keeps all."""
        return self._judged(self._plain)

    def best(self, budget: int) -> Plan:
        """The fastest plan that needs at most so many bytes; if there is none, the one that needs least."""
        plan = self.everything()
        if plan.peak <= budget:
            return plan
        fastest, _ = self._searched(budget, budget)
        if fastest is not None:
            return fastest
        # A piece that needs more than the budget may be a part of the plan that needs least, which no budget changes.
        return self._searched(plan.peak, budget)[1]

    def _searched(self, most: int, budget: int) -> tuple[Plan | None, Plan]:
        """The fastest plan that fits, and the one that needs least, of pieces that need at most `most` bytes."""
        least, fastest = self.everything(), None
        for limit in self._limits(most):
            low, high = -12.0, 6.0
            for _ in range(_PRICES):
                middle = (low + high) / 2
                plan = self.priced(10**middle, limit)
                least = min(least, plan, key=lambda one: one.peak)
                if plan.peak <= budget:
                    high = middle
                    if fastest is None or plan.seconds < fastest.seconds:
                        fastest = plan
                else:
                    low = middle
        return fastest, least

    def _limits(self, most: int) -> Iterator[float]:
        """Bytes that may be needed besides what is kept."""
        works = sorted({option.work for option in self.all_options()})
        yield math.inf
        if works:
            limit, least = float(min(works[-1], most)), max(works[0], 1)
            while limit > least:
                yield limit
                limit *= 0.7
            yield float(least)

    def all_options(self) -> Iterator[_Option]:
        """The ways to compute pieces again, those of scans included."""
        yield from self._again.values()
        for search in self._scans.values():
            yield from search.all_options()

    def priced(self, price: float, limit: float) -> Plan:
        """The cheapest plan.

        Args:
          price: of a byte, in the unit of time.
          limit: bytes that a piece may need while it is computed again.
        """
        count = len(self.places)
        best = [_NOWHERE] * count
        chosen: list[tuple[int, _Option] | None] = [None] * count
        best[0] = 0.0
        for stop in range(1, count):
            for start in range(stop):
                for option in self._options(start, stop, price, limit):
                    total = best[start] + option.seconds + price * option.size
                    if total < best[stop]:
                        best[stop], chosen[stop] = total, (start, option)
        options: list[_Option] = []
        place = count - 1
        while place > 0:
            found = chosen[place]
            if found is None:
                return self.everything()
            place, option = found
            options.insert(0, option)
        return self._judged(options)

    def _options(self, start: int, stop: int, price: float, limit: float) -> Iterator[_Option]:
        again = self._again.get((start, stop))
        if again is not None and again.work <= limit:
            yield again
        if stop != start + 1:
            return
        yield self._plain[start]
        number = self.places[start]
        if number in self._scans and self.places[stop] == number + 1:
            operation = self.chain.operations[number]
            plan = self._scans[number].priced(price * operation.turns, limit)
            if plan.recomputes:
                yield self._scanned(number, operation, plan)

    def _scanned(self, number: int, operation: Operation, plan: Plan | None) -> _Option:
        """A scan of which each turn goes by a plan; None: keeps all."""
        search = self._scans[number]
        plan = plan or search.everything()
        fixed = dict(zip(search.chain.inputs, operation.reads, strict=True))
        outside = frozenset(fixed[one] for one in plan.needs & _fixed_in(operation) if one in fixed)
        needs = frozenset(self.chain.view(one) for one in outside) - self._free
        turns = operation.turns
        piece = Piece(number, number + 1, recomputed=False, body=plan if plan.recomputes else None)
        return self._option(piece, needs, plan.kept * turns, plan.work, plan.seconds * turns)

    def _keep(self, start: int, stop: int) -> _Option:
        if start in self._scans and stop == start + 1:
            return self._scanned(start, self.chain.operations[start], None)
        needs: frozenset[int] = frozenset()
        further = 0
        for operation in self.chain.operations[start:stop]:
            own = operation.kept if self._body else operation.held
            needs |= own.values
            further += own.further
        if not self._body:
            needs -= self._free
        return self._option(Piece(start, stop, recomputed=False), needs, further)

    def _recomputations(self) -> Iterator[tuple[tuple[int, int], _Option]]:
        once = [operation.once for operation in self.chain.operations]
        for first, start in enumerate(self.places):
            for last in range(first + 1, len(self.places)):
                stop = self.places[last]
                if any(once[start:stop]):
                    break
                option = self._recompute(start, stop)
                if option is not None:
                    yield (first, last), option

    def _recompute(self, start: int, stop: int) -> _Option | None:
        """The cost of a piece that is computed again; None if its backward pass needs nothing."""
        operations = self.chain.operations[start:stop]
        wanted: set[int] = set()
        held: set[int] = set()
        further = 0
        for operation in operations:
            wanted |= operation.kept.values
            held |= operation.held.values
            further += operation.held.further
            if operation.kept.further:
                wanted.update(operation.reads)
        if not wanted and not further:
            return None
        time = 0.0
        for operation in reversed(operations):
            if not wanted.isdisjoint(operation.writes):
                wanted.update(operation.reads)
                time += operation.seconds
        inside = {one for operation in operations for one in operation.writes}
        needs = frozenset(self.chain.view(one) for one in wanted - inside)
        work = self.chain.bytes((held & inside) - self._free) + further
        needs -= frozenset(self.chain.known) if self._body else self._free
        return self._option(Piece(start, stop, recomputed=True), needs, 0, work, time)

    def _option(self, piece: Piece, needs: frozenset[int], further: int, work: int = 0, time: float = 0.0) -> _Option:
        return _Option(piece, needs, further, work, time, self.chain.bytes(needs - self._free) + further)

    def _judged(self, options: Sequence[_Option]) -> Plan:
        """The plan of some pieces, whose values count once."""
        needs: set[int] = set()
        kept = peak = work = 0
        time = 0.0
        for option in options:
            fresh = option.needs - needs
            needs |= option.needs
            counted = fresh - self._free
            kept += self.chain.bytes(counted) + option.further
            # Backwards, what later pieces kept has gone by the time a piece is computed again.
            peak = max(peak, kept + option.work)
            work = max(work, option.work)
            time += option.seconds
        return Plan(tuple(option.piece for option in options), kept, work, peak, time, frozenset(needs))


def _fixed_in(operation: Operation) -> frozenset[int]:
    """Values of a scan's body that are not kept for each turn: constants, and rows of arrays that are there anyway."""
    body = operation.body
    if body is None:
        return frozenset()
    consts, carries, _ = Programs.scan_counts(operation.eqn)
    return frozenset((*body.inputs[:consts], *body.inputs[consts + carries :])) | frozenset(body.known)


def _places(chain: Chain, free: frozenset[int]) -> list[int]:
    """The numbers of the operations before which a chain may be cut: where the fewest bytes are alive."""
    count = len(chain.operations)
    last: dict[int, int] = {}
    for number, operation in enumerate(chain.operations):
        last.update(dict.fromkeys(operation.reads, number))
    last.update(dict.fromkeys(chain.outputs, count))
    change = [0] * (count + 1)
    for number, operation in enumerate(chain.operations):
        for one in operation.writes:
            if one not in free and one in last:
                change[number + 1] += chain.sizes[one]
                change[min(last[one] + 1, count)] -= chain.sizes[one]
    forced = {0, count}
    for number, operation in enumerate(chain.operations):
        if operation.body is not None or operation.once:
            forced |= {number, number + 1}
    if count <= _PLACES:
        return list(range(count + 1))
    alive: list[int] = []
    now = 0
    for one in change:
        now += one
        alive.append(now)
    length = math.ceil(count / _PLACES)
    for start in range(0, count, length):
        block = range(start, min(start + length, count))
        forced.add(min(block, key=alive.__getitem__))
    return sorted(forced)
