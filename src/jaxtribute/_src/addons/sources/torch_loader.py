"""PyTorch's `DataLoader`, where PyTorch is imported already; this package never imports it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxtribute.errors import InputError
from jaxtribute.extending import Batch, CountingStream, Shard, Source, as_batch, copied
from jaxtribute.extending import register_source as register
from jaxtribute.typing import Foreign, Json, Nest


def _torch() -> Any:
    return sys.modules.get("torch")


def _accepts(dataset: object) -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(dataset, data.DataLoader)


def _to_numpy(node: Nest) -> Nest:
    if isinstance(node, _torch().Tensor):
        return node.detach().cpu().numpy()
    if isinstance(node, dict):
        return {key: _to_numpy(value) for key, value in node.items()}
    # A named tuple takes its fields one by one, not as one sequence.
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(*map(_to_numpy, node))
    if isinstance(node, (list, tuple)):
        # PyTorch's default collation makes lists of a record's tuple.
        return tuple(_to_numpy(value) for value in node)
    return np.asarray(node)


class TorchSource(Source):
    """A PyTorch loader of batches.

    Its position is saved by the loader itself if it can (torchdata's `StatefulDataLoader`), and is a count of
    batches where the loader reads in order.
    """

    name = "torch.utils.data.DataLoader"

    def __init__(self, loader: Foreign) -> None:
        self._loader = loader
        sampler = type(getattr(loader, "sampler", None)).__name__
        # Without a generator of its own a sampler draws from PyTorch's, which goes on from pass to pass.
        self.shuffled_anew = sampler == "RandomSampler" and loader.sampler.generator is None

    def open(self, shard: Shard) -> _StatefulStream | CountingStream:
        """Starts a pass; a worker reads all of it, and its share is cut from each batch."""
        if hasattr(self._loader, "load_state_dict"):
            return _StatefulStream(self._loader)
        # Of all samplers only this one is known to give the same batches again.
        ordered = type(getattr(self._loader, "sampler", None)).__name__ == "SequentialSampler"
        return CountingStream(
            self._batches(),
            reiterable=ordered,
            why_not="this DataLoader shuffles, and would not give the same batches again (torchdata's "
            "StatefulDataLoader keeps its position)",
        )

    def _batches(self) -> Iterator[Nest]:
        for batch in self._loader:
            yield _to_numpy(batch)

    def static_rows(self) -> bool:
        """True if the pipeline drops its remainder."""
        return bool(getattr(self._loader, "drop_last", False))

    def length(self) -> tuple[int, int] | None:
        try:
            batches, examples, size = len(self._loader), len(self._loader.sampler), self._loader.batch_size
        except (TypeError, AttributeError):
            return None
        return batches, batches * size if self.static_rows() else examples

    def batch_size(self) -> int | None:
        return getattr(self._loader, "batch_size", None)

    def left_over(self) -> int:
        found = self.length()
        return len(self._loader.sampler) - found[1] if found is not None else 0


class _StatefulStream:
    def __init__(self, loader: Foreign) -> None:
        self._loader = loader
        self._iterator: Any = None

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = iter(self._loader)
        batch = as_batch(_to_numpy(next(self._iterator)))
        return Batch(copied(batch.tree), batch.total)

    def get_state(self) -> Any:
        """The position."""
        return self._loader.state_dict()

    def set_state(self, state: Json) -> None:
        """Goes to a position."""
        if self._iterator is not None:
            raise InputError(
                f"a {type(self._loader).__name__} takes a position only before its first batch. "
                "HINT: restore into a fresh iterator."
            )
        self._loader.load_state_dict(state)

    def close(self) -> None:
        """Closes what is read from."""
        self._iterator = None


register("torch.utils.data.DataLoader", _accepts, TorchSource)
