"""`InputIterator`: what version 1 of `tf.distribute` iterates over a distributed dataset with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtribute._src.input.dataset import DistributedDataset
    from jaxtribute._src.input.iterator import DistributedIterator


class InputIterator:
    """Gives the elements of a distributed dataset one by one, and starts again when it is told to.

    Made by `Strategy.make_dataset_iterator` and `Strategy.make_input_fn_iterator`.

    Args:
      dataset: the distributed dataset.

    Source: `tf.distribute.InputIterator` of TensorFlow 1.
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._dataset = dataset
        self._iterator: DistributedIterator | None = None

    def initialize(self) -> list[Any]:
        """Goes to the first element. An iterator that has given none yet is there already.

        Returns:
          An empty list: there are no operations left to run, as there are in TensorFlow's graphs.

        Source: `InputIterator.initialize` of TensorFlow 1.
        """
        self.close()
        return []

    def get_next(self) -> Any:
        """Returns the next element: a tree of `PerReplica` values, or of plain arrays for one replica.

        Raises:
          OutOfRangeError: at the end of the data.

        Source: `InputIterator.get_next` of TensorFlow 1.
        """
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        return self._iterator.get_next()

    def close(self) -> None:
        """Ends the pass and its thread; the next `get_next` begins another."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()

    def __iter__(self) -> InputIterator:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        return next(self._iterator)
