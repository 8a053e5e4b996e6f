"""Works out each worker's share of a dataset, before a step is run, and shows it as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from jaxtribute.extending import Shard, Source
from jaxtribute.input import AutoShardPolicy, Explanation, WorkerReads


def shares(source: Source, shard: Shard, policies: Sequence[AutoShardPolicy], why: str) -> Explanation:
    """Works out what every worker reads of a dataset.

    Args:
      source: the dataset.
      shard: any worker's place.
      policies: the policy that was asked for, and the one that holds.
      why: the reason for that one.
    """
    asked, policy = policies
    length = source.length()
    shards = [Shard(shard.workers, worker, shard.replicas) for worker in range(shard.workers)]
    workers = tuple(_reads(source, policy, one, length) for one in shards)
    overlap: int | None = 0
    # Every worker reads everything: what a second one computes was computed before.
    if policy is AutoShardPolicy.OFF and shard.workers > 1:
        overlap = None if length is None else length[1]
    return Explanation(
        dataset=source.name,
        requested=asked.name,
        policy=policy.name,
        reason=why,
        workers=workers,
        batches=None if length is None else length[0],
        examples=None if length is None else length[1],
        overlap=overlap,
        left_over=source.left_over(),
    )


def _reads(source: Source, policy: AutoShardPolicy, shard: Shard, length: tuple[int, int] | None) -> WorkerReads:
    ids = tuple(range(shard.first, shard.first + shard.local))
    files = source.files()
    if shard.workers > 1 and policy is not AutoShardPolicy.DATA:  # each worker has batches of its own
        own, own_files = source, files
        if policy is AutoShardPolicy.FILE:
            own, own_files = source.by_file(shard), files[shard.worker :: shard.workers]
        elif policy is AutoShardPolicy.HINT:
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
    start, stop = shard.bounds(size)
    last_start, last_stop = shard.bounds(examples - size * (batches - 1))
    own_examples = (stop - start) * (batches - 1) + last_stop - last_start
    # A source that cannot skip the others' rows reads them too, and drops them.
    read = own_examples if source.reads == "share" or shard.workers == 1 else examples
    return WorkerReads(shard.worker, ids, files, (start, stop), own_examples, read)


def shares_table(report: Explanation) -> Table:
    """The report as a table of Rich."""
    asked = report.policy if report.requested == report.policy else f"{report.requested} → {report.policy}"
    table = Table(title=f"{report.dataset}, sharded by {asked}: {report.reason}", title_justify="left")
    for heading in ("worker", "replicas", "files", "rows of each batch", "examples", "read for that"):
        left = heading in ("files", "rows of each batch")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for row in report.workers:
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
        f"{_count(report.batches)} batches, {_count(report.examples)} examples a pass; "
        f"computed more than once: {_count(report.overlap)}; left over: {report.left_over}"
    )
    table.caption_justify = "left"
    return table


def _shown(names: tuple[str, ...]) -> str:
    return "\n".join(names[:4]) + (f"\n… {len(names) - 4} more" if len(names) > 4 else "") if names else "-"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"
