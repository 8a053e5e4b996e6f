"""A stream of elements as a Grain dataset."""

from __future__ import annotations

import itertools
from typing import Any

import grain

from jaxtribute._src.compat.tf.data.pipelines import Streamed


class GrainStream(grain.IterDataset[Any]):
    """The elements of a stream, which each iterator reads from the start.

    Args:
      stream: where they come from.
    """

    def __init__(self, stream: Streamed) -> None:
        super().__init__()
        self._stream = stream

    def __iter__(self) -> _Pass:
        return _Pass(self._stream)


class _Pass(grain.DatasetIterator[Any]):
    """One pass; its position is how many elements it has given."""

    def __init__(self, stream: Streamed) -> None:
        super().__init__()
        self._stream, self._elements, self._given = stream, iter(stream), 0

    def __next__(self) -> Any:
        element = next(self._elements)
        self._given += 1
        return element

    def get_state(self) -> dict[str, Any]:
        return {"given": self._given}

    def set_state(self, state: dict[str, Any]) -> None:
        self._given = state["given"]
        self._elements = itertools.islice(self._stream, self._given, None)
