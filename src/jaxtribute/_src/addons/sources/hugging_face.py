"""Datasets of Hugging Face's `datasets`, where that is imported already; this package never imports it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import grain
import jax
import numpy as np

from jaxtribute.errors import ArgumentTypeError, InputError
from jaxtribute.extending import Batch, MapSource, Shard, Source, as_batch, copied
from jaxtribute.extending import register_source as register
from jaxtribute.typing import Foreign, Json, Nest

_EXACT = frozenset(
    {
        "ArrowExamplesIterable",
        "CyclingMultiSourcesExamplesIterable",
        "ExamplesIterable",
        "FilteredExamplesIterable",
        "FormattedExamplesIterable",
        "HorizontallyConcatenatedMultiSourcesExamplesIterable",
        "MappedExamplesIterable",
        "RandomlyCyclingMultiSourcesExamplesIterable",
        "RebatchedArrowExamplesIterable",
        "RepeatExamplesIterable",
        "SelectColumnsIterable",
        "SkipExamplesIterable",
        "StepExamplesIterable",
        "TakeExamplesIterable",
        "VerticallyConcatenatedMultiSourcesExamplesIterable",
    }
)
"""Nodes of a streaming dataset whose saved state is exact. That of a shuffle buffer is not: its examples are lost."""


def _kind(*names: str) -> tuple[type, ...]:
    # A program may have a module of its own of this name.
    module: Any = sys.modules.get("datasets")
    found = [getattr(module, name, None) for name in names]
    return tuple(kind for kind in found if isinstance(kind, type))


def _as_arrays(name: str, column: Any) -> Nest:
    """A column of a batch as one array, or as a dict of them."""
    if isinstance(column, dict):
        return {key: _as_arrays(f"{name}.{key}", value) for key, value in column.items()}
    if isinstance(column, jax.Array):
        return column
    problem = "its rows have different shapes"
    try:
        array = np.asarray(column)
        # A column of arrays comes as one of objects, which are stacked where their shapes agree.
        if array.dtype == object and array.size and isinstance(array.flat[0], np.ndarray):
            array = np.stack(list(array.ravel())).reshape(*array.shape, *array.flat[0].shape)
    except ValueError:
        array = np.empty(0, object)
    else:
        # Strings pass, since a dataset may stay on the host; nothing can be done with other objects there either.
        if array.dtype != object or all(isinstance(value, (str, bytes)) for value in array.flat):
            return array
        problem = f"it holds values such as {next(iter(array.flat), None)!r:.80}"
    raise InputError(
        f"column {name!r} of the dataset makes no array: {problem}. HINT: pad it, or leave it out, in dataset.map(...) "
        "or dataset.remove_columns(...)."
    )


def _to_arrays(element: Foreign) -> Nest:
    if not isinstance(element, dict):
        raise InputError(
            f"the dataset's elements are of type {type(element).__qualname__}, and no dicts of columns. "
            "HINT: use with_format('numpy')."
        )
    return {name: _as_arrays(name, column) for name, column in element.items()}


class _Elements:
    """The elements of a map-style dataset, for Grain."""

    def __init__(self, dataset: Foreign) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Nest:
        return _to_arrays(self._dataset[int(index)])


class MapStyleSource(MapSource):
    """A `datasets.Dataset` of batches: random access, and a position that is a number of batches."""

    name = "datasets.Dataset"

    def __init__(self, dataset: Foreign) -> None:
        super().__init__(grain.MapDataset.source(_Elements(dataset)))


class StreamingSource(Source):
    """A `datasets.IterableDataset` of batches.

    Its position is the one that the library itself saves where that is exact, with a count of batches; where it is not,
    as with a shuffle buffer, batches are read again and dropped.
    """

    name = "datasets.IterableDataset"

    def __init__(self, dataset: Foreign) -> None:
        self._dataset = dataset

    def open(self, shard: Shard) -> _Stream:
        """Starts a pass; a worker reads all of it, and its share is cut from each batch."""
        split = getattr(self._dataset, "_distributed", None)
        if split is not None and split.world_size > 1 and shard.workers > 1:
            raise InputError(
                f"this dataset is part {split.rank} of {split.world_size} already, and its batches would be shared out "
                f"among {shard.workers} workers once more. HINT: leave split_dataset_by_node out, or distribute it "
                "with AutoShardPolicy.OFF."
            )
        return _Stream(self._dataset)

    def by_file(self, shard: Shard) -> Source:
        """The dataset over this worker's part of its shards, which are its files."""
        shards = self._dataset.num_shards
        if shards < shard.workers:
            raise InputError(
                f"AutoShardPolicy.FILE: the {shards} shard(s) of a {self.name} cannot be shared out among "
                f"{shard.workers} workers. HINT: split the data into at least {shard.workers} files, or use "
                "AutoShardPolicy.DATA."
            )
        own = self._dataset.shard(num_shards=shard.workers, index=shard.worker)
        # A shard begins at epoch 0, and so in another order than the dataset has now.
        own.set_epoch(self._dataset.epoch)
        return StreamingSource(own)


