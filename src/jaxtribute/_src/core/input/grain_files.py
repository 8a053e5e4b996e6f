"""The files that a Grain dataset reads, and the dataset over some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grain

from jaxtribute._src.core.input import grain_internals as internals
from jaxtribute._src.core.input.grain_internals import Node, SameElements, parents
from jaxtribute._src.core.input.grain_tree import rewrite, walk
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.errors import InputError


def files(dataset: Node) -> tuple[str, ...]:
    """The files of a dataset's only source of files, in order; none if it has no such source."""
    readers = _readers(dataset)
    return _names(readers[0]) if len(readers) == 1 else ()


def keep(dataset: Node, shard: Shard) -> Node:
    """The dataset over every `shard.workers`-th file, from number `shard.worker` on.

    Raises:
      InputError: if it reads no files, or from several sources, or a transformation refers to records by their
        number over all files.
    """
    readers = _readers(dataset)
    if len(readers) != 1:
        raise InputError(
            f"AutoShardPolicy.FILE needs one source of files in the pipeline, and {dataset} has {len(readers)}. "
            "HINT: read them with one TFRecord, ArrayRecord, Parquet or TextLineSource, or use AutoShardPolicy.DATA."
        )
    reader = readers[0]
    own = slice(shard.worker, None, shard.workers)
    try:
        return rewrite(dataset, lambda node: internals.over_files(node, own) if node is reader else None)
    except ValueError as error:
        raise InputError(
            f"the files of this dataset cannot be shared out among {shard.workers} workers: {error}. "
            "HINT: slice files instead of records, or use AutoShardPolicy.DATA."
        ) from error


def _readers(node: Node) -> list[Node]:
    """The topmost nodes that read files."""
    # What lies below it is how it reads these files, and would count them again.
    if _names(node):
        return [node]
    return [reader for parent in parents(node) for reader in _readers(parent)]


def _names(node: Node) -> tuple[str, ...]:
    interleaved = internals.interleaved(node)
    if interleaved is not None:
        return tuple(_name(node, interleaved, number) for number in range(len(interleaved)))
    if internals.is_concatenation(node):
        # Shared out by its parts, so each part must be one file.
        below = [_names_below(parent) for parent in parents(node)]
        return tuple(names[0] for names in below) if all(len(names) == 1 for names in below) else ()
    return internals.paths(node)


def _names_below(node: Node) -> tuple[str, ...]:
    return tuple(name for reader in _readers(node) for name in _names(reader))


def _name(node: Node, interleaved: Sequence[Node], number: int) -> str:
    """A name for one of the datasets that a node interleaves. Making it from a `MapDataset` may open the file."""
    if isinstance(interleaved, grain.MapDataset):
        return f"dataset {number} of {node}"
    names = _names_below(interleaved[number])
    return names[0] if len(names) == 1 else f"dataset {number} of {node}"


class ShardHint(SameElements):
    """Marks where `AutoShardPolicy.HINT` shards a pipeline; until then it changes nothing."""

    def __getitem__(self, index: int | slice) -> Any:
        return self.parents[0][index] if isinstance(index, int) else self.slice(index)


def shard_hint(dataset: Node) -> Any:
    """Marks the place in a Grain pipeline where `AutoShardPolicy.HINT` shares it out among the workers.

    From that place on, worker `w` of `W` sees the elements `w`, `w + W`, ... only. Under every other policy, and
    with one worker, the mark changes nothing.

        dataset = grain.MapDataset.source(paths).pipe(jd.shard_hint).map(read).batch(256)

    Args:
      dataset: a `grain.MapDataset`.

    Examples:
      >>> import grain
      >>> dataset = grain.MapDataset.source(range(4)).pipe(jd.shard_hint).map(lambda path: path * 10).batch(2)
      >>> options = jd.InputOptions(auto_shard_policy=jd.AutoShardPolicy.HINT)
      >>> batches = jd.MirroredStrategy(1).experimental_distribute_dataset(dataset, options)
      >>> [batch.tolist() for batch in batches]  # one worker reads all
      [[0, 10], [20, 30]]

    Source: `tf.data.experimental.SHARD_HINT`.
    """
    return ShardHint(dataset)


def at_hint(dataset: Node, shard: Shard) -> Node:
    """The dataset with each mark replaced by this worker's share.

    Raises:
      InputError: if it has no mark.
    """
    if not any(isinstance(node, ShardHint) for node in walk(dataset)):
        raise InputError(
            f"AutoShardPolicy.HINT needs a mark in the pipeline, and {dataset} has none. HINT: put "
            ".pipe(jd.shard_hint) where it shall be shared out, or use AutoShardPolicy.DATA."
        )

    def change(node: Node) -> Node | None:
        if isinstance(node, ShardHint):
            return parents(node)[0].slice(slice(shard.worker, None, shard.workers))
        return None

    return rewrite(dataset, change)
