"""From what Keras reads to what replicas get: batches, cut and placed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxtribute import DistributedDataset, DistributedIterator, PerReplica
from jaxtribute._src.addons.keras import multi_worker
from jaxtribute._src.addons.keras.apart import apart_of
from jaxtribute._src.addons.keras.internals import DataAdapter, class_weight_to_sample_weights, is_of_tensorflow
from jaxtribute._src.addons.keras.strings import check_batch
from jaxtribute._src.addons.keras.variables import on_servers
from jaxtribute.errors import ArgumentError
from jaxtribute.experimental import DatasetCreator
from jaxtribute.extending import BatchPlacer, Shard
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy


@dataclass(frozen=True, slots=True)
class Placed:
    """A leaf of a batch that lies on the replicas' devices already. Keras asks for the shape of the whole."""

    value: Any
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape over all replicas."""
        component = self.value.values[0] if isinstance(self.value, PerReplica) else self.value
        return (self.rows, *component.shape[1:])

    @property
    def dtype(self) -> Any:
        """The element type."""
        return (self.value.values[0] if isinstance(self.value, PerReplica) else self.value).dtype


class UnsizedAdapter(DataAdapter):
    """Base of what Keras reads without knowing how much it will be."""

    @property
    def num_batches(self) -> None:
        """Not known."""
        return

    @property
    def batch_size(self) -> None:
        """Not known."""
        return

    @property
    def has_partial_batch(self) -> None:
        """Not known."""
        return

    @property
    def partial_batch_size(self) -> None:
        """Not known."""
        return


class DistributedAdapter(UnsizedAdapter):
    """Lets Keras read a distributed dataset, or one pass over one.

    Args:
      dataset: the dataset or its iterator.
    """

    def __init__(self, dataset: DistributedDataset | DistributedIterator) -> None:
        self._dataset = dataset

    def get_jax_iterator(self) -> Iterator[Any]:
        """The batches, with `Placed` leaves."""
        for place, element in enumerate(self._dataset):
            rows = _rows(element)
            leaf: Callable[[Any], Placed] = lambda value, rows=rows: Placed(value, rows)  # noqa: E731
            batch = jax.tree.map(leaf, element, is_leaf=_is_split)
            if place == 0:
                check_batch(batch)
            yield batch

    get_numpy_iterator = get_jax_iterator


def weighted(x: Nest, class_weight: Mapping[int, float]) -> Any:
    """A dataset of Grain's or `compat.tf`, whose batches `(x, y)` get a third part: each example's weight, by class."""

    def with_weights(element: Nest) -> Any:
        if not isinstance(element, tuple) or len(element) != 2:
            raise ArgumentError(
                f"{class_weight=} with elements that are no (x, y). HINT: give the weights as the third part of the "
                "dataset's elements, and leave class_weight out."
            )
        return (*element, class_weight_to_sample_weights(np.asarray(element[1]), class_weight))

    if is_of_tensorflow(x):
        options = None if x.policy is None else x.options()
        return type(x)(x.pipeline.map(with_weights), options)  # records keep their numbers
    return x.map(with_weights)


def creator_of(x: Nest) -> DatasetCreator | None:
    """`x` as what makes datasets, if it is a function or such a one."""
    if isinstance(x, DatasetCreator):
        return x
    # A `PyDataset`, or a model of data, may be callable, too.
    is_function = callable(x) and not any(hasattr(type(x), name) for name in ("__getitem__", "__iter__"))
    return DatasetCreator(cast("Any", x)) if is_function else None


def adapted(x: Nest, strategy: Strategy) -> Any:
    """`x` as Keras can read it under `strategy`."""
    creator = creator_of(x)
    if creator is not None and on_servers(strategy):
        from jaxtribute._src.addons.keras.scheduling import ScheduledAdapter

        return ScheduledAdapter(creator, strategy)
    if creator is not None:
        x = strategy.distribute_datasets_from_function(creator.dataset_fn, creator.input_options)
    if multi_worker.several(strategy):
        x = multi_worker.sharded(x, strategy)
    return DistributedAdapter(x) if isinstance(x, (DistributedDataset, DistributedIterator)) else x


class Placer:
    """Cuts a batch of all replicas' examples and puts the slices on their devices.

    Args:
      strategy: whose replicas they are.
      compiled: True if a compiled program takes the batches.
      whole: True if each of several islands that train alone computes the whole batch.
    """

    def __init__(self, strategy: Strategy, compiled: bool, *, whole: bool = False) -> None:
        context, mesh = strategy.extended.input_context(), strategy.extended.mesh
        shard = Shard(context.num_input_pipelines, context.input_pipeline_id, mesh.size)
        self._place = BatchPlacer(mesh, shard, compiled=compiled)
        self._shared = shared_by_islands(strategy)
        self._apart = None if whole else apart_of(strategy)

    def __call__(self, batch: Nest) -> tuple[Any, int]:
        """The batch with `PerReplica` leaves (arrays, for one replica), and how many examples it has."""
        first = next(iter(jax.tree.leaves(batch)), None)
        # From a distributed dataset, which has cut and placed its batches already.
        if isinstance(first, Placed):
            return jax.tree.map(lambda leaf: leaf.value, batch), first.rows
        if self._apart is not None:
            return self._apart.take(batch, self._place)
        placed, rows = self._place(batch)
        return placed if self._shared is None else jax.tree.map(self._shared, placed), rows


def shared_by_islands(strategy: Strategy) -> Callable[[Any], Any] | None:
    """Function that makes a batch one that islands share; None for a strategy that has none."""
    return getattr(strategy.extended.mesh, "shared", None)


def _is_split(value: object) -> bool:
    return isinstance(value, PerReplica)


def _rows(element: Nest) -> int:
    """The number of examples of all replicas in a batch that is placed."""
    first = jax.tree.leaves(element, is_leaf=_is_split)[0]
    if not isinstance(first, PerReplica):
        return first.shape[0]
    if first.shapes is not None:
        return sum(shape[0] for shape in first.shapes)
    if first.is_tuple:
        return sum(part.shape[0] for part in first.values)
    return first.data.shape[0]
