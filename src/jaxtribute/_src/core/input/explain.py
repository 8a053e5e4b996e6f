"""The report of each worker's share of a dataset, made before a step is run."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from jaxtribute._src.core.input.policy import Sharding
from jaxtribute._src.core.input.sources import Source
from jaxtribute._src.core.input.splitting import Shard, worker_bounds


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
        asked = self.policy if self.requested == self.policy else f"{self.requested} → {self.policy}"
        table = Table(title=f"{self.dataset}, sharded by {asked}: {self.reason}", title_justify="left")
        for heading in ("worker", "replicas", "files", "rows of each batch", "examples", "read for that"):
            left = heading in ("files", "rows of each batch")
            table.add_column(heading, justify="left" if left else "right", overflow="fold")
        for row in self.workers:
            first, last = row.replicas[0], row.replicas[-1]
            table.add_row(
                str(row.worker),
                str(first) if first == last else f"{first}-{last}",
                _shown(row.files),
                "its own batches" if row.rows is None else f"{row.rows[0]}:{row.rows[1]}",
                _count(row.examples),
                _count(row.reads),
            )
        table.caption = (
            f"{_count(self.batches)} batches, {_count(self.examples)} examples a pass; "
            f"computed more than once: {_count(self.overlap)}; left over: {self.left_over}"
        )
        table.caption_justify = "left"
        return table

    def print(self) -> None:
        """Prints the table."""
        Console().print(self.table())


def _shown(names: tuple[str, ...]) -> str:
    return "\n".join(names[:4]) + (f"\n… {len(names) - 4} more" if len(names) > 4 else "") if names else "-"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def explain(source: Source, sharding: Sharding, shard: Shard) -> Explanation:
    """Works out what every worker reads of a dataset."""
    length = source.length()
    shards = [Shard(shard.workers, worker, shard.replicas) for worker in range(shard.workers)]
    workers = tuple(_reads(source, sharding, one, length) for one in shards)
    overlap: int | None = 0
    # Every worker reads everything: what a second one computes was computed before.
    if sharding.policy.name == "OFF" and shard.workers > 1:
        overlap = None if length is None else length[1]
    return Explanation(
        dataset=source.name,
        requested=sharding.requested.name,
        policy=sharding.policy.name,
        reason=sharding.reason,
        workers=workers,
        batches=None if length is None else length[0],
        examples=None if length is None else length[1],
        overlap=overlap,
        left_over=source.left_over(),
    )


def _reads(source: Source, sharding: Sharding, shard: Shard, length: tuple[int, int] | None) -> WorkerReads:
    ids = tuple(range(shard.first, shard.first + shard.local))
    files = source.files()
    if sharding.kind == "local":
        own, own_files = source, files
        if sharding.policy.name == "FILE":
            own, own_files = source.by_file(shard), files[shard.worker :: shard.workers]
        elif sharding.policy.name == "HINT":
            own = source.by_hint(shard)
        counts = own.length()
        examples = None if counts is None else counts[1]
        return WorkerReads(shard.worker, ids, own_files, None, examples, examples)
    if length is None or not length[0]:
        return WorkerReads(shard.worker, ids, files, None, None, None)
    batches, examples = length
    # Of the last, smaller batch the worker's share may be another one.
    # Where the size is not told, all batches but the last are taken to be alike.
    size = source.batch_size() or -(-examples // batches)
    start, stop = worker_bounds(size, shard)
    last_start, last_stop = worker_bounds(examples - size * (batches - 1), shard)
    own_examples = (stop - start) * (batches - 1) + last_stop - last_start
    # A source that cannot skip the others' rows reads them too, and drops them.
    read = own_examples if source.reads == "share" or shard.workers == 1 else examples
    return WorkerReads(shard.worker, ids, files, (start, stop), own_examples, read)
