"""`Exchanges`: what islands give each other within a step, and the sums of it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from jaxtribute._src.addons.elastic.attempt import Attempt
from jaxtribute._src.addons.elastic.courier import Ahead
from jaxtribute._src.addons.elastic.mail import Mail
from jaxtribute._src.addons.elastic.membership import Island, View
from jaxtribute._src.addons.elastic.packing import Parcel
from jaxtribute._src.addons.elastic.sums import Finish, begun
from jaxtribute._src.addons.elastic.traffic import Head
from jaxtribute._src.addons.elastic.virtual import summed
from jaxtribute.errors import ClusterError, JaxtributeError
from jaxtribute.typing import HostArray

R = TypeVar("R")

_MOMENT_S = 0.001


class Exchanges(ABC):
    """The exchanges of an island's present attempt at a step.

    Args:
      me: this island.
      mail: what islands send each other.
    """

    def __init__(self, me: Island, mail: Mail) -> None:
        self.me, self._mail = me, mail
        self._attempt: Attempt | None = None

    @property
    @abstractmethod
    def view(self) -> View:
        """The view that this island is in."""

    @abstractmethod
    def _await(
        self,
        ready: Callable[[], bool],
        what: str,
        whom: Callable[[], list[Island]] | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """Waits until `ready()`; errors say what the islands `whom()` are waited for."""

    def sum(self, arrays: Sequence[HostArray], what: str) -> list[HostArray]:
        """The sums of all islands' arrays; zeros if the step has failed, which the program finds out at its end."""
        return self.begin_sum(arrays, what)()

    def begin_sum(self, arrays: Sequence[Any], what: str) -> Callable[[], list[Any]]:
        """Begins to send arrays; returns what waits for their sums, to be called in the order of the beginnings."""
        begun = self._tried(lambda attempt: self._begun(attempt, arrays, what))

        def sums() -> list[Any]:
            found = self._tried(lambda _: begun() if begun is not None else None)
            return [np.zeros_like(array) for array in arrays] if found is None else found

        return sums

    def move(self) -> None:
        """Sends and receives what has been begun, for a moment."""
        self._mail.traffic.move(_MOMENT_S)

    def gather(self, arrays: Sequence[HostArray], what: str) -> list[list[HostArray]]:
        """All islands' arrays, in the order of their ranks; this one's alone if the step has failed."""
        return self.begin_gather(arrays, what, 1)()

    def begin_gather(self, arrays: Sequence[HostArray], what: str, islands: int) -> Callable[[], list[list[HostArray]]]:
        """Begins to give arrays to all; returns what waits for those of each, in the order of their ranks.

        If the step has failed, that gives this island's own in place of those of so many islands.
        """
        parcel = Parcel(arrays, what)
        head = self._tried(lambda attempt: self._posted(attempt, dict.fromkeys(attempt.view.members, parcel)))
        return lambda: self._parts(parcel, head) or [list(arrays)] * islands

    def collect(self, ahead: Ahead) -> list[list[HostArray]] | None:
        """All islands' arrays of what was sent before this step; None if the step has failed."""
        return self._parts(ahead.parcel, ahead.head)

    def _parts(self, parcel: Parcel, head: Head | None) -> list[list[HostArray]] | None:
        def parts(attempt: Attempt) -> list[list[HostArray]] | None:
            got = self._collected(attempt, head)
            return None if got is None else parcel.parts(attempt.view.members, self.me, got)

        return self._tried(parts)

    def sum_in_order(self, replicas: Sequence[Sequence[HostArray]], count: int, what: str) -> list[HostArray]:
        """The sums over replicas of which islands have several: the same bits whoever has which.

        Args:
          replicas: the arrays of each of this island's.
          count: the number of all.
          what: names the exchange.
        """
        # All must agree on the number: parts of another tree would be sums of other replicas.
        what = f"{what} of {count} replicas"
        sums = self._tried(
            lambda attempt: summed(self.me, attempt.view, replicas, count, what, partial(self._exchanged, attempt))
        )
        return [np.zeros_like(array) for array in replicas[0]] if sums is None else list(sums)

    def _tried(self, exchange: Callable[[Attempt], R | None]) -> R | None:
        """Results of an exchange; None if the step has failed."""
        attempt = self._attempt
        assert attempt is not None
        try:
            return exchange(attempt)
        except ClusterError as error:
            attempt.error = error
            return None

    def _begun(self, attempt: Attempt, arrays: Sequence[Any], what: str) -> Finish:
        post, collect = partial(self._posted, attempt), partial(self._collected, attempt)
        if not self._others(attempt.view):  # the sums are the arrays, which stay on the device where they are
            head = post({})
            return lambda: None if collect(head) is None else list(arrays)
        return begun(self.me, attempt.view.members, Parcel(arrays, what), post, collect)

    def _exchanged(
        self, attempt: Attempt, parcels: dict[Island, Parcel], senders: Sequence[Island] | None = None
    ) -> dict[Island, memoryview] | None:
        """Sends other islands their parcels, and waits for those of `senders`, or all; None if the view has changed."""
        return self._collected(attempt, self._posted(attempt, parcels), senders)

    def _posted(self, attempt: Attempt, parcels: dict[Island, Parcel]) -> Head | None:
        """Begins to send other islands their parcels; None if the step has failed."""
        if attempt.failed or attempt.error is not None:
            return None
        head = (attempt.view.number, attempt.step, attempt.place)
        attempt.place += 1
        self._mail.post({other: parcels[other] for other in self._others(attempt.view) if parcels}, head)
        return head

    def _collected(
        self, attempt: Attempt, head: Head | None, senders: Sequence[Island] | None = None
    ) -> dict[Island, memoryview] | None:
        """The parcels of `senders`, or of all others, once they are here; None if the view has changed."""
        has_failed = attempt.failed or attempt.error is not None
        got = None if head is None or has_failed else self._awaited(attempt, head, senders)
        if got is None:
            attempt.failed = True
        return got

    def _awaited(
        self, attempt: Attempt, head: Head, senders: Sequence[Island] | None = None
    ) -> dict[Island, memoryview] | None:
        others, start = self._others(attempt.view), time.monotonic()
        whom = others if senders is None else senders
        complete = lambda: self.view is not attempt.view or self._mail.is_complete(head, whom, others)  # noqa: E731
        missing = lambda: self._mail.missing(head, whom)  # noqa: E731
        try:
            self._await(complete, f"take part in step {attempt.step}", missing, self._mail.wait)
        except JaxtributeError as error:
            attempt.error = error
            return None
        return None if self.view is not attempt.view else self._mail.taken(head, start)

    def _others(self, view: View) -> list[Island]:
        return [member for member in view.members if member != self.me]
