"""The files that a Grain dataset reads, and the dataset over some of them."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import copy
from typing import Any

import grain
from grain._src.python.dataset.transformations import interleave, mix
from grain._src.python.dataset.transformations import source as sources
from grain.experimental import ParquetIterDataset, TFRecordIterDataset

from jaxtribute.errors import InputError
from jaxtribute.input.grain_tree import Node, parents, rewrite, walk
from jaxtribute.input.splitting import Shard


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
        return rewrite(dataset, lambda node: _over(node, own) if node is reader else None)
    except ValueError as error:
        raise InputError(
            f"the files of this dataset cannot be shared out among {shard.workers} workers: {error}. "
            "HINT: slice files instead of records, or use AutoShardPolicy.DATA."
        ) from error


def _readers(node: Node) -> list[Node]:
    """The topmost nodes that read files."""
    if _names(node):
        return [node]
    return [reader for parent in parents(node) for reader in _readers(parent)]


def _names(node: Node) -> tuple[str, ...]:
    if isinstance(node, ParquetIterDataset):
        return tuple(map(str, node._paths))
    if isinstance(node, TFRecordIterDataset):
        return (str(node._path),)
    if isinstance(node, interleave.InterleaveIterDataset):
        return tuple(_name(node, number) for number in range(len(node._datasets)))
    if isinstance(node, mix.ConcatenateMapDataset):
        below = [_names_below(parent) for parent in parents(node)]
        return tuple(names[0] for names in below) if all(len(names) == 1 for names in below) else ()
    if isinstance(node, sources.SourceMapDataset):
        paths = getattr(node._source, "paths", ())
        return tuple(map(str, [paths] if isinstance(paths, str) else paths))
    return ()


def _names_below(node: Node) -> tuple[str, ...]:
    return tuple(name for reader in _readers(node) for name in _names(reader))


def _name(node: Any, number: int) -> str:
    """A name for one of the datasets that an interleaving reads. Making it from a `MapDataset` may open the file."""
    if isinstance(node._datasets, grain.MapDataset):
        return f"dataset {number} of {node}"
    names = _names_below(node._datasets[number])
    return names[0] if len(names) == 1 else f"dataset {number} of {node}"


def _over(node: Node, own: slice) -> Node:
    """A reader over some of its files."""
    if isinstance(node, (ParquetIterDataset, interleave.InterleaveIterDataset)):
        clone: Any = copy.copy(node)
        clone.set_slice(own)
        return clone
    if isinstance(node, mix.ConcatenateMapDataset):
        return grain.MapDataset.concatenate(list(parents(node)[own]))
    if isinstance(node, sources.SourceMapDataset):
        return grain.MapDataset.source(_source_over(node._source, own))
    raise ValueError(f"{node} reads a single file")


def _source_over(source: Any, own: slice) -> Any:
    paths = list(source.paths)
    if len(set(map(str, paths))) < len(paths):
        raise ValueError(f"{source!r} reads parts of one file more than once")
    if isinstance(source, grain.sources.ArrayRecordDataSource):
        return _array_records_over(source, own)
    rest = {"encoding": source.encoding} if hasattr(source, "encoding") else {}
    return type(source)(paths[own], **rest)


def _array_records_over(source: Any, own: slice) -> Any:
    given = source._reader_options_string
    options = dict(pair.split(":", 1) for pair in given.split(",")) if given else None
    result: Any = grain.sources.ArrayRecordDataSource(source.paths[own], options)
    if len(result) != sum(part.num_records for part in source._read_instructions[own]):
        raise ValueError(f"{source!r} reads only parts of its files")
    return result


class ShardHint(grain.MapDataset[Any]):
    """Marks where `AutoShardPolicy.HINT` shards a pipeline; until then it changes nothing."""

    _MUTATES_ELEMENT_SPEC = False

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        return self._parent[index] if isinstance(index, int) else self.slice(index)


def shard_hint(dataset: Any) -> Any:
    """Marks the place in a Grain pipeline where `AutoShardPolicy.HINT` shares it out among the workers.

    From that place on, worker `w` of `W` sees the elements `w`, `w + W`, ... only. Under every other policy, and
    with one worker, the mark changes nothing.

        dataset = grain.MapDataset.source(paths).pipe(jd.shard_hint).map(read).batch(256)

    Args:
      dataset: a `grain.MapDataset`.

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