class _Stream:
    """One pass. Its state lies in the dataset's nodes, so that each pass has a copy of them."""

    def __init__(self, dataset: Foreign) -> None:
        nodes = list(_nodes(getattr(dataset, "_ex_iterable", None)))
        # Functions of the user, caches of file systems, and what these hold on to, are the same in all copies.
        own = {"_ex_iterable", "_epoch", "_state_dict"}
        shared: dict[int, Any] = {id(value): value for name, value in vars(dataset).items() if name not in own}
        for node in nodes:
            for part in ("function", "generate_examples_fn", "generate_tables_fn"):
                if hasattr(node, part):
                    shared[id(getattr(node, part))] = getattr(node, part)
        self._dataset = copy.deepcopy(dataset, shared)
        self._exact = all(type(node).__name__ in _EXACT for node in nodes)
        self._iterator: Iterator[Any] | None = None
        self._batches = 0

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        batch = as_batch(_to_arrays(next(self._iterator)))
        self._batches += 1
        return Batch(copied(batch.tree), batch.total)

    def get_state(self) -> dict[str, Any]:
        """The position."""
        state = self._dataset.state_dict() if self._exact else None
        return {"batches": self._batches, "epoch": self._dataset.epoch, "state": state}

    def set_state(self, state: Json) -> None:
        """Goes to a position."""
        if self._iterator is not None:
            raise InputError(
                f"a {StreamingSource.name} takes a position only before its first batch, and {self._batches} are read. "
                "HINT: restore into a fresh iterator."
            )
        # Another epoch is another order. The dataset would begin again, and not say so, with the state of another.
        self._dataset.set_epoch(state["epoch"])
        batches = int(state["batches"])
        if self._exact and state["state"] is not None:
            self._dataset.load_state_dict(state["state"])
            self._batches = batches
            return
        while self._batches < batches:
            try:
                next(self)
            except StopIteration:
                raise InputError(
                    f"the position is after {batches} batches, and the dataset has only {self._batches}. "
                    "HINT: restore onto the dataset that it was saved from."
                ) from None

    def close(self) -> None:
        """Closes what is read from."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


def _nodes(node: Foreign) -> Iterator[Any]:
    """A node of a streaming dataset's graph and those below."""
    yield node
    below = [node.ex_iterable] if hasattr(node, "ex_iterable") else getattr(node, "ex_iterables", [])
    for part in below:
        yield from _nodes(part)


def _refuse(dataset: Foreign) -> Source:
    raise ArgumentTypeError(
        f"a datasets.{type(dataset).__qualname__} with the splits {', '.join(map(str, dataset))} is several datasets. "
        "HINT: distribute one of them, e.g. splits['train'].with_format('numpy').batch(256)."
    )


register("datasets.Dataset", lambda dataset: isinstance(dataset, _kind("Dataset")), MapStyleSource)
register("datasets.IterableDataset", lambda dataset: isinstance(dataset, _kind("IterableDataset")), StreamingSource)
register(
    "one of the splits of a datasets.DatasetDict",
    lambda dataset: isinstance(dataset, _kind("DatasetDict", "IterableDatasetDict")),
    _refuse,
)
