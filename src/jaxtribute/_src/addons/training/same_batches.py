"""The first batch of workers that all go through the same ones: each compares it with the first worker's."""

from __future__ import annotations

import json
import warnings
from typing import Any
from weakref import WeakSet
from zlib import crc32

import jax
import numpy as np

from jaxtribute.errors import InputError
from jaxtribute.extending import Source, points
from jaxtribute.input import Agreements, KeyValueAgreements
from jaxtribute.typing import Nest

_COMMON = "though under AutoShardPolicy.DATA all go through the same batches and each takes its rows of them"
_HINT = (
    "HINT: make the dataset the same on every worker (seed its shuffles), or shard it yourself in "
    "distribute_datasets_from_function"
)


class _Comparing:
    """The stream of a worker's first pass, which compares its first batch with that of the first worker.

    Of two the later one finds what the other has told. So nobody waits, as for a worker that reads no data at all.
    """

    def __init__(self, stream: Any, source: Source, workers: KeyValueAgreements) -> None:
        self._stream = stream
        self._source = source
        self._workers: KeyValueAgreements | None = workers

    def __next__(self) -> Any:
        batch, workers = next(self._stream, None), self._workers
        if workers is not None:
            self._workers = None
            self._compare(batch, workers)
        if batch is None:
            raise StopIteration
        return batch

    def _compare(self, batch: Any, workers: KeyValueAgreements) -> None:
        # A number of batches that is not known is agreed on step by step.
        length = self._source.length() if self._source.knows_end() else None
        count, numbers = length and length[0], [] if batch is None else _numbers(self._whole(batch))
        for rank, text in sorted(workers.others(json.dumps([count, numbers])).items()):
            their_count, their_numbers = json.loads(text)
            if None not in (count, their_count) and count != their_count:
                raise InputError(
                    f"worker {rank} has {their_count} batches and worker {workers.worker} has {count}, {_COMMON}. "
                    f"{_HINT}."
                )
            pairs = [pair for pair in zip(their_numbers, numbers, strict=False) if None not in pair]
            if pairs and all(one != two for one, two in pairs):
                warnings.warn(
                    f"no array of the first batch of this {self._source.name} is the same on workers {rank} and "
                    f"{workers.worker}, {_COMMON}: some examples count twice, and others never. {_HINT}. If they "
                    "differ by random changes of each example alone, ignore this.",
                    stacklevel=2,
                )
                return

    def _whole(self, batch: Any) -> Nest:
        """The batch with the rows of other workers, which the stream may leave out."""
        rows = {leaf.shape[0] for leaf in jax.tree.leaves(batch.tree) if leaf.shape}
        return batch.tree if rows <= {batch.total} else self._source.first()

    def get_state(self) -> Any:
        return self._stream.get_state()

    def set_state(self, state: Any) -> None:
        self._workers = None
        self._stream.set_state(state)

    def close(self) -> None:
        self._stream.close()


def _numbers(tree: Nest) -> list[int | None]:
    """A number for each array; None for one whose rows are all alike, as a mask's, which tells of no order."""
    return [_number(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]


def _number(array: Any) -> int | None:
    if not array.ndim or not (array != array[:1]).any():
        return None
    if array.dtype == object:  # whose memory holds addresses
        return crc32(repr(array.tolist()).encode())
    return crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


_COMPARED = WeakSet[KeyValueAgreements]()
"""Those of datasets of which a pass has begun: in a later one each worker may be in another."""


def _comparing(stream: Any, source: Source, agree: Agreements) -> Any:
    if not isinstance(agree, KeyValueAgreements) or agree in _COMPARED:
        return stream
    _COMPARED.add(agree)
    return _Comparing(stream, source, agree)


points.FIRST_BATCHES.register(_comparing)
