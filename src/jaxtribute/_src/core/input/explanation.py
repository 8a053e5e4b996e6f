"""The report of each worker's share of a dataset; an add-on works it out."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from jaxtribute._src.core.points import PICTURES


@dataclass(frozen=True, slots=True)
class WorkerReads:
    """One worker's share in one pass.

    Attributes:
      worker: its number.
      replicas: the numbers of its replicas.
      files: the files that it reads; empty if the dataset reads none that are known.
      rows: the rows `[start, stop)` of each full global batch that its replicas compute, or None if each worker has
        batches of its own.
      examples: how many examples its replicas compute, or None if that is not known before reading.
      reads: how many examples it reads for that, or None likewise.
    """

    worker: int
    replicas: tuple[int, ...]
    files: tuple[str, ...]
    rows: tuple[int, int] | None
    examples: int | None
    reads: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The shares of all workers in a dataset.

    Attributes:
      dataset: what kind of dataset it is.
      requested: the policy asked for.
      policy: the policy that holds.
      reason: why that one.
      workers: what each worker reads.
      batches: global batches in one pass, or None if unknown or infinite.
      examples: examples in them, or None likewise.
      overlap: examples that more than one worker computes, or None if unknown.
      left_over: examples that the pipeline drops at the end of a pass.
    """

    dataset: str
    requested: str
    policy: str
    reason: str
    workers: tuple[WorkerReads, ...]
    batches: int | None
    examples: int | None
    overlap: int | None
    left_over: int

    def table(self) -> Table:
        """The report as a table of Rich."""
        return PICTURES.last().shares_table(self)

    def print(self) -> None:
        """Prints the table."""
        Console().print(self.table())
