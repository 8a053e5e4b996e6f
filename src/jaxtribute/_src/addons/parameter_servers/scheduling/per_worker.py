"""Input on the workers: a dataset that each makes for itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from jaxtribute import DistributedDataset
from jaxtribute._src.addons.parameter_servers.scheduling import pickling
from jaxtribute._src.addons.parameter_servers.scheduling.pickling import ByReference
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.extending import Context, Function, settings
from jaxtribute.typing import Nest

_numbers = itertools.count(1)


class PerWorkerValues(ByReference):
    """A value for each worker, which a scheduled function gets as its worker's own.

    Args:
      make: makes it, on the worker, when a function there first uses it.

    Source: `tf.distribute.experimental.coordinator.PerWorkerValues`.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.number: int = next(_numbers)
        self._blob = pickling.dumps(make)

    def reference(self) -> tuple[Any, tuple[Any, ...]]:
        """Reference by which the value is found on a worker."""
        return pickling.find_resource, (self.number, self._blob)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number}>"


class PerWorkerDataset(PerWorkerValues):
    """A dataset on each worker; `iter` gives what to pass to `ClusterCoordinator.schedule`.

    Args:
      dataset_fn: makes the dataset, on each worker.

    Source: `PerWorkerDataset` of `tf.distribute.coordinator`.
    """

    def __init__(self, dataset_fn: Callable[[], Any]) -> None:
        self._dataset_fn = settings.function("dataset_fn", dataset_fn)
        super().__init__(lambda: _distributed(dataset_fn))

    def __iter__(self) -> PerWorkerIterator:
        # Not `self`, which comes to a worker as the dataset that it stands for.
        return PerWorkerIterator(self._dataset_fn)

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of an element; makes the dataset here, once more."""
        return _distributed(self._dataset_fn).element_spec


class PerWorkerIterator(PerWorkerValues):
    """An iterator on each worker; `next` of it works in the scheduled function only.

    Args:
      dataset_fn: makes the dataset, on each worker.
    """

    def __init__(self, dataset_fn: Callable[[], Any]) -> None:
        self._dataset_fn = dataset_fn
        super().__init__(lambda: iter(_distributed(dataset_fn)))

    def __iter__(self) -> PerWorkerIterator:
        return self

    def made_here(self) -> Any:
        """Such an iterator, on the dataset made here, once more."""
        return iter(_distributed(self._dataset_fn))

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of an element; makes the dataset here, once more."""
        return _distributed(self._dataset_fn).element_spec

    def __next__(self) -> Any:
        raise ArgumentTypeError(
            "next was called on the coordinator for an iterator that is on the workers. "
            "HINT: pass the iterator to coordinator.schedule(step, args=(iterator,)) and call next(iterator) in step."
        )


def check_dataset_fn(dataset_fn: Callable[[], Any] | Iterable[Nest]) -> Callable[[], Any]:
    """The function that makes a dataset; a dataset itself is made one.

    Raises:
      ArgumentTypeError: neither a function nor a dataset.
    """
    # A compiled function gives arrays; the Python function in it can make a dataset.
    if isinstance(dataset_fn, Function):
        return dataset_fn.python_function
    if isinstance(dataset_fn, DistributedDataset):
        # What it reads travels; the worker distributes it again, as it has devices of its own.
        source = dataset_fn.source
        return lambda: source
    if callable(dataset_fn):
        return dataset_fn
    if hasattr(dataset_fn, "__iter__"):
        return lambda: dataset_fn
    raise ArgumentTypeError(
        f"dataset_fn is {dataset_fn!r} of type {type(dataset_fn).__name__}. "
        "HINT: pass a function without arguments that returns a dataset."
    )


def _distributed(dataset_fn: Callable[[], Any]) -> Any:
    """The dataset, as one whose iterators can be drawn from in a compiled step."""
    strategy = Context.current().strategy
    dataset = dataset_fn()
    if isinstance(dataset, DistributedDataset):
        return dataset
    return strategy.distribute_datasets_from_function(lambda _: dataset)
