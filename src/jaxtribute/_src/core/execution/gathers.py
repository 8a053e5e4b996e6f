"""Rows that replicas of unequal shapes gather: each must know all the others' numbers of rows while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jaxtribute._src.core.execution.eager import NotSplittable

T = TypeVar("T")

_ROUNDS = 5
"""Number of tries: the length of what is gathered may depend on what has been gathered before."""


class Gathers:
    """The arrays that the replicas of one class gather, in the order in which its program comes to them.

    Args:
      replica: one of the class.
      rows: the number of rows that each replica has of a batch; empty if they have none.
      known: what an earlier trace has told: for each array every replica's length.
    """

    def __init__(self, replica: int, rows: Sequence[int], known: Sequence[tuple[int, ...]]) -> None:
        self._replica, self._rows, self._known = replica, rows, known
        self.own: list[int] = []
        """The replica's own lengths."""
        self.taken: list[tuple[int, ...]] = []
        """For each array the lengths on all replicas that the trace has gone on with."""

    def lengths(self, own: int) -> tuple[int, ...]:
        """Returns the length on every replica of the array that comes next, whose length on this one is `own`."""
        place, mine = len(self.own), self._rows[self._replica]
        self.own.append(own)
        # What is gathered has mostly a row for each row of the batch, or several.
        multiple = own // mine if mine and not own % mine else 1
        first = tuple(multiple * rows for rows in self._rows)
        self.taken.append(self._known[place] if place < len(self._known) else first)
        return self.taken[-1]

    @staticmethod
    def settled(
        trace: Callable[[int, Gathers], T],
        samples: Sequence[int],
        table: Sequence[int],
        rows: Sequence[int],
        misled: type[Exception] = NotSplittable,
    ) -> list[T]:
        """Traces each class of replicas, again with what has been found out if it was wrong about the others.

        Args:
          trace: traces the program of a replica.
          samples: one replica of each class.
          table: the class of each replica.
          rows: the number of rows that each replica has.
          misled: what a trace may raise that was told wrong lengths of the others.

        Raises:
          NotSplittable: a trace fails though it knows all lengths so far; or no lengths are found that fit.
        """
        known: list[tuple[int, ...]] = []
        for _ in range(_ROUNDS):
            ledgers = [Gathers(replica, rows, known) for replica in samples]
            traces: list[T] = []
            failed: Exception | None = None
            for replica, ledger in zip(samples, ledgers, strict=True):
                try:
                    traces.append(trace(replica, ledger))
                except misled as error:
                    failed = error
            columns = list(zip(*(ledger.own for ledger in ledgers), strict=False))
            known = [tuple(column[kind] for kind in table) for column in columns]
            if all(ledger.taken[: len(known)] == known for ledger in ledgers):
                if failed is not None:
                    raise failed
                return traces
        raise NotSplittable("arrays gathered from replicas of different shapes, whose lengths depend on one another")
