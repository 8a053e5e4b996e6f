"""Replicas of which islands have several: who has which, and sums in an order that does not depend on that.

The order is that of a tree: each half of the replicas is added up by itself, then both. An island adds up what it has
of the tree, and sends the sums of its subtrees: of four replicas on two islands each sends one, as without virtual
replicas, and of four on three islands one sends a sum and the others a replica's own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtribute._src.addons.elastic.membership import Island, View
from jaxtribute._src.addons.elastic.packing import Parcel, empty
from jaxtribute.errors import ClusterError
from jaxtribute.typing import Device, HostArray

Exchange = Callable[[dict[Island, Parcel], Sequence[Island]], dict[Island, memoryview] | None]
"""Sends other islands their parcels, and waits for those of some; None if it has failed."""


class Span(NamedTuple):
    """Replicas from the first to before the last."""

    start: int
    stop: int

    def halves(self) -> tuple[Span, Span]:
        """Both halves, of which the first is no larger."""
        middle = (self.start + self.stop) // 2
        return Span(self.start, middle), Span(middle, self.stop)


class Replicas(NamedTuple):
    """The replicas that a program sees.

    Attributes:
      virtual: their number, if it does not depend on the islands.
      devices: those of this island, and of each other one.
    """

    virtual: int | None = None
    devices: Sequence[Device | None] = (None,)

    @property
    def several(self) -> bool:
        """True if an island may have several."""
        return self.virtual is not None or len(self.devices) > 1

    def count(self, view: View) -> int:
        """Number of all."""
        return self.virtual or len(self.devices) * len(view.members)


def shares(view: View, count: int) -> dict[Island, Span]:
    """The replicas of each island: as evenly as can be, in the order of the islands."""
    each, more = divmod(count, len(view.members))
    starts = [place * each + min(place, more) for place in range(len(view.members) + 1)]
    return {member: Span(*starts[place : place + 2]) for place, member in enumerate(view.members)}


def subtrees(own: Span, whole: Span) -> list[Span]:
    """The largest parts of the tree over `whole` that lie in an island's replicas, in their order."""
    if own.start <= whole.start and whole.stop <= own.stop:
        return [whole]
    if own.stop <= whole.start or whole.stop <= own.start:
        return []
    first, second = whole.halves()
    return [*subtrees(own, first), *subtrees(own, second)]


def added(span: Span, parts: Mapping[Span, Sequence[HostArray]]) -> Sequence[HostArray]:
    """The sums of a part of the tree, of those that are there."""
    if span in parts:
        return parts[span]
    first, second = (added(half, parts) for half in span.halves())
    return [_sum(one, other) for one, other in zip(first, second, strict=True)]


def _sum(one: HostArray, other: HostArray) -> HostArray:
    total = empty(one.nbytes).view(one.dtype).reshape(one.shape)
    return np.add(one, other, out=total)


def summed(
    me: Island, view: View, replicas: Sequence[Sequence[HostArray]], count: int, what: str, exchange: Exchange
) -> Sequence[HostArray] | None:
    """The sums over the replicas of all islands; None if an exchange has failed.

    Args:
      me: this island.
      view: the islands.
      replicas: the arrays of each of this island's replicas.
      count: the number of all replicas.
      what: names the exchange.
      exchange: sends other islands their parcels, and waits for those of some; None if it has failed.
    """
    whole, owned = Span(0, count), shares(view, count)
    spans = {island: subtrees(own, whole) for island, own in owned.items()}
    others = [island for island in view.members if island != me]
    first = owned[me].start
    single = {Span(first + place, first + place + 1): arrays for place, arrays in enumerate(replicas)}
    parts = {span: added(span, single) for span in spans[me]}
    like = Parcel(next(iter(parts.values())), what)
    for number in range(max(map(len, spans.values()))):
        mine = spans[me][number : number + 1]
        senders = [other for other in others if number < len(spans[other])]
        got = exchange(dict.fromkeys(others, Parcel(parts[mine[0]], what)) if mine else {}, senders)
        if got is None:
            return None
        parts |= {spans[other][number]: like.opened(other, me, got[other]) for other in senders}
    return added(whole, parts)


Brought = Generator[tuple[Sequence[Any], str], Sequence[HostArray]]
"""A replica's run: it gives its arrays for each exchange, and is sent the sums."""


def together(
    runs: Sequence[Brought], exchange: Callable[[list[list[HostArray]], str], Sequence[HostArray]]
) -> list[Sequence[HostArray]]:
    """Runs an island's replicas, all to an exchange, and then on; returns the sums of each.

    Raises:
      ClusterError: they bring different values.
    """
    sums: list[Sequence[HostArray]] = []
    brought = [next(run, None) for run in runs]
    while any(brought):
        # All of them are being computed by now.
        arrays = [list(map(np.asarray, each[0])) if each else [] for each in brought]
        whats = [each[1] if each else "" for each in brought]
        _check_alike(
            [(what, [(a.dtype.name, a.shape) for a in each]) for what, each in zip(whats, arrays, strict=True)]
        )
        sums.append(exchange(arrays, whats[0]))
        brought = [_next(run, sums[-1]) for run in runs]
    return sums


def _check_alike(kinds: Sequence[object]) -> None:
    # NumPy would broadcast one to the other. Replicas of other islands are compared by the parcels' seals.
    other = next((each for each in kinds if each != kinds[0]), None)
    if other is not None:
        raise ClusterError(
            f"a replica brings {other} to a sum, and another one of the same island {kinds[0]}. HINT: what is summed "
            "must have one shape on all replicas, whatever their share of the batch; all_gather takes rows."
        )


def _next(run: Brought, sums: Sequence[HostArray]) -> tuple[Sequence[Any], str] | None:
    try:
        return run.send(sums)
    except StopIteration:
        return None
