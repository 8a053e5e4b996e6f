"""Hugging Face's streaming datasets, read by several workers and by one process, from checkpoint to checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jaxtribute as jd
import worker_programs
from jaxtribute.input import AutoShardPolicy, InputOptions

SHARDS, ROWS, BATCH = 3, 9, 8


def add_one(record: dict[str, Any]) -> dict[str, Any]:
    """What the dataset maps."""
    return {"x": record["x"] + 1}


def dataset(kind: str) -> Any:
    """A streaming dataset in batches; one with a shuffle buffer has no exact state of its own."""
    import datasets

    rows = datasets.Dataset.from_dict({"x": list(range(SHARDS * ROWS))})
    stream = rows.to_iterable_dataset(num_shards=SHARDS).map(add_one)
    if kind == "shuffled":
        stream = stream.shuffle(seed=1, buffer_size=5)
    return stream.batch(BATCH)


def go_on(strategy: jd.Strategy, kind: str, start: str | None, steps: int, end: str | None) -> list[list[list[int]]]:
    """Reads some elements from a checkpoint on, and writes another one.

    Args:
      strategy: reads the dataset, shared out among its workers.
      kind: the dataset.
      start: the checkpoint's folder; None begins at the first element.
      steps: how many elements to read at most.
      end: the folder of the checkpoint to write, if any.

    Returns:
      For each element the rows of each of this worker's replicas.
    """
    options = InputOptions(auto_shard_policy=AutoShardPolicy.DATA)
    iterator = iter(strategy.experimental_distribute_dataset(dataset(kind), options))
    checkpoint = jd.Checkpoint(data=iterator)
    if start is not None:
        checkpoint.read(Path(start))
    found: list[list[list[int]]] = []
    for _, element in zip(range(steps), iterator, strict=False):
        found.append([part.tolist() for part in strategy.experimental_local_results(element["x"])])
    if end is not None:
        checkpoint.write(Path(end), block=True)
    return found


def go_on_here(kind: str, start: str | None, steps: int, end: str | None) -> list[list[list[int]]]:
    """As `go_on`, on one of several workers."""
    return go_on(worker_programs.strategy(), kind, start, steps, end)
