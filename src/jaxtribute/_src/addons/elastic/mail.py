"""`Mail`: what the islands give to each step, sorted by the place in it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jaxtribute._src.addons.elastic.membership import Island
from jaxtribute._src.addons.elastic.packing import Parcel
from jaxtribute._src.addons.elastic.traffic import Head, Traffic
from jaxtribute._src.addons.elastic.waits import Waits
from jaxtribute.extending import Kinds


class Mail:
    """Messages of steps, to and from the other islands.

    Args:
      me: this island.
      traffic: how they travel.
    """

    def __init__(self, me: Island, traffic: Traffic) -> None:
        self.traffic = traffic
        self._waits = Waits(me)
        self._inbox: dict[Head, dict[Island, memoryview]] = {}

    def take(self, island: Island, head: Head, data: memoryview) -> None:
        """Keeps a message until it is asked for."""
        self._inbox.setdefault(head, {})[island] = data

    def post(self, parcels: dict[Island, Parcel], head: Head) -> None:
        """Begins to send each island its parcel."""
        ranks: dict[Parcel, list[int]] = {}
        for island, parcel in parcels.items():
            ranks.setdefault(parcel, []).append(island.rank)
        for parcel, receivers in ranks.items():
            self.traffic.post(receivers, head, parcel.frames)

    def wait(self, seconds: float) -> None:
        """Sends and receives, or waits for others, for a while: an event."""
        with Kinds.WAIT.during(self, "for the other islands"):
            self.traffic.move(seconds)

    def is_complete(self, head: Head, senders: Sequence[Island], receivers: Sequence[Island]) -> bool:
        """True if the senders' messages are here, and what this island has for the receivers has been sent."""
        return not self.missing(head, senders) and self.traffic.has_sent([other.rank for other in receivers])

    def missing(self, head: Head, others: Sequence[Island]) -> list[Island]:
        """The islands whose messages are not here."""
        here = self._inbox.get(head, {})
        return [other for other in others if other not in here]

    def taken(self, head: Head, since: float) -> dict[Island, memoryview]:
        """The messages, which this island has waited for since then."""
        got = self._inbox.pop(head, {})
        if got:
            # In the order in which they came.
            self._waits.note(next(reversed(got)), time.monotonic() - since)
        return got

    def forget(self, view: int, step: int) -> None:
        """Drops what belongs to earlier views or steps."""
        for head in [head for head in self._inbox if head[0] < view or head[1] < step]:
            del self._inbox[head]
