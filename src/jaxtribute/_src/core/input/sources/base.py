"""The form of every dataset in this package: a `Source` of `Stream`s of batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import jax

from jaxtribute._src.core.input.batches import Batch, tree_spec
from jaxtribute._src.core.input.options import AutoShardPolicy
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.types import Nest
from jaxtribute.errors import InputError


class Pass(Protocol):
    """One pass over data. Used by one thread at a time."""

    def get_state(self) -> Any:
        """The position, as values that JSON can hold, or None if it cannot be told."""
        ...

    def set_state(self, state: Any) -> None:
        """Goes to a position. Raises `InputError` where that cannot be."""
        ...

    def close(self) -> None:
        """Releases threads and files. Further calls do nothing."""
        ...


class Stream(Pass, Protocol):
    """One pass over a dataset, batch by batch."""

    def __next__(self) -> Batch:
        """Reads the next batch; raises `StopIteration` at the end."""
        ...


class Source(ABC):
    """A dataset, as an adapter presents it. The base answers for the plainest one: no files, unknown length."""

    name = "dataset"
    """Name of the kind of dataset, for messages."""
    reads = "all"
    """Rows that a worker reads under DATA: `"share"`, only its own, or `"all"`, to keep its share."""
    to_share_files = "give at least one file a worker, use a Grain MapDataset"
    """Advice, so that workers share out the files, for messages."""
    finds_files = False
    """True if `by_file` may succeed although `files` knows none."""
    shuffled_anew = False
    """True if each pass, or each worker, may see another order."""

    @abstractmethod
    def open(self, shard: Shard) -> Stream:
        """Starts a pass. A source may leave out the rows that are not the shard's."""

    def at_epoch(self, epoch: int) -> Source:
        """The dataset as pass number `epoch` sees it, counted from 0: the same unless it shuffles by that number."""
        return self

    def first(self) -> Nest | None:
        """The first element, for its shapes and dtypes; None if there is none."""
        # A pass of its own: the one that trains begins with this element again.
        stream = self.open(Shard())
        try:
            return next(stream).tree
        except StopIteration:
            return None
        finally:
            stream.close()

    def static_rows(self) -> bool:
        """True if all batches are sure to have as many rows as the first."""
        return False

    def spec(self) -> Nest | None:
        """Shapes and dtypes of an element, as `ArraySpec`s with None for rows that vary; None if empty."""
        element = self.first()
        return None if element is None else tree_spec(element, static=self.static_rows())

    def general(self, spec: Nest) -> Nest:
        """The spec of every element, made of the first one's; an adapter may know of more axes that vary."""
        return spec

    def length(self) -> tuple[int, int] | None:
        """Batches of one pass, and examples in them; None if unknown or infinite."""
        return None

    def batch_size(self) -> int | None:
        """Examples in a full batch, if that is known without reading."""
        return None

    def left_over(self) -> int:
        """Examples that the pipeline itself drops at the end of a pass."""
        return 0

    def knows_end(self) -> bool:
        """True if all workers are sure to see the same number of batches without asking each other."""
        return False

    def files(self) -> tuple[str, ...]:
        """The files that the dataset reads, if an adapter can shard it by them."""
        return ()

    def by_file(self, shard: Shard) -> Source:
        """The dataset over this worker's files only."""
        raise _cannot(self, AutoShardPolicy.FILE, "it reads no files that can be told apart", self.to_share_files)

    def by_hint(self, shard: Shard) -> Source:
        """The dataset with its placeholder replaced by this worker's share."""
        raise _cannot(self, AutoShardPolicy.HINT, "it has no `shard_hint` placeholder")

    def policy(self) -> AutoShardPolicy | None:
        """The policy that the dataset itself carries, if any."""
        return None


def _cannot(source: Source, policy: AutoShardPolicy, why: str, advice: str = "") -> InputError:
    return InputError(
        f"AutoShardPolicy.{policy.name} cannot shard this {source.name}: {why}. HINT: {advice}{advice and ', '}use "
        "AutoShardPolicy.DATA, or shard it yourself in strategy.distribute_datasets_from_function."
    )


def has_arrays_only(tree: Nest) -> bool:
    """True if a tree has leaves, and all of them are arrays."""
    leaves = jax.tree.leaves(tree)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)
