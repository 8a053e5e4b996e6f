"""Finds the examples of a dataset that each replica and each worker read; drawn elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtribute.extending import slice_sizes
from jaxtribute.input import Explanation


@dataclass(frozen=True, slots=True)
class Part:
    """The rows `[start, stop)` of a batch that fall to one replica."""

    replica: int
    worker: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A batch, or several that are cut alike.

    Attributes:
      label: which batches.
      rows: examples in each.
      parts: one for each replica, empty ones too.
    """

    label: str
    rows: int
    parts: tuple[Part, ...]

    @property
    def sizes(self) -> list[int]:
        """Examples of each part."""
        return [part.stop - part.start for part in self.parts]

    def caption(self) -> str:
        """Numbers of the batches, and their sizes."""
        return f"{self.label}: {self.rows:,} examples" + (" each" if self.label.startswith("batches") else "")


@dataclass(frozen=True, slots=True)
class Reading:
    """Shares of a dataset.

    Attributes:
      title: the dataset and its sharding.
      explanation: what each worker reads.
      bars: how batches are cut; empty if each worker has batches of its own, or nothing is known of their size.
    """

    title: str
    explanation: Explanation
    bars: tuple[Bar, ...]

    @property
    def longest(self) -> int:
        """Examples in the largest batch, to whose length the others are drawn."""
        return max((bar.rows for bar in self.bars), default=1)


def reading(explanation: Explanation) -> Reading:
    """Works out the parts of every replica from what is known of the workers."""
    # Where each worker has batches of its own, no batch is cut for the replicas of all.
    shared = all(worker.rows is not None for worker in explanation.workers)
    bars: list[Bar] = []
    if shared and explanation.batches and explanation.examples is not None:
        workers: dict[int, int] = {}
        for one in explanation.workers:
            workers.update(dict.fromkeys(one.replicas, one.worker))
        full = max(worker.rows[1] for worker in explanation.workers if worker.rows is not None)
        last = explanation.examples - full * (explanation.batches - 1)
        even = explanation.batches - (last != full)
        if even:
            bars.append(_bar("batch 0" if even == 1 else f"batches 0 to {even - 1:,}", full, workers))
        if last != full:
            bars.append(_bar(f"batch {explanation.batches - 1:,}, the last", last, workers))
    title = f"{explanation.dataset}, sharded by {explanation.policy}: {explanation.reason}"
    return Reading(title, explanation, tuple(bars))


def _bar(label: str, rows: int, workers: dict[int, int]) -> Bar:
    parts: list[Part] = []
    start = 0
    for replica, size in enumerate(slice_sizes(rows, len(workers))):
        parts.append(Part(replica, workers[replica], start, start + size))
        start += size
    return Bar(label, rows, tuple(parts))
