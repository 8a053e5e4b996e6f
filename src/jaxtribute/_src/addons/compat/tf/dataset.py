"""`tf.data.Dataset` on Grain, and its options."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grain
import jax
import numpy as np

from jaxtribute import AutoShardPolicy
from jaxtribute._src.addons.compat.tf import iterators
from jaxtribute._src.addons.compat.tf.conversion import as_tensor
from jaxtribute._src.addons.compat.tf.pipelines import GrainStream, Indexed, Pipeline, Streamed
from jaxtribute._src.addons.compat.tf.specs import TensorSpec
from jaxtribute._src.addons.compat.tf.transformations import Transformations, to_host
from jaxtribute.errors import ArgumentError, InputError
from jaxtribute.extending import IterableSource, MapSource, Source
from jaxtribute.extending import register_source as register
from jaxtribute.input import make_numpy_dataset
from jaxtribute.typing import ArrayLike, DType, Leaf, Nest


class DistributeOptions:
    """Division of a dataset among workers. Source: `tf.data.experimental.DistributeOptions`."""

    def __init__(self) -> None:
        self.auto_shard_policy = AutoShardPolicy.AUTO
        self.num_devices: int | None = None


class Options:
    """Options of a dataset. All attributes are accepted; only `experimental_distribute` has a meaning here.

    Source: `tf.data.Options`.
    """

    def __init__(self) -> None:
        self.experimental_distribute: DistributeOptions = DistributeOptions()
        self.threading: Any = _Anything()
        self.experimental_optimization: Any = _Anything()
        self.deterministic: bool | None = None


class _Anything:
    """Takes any attribute."""


class Sources:
    """A part of `Dataset`: the functions that make one."""

    @staticmethod
    def range(*args: Leaf, output_type: DType = np.int64, name: str | None = None) -> Dataset:
        """Makes a dataset of numbers, by the arguments of Python's `range`. Source: `tf.data.Dataset.range`."""
        return Dataset(Indexed(make_numpy_dataset(np.arange(*args, dtype=output_type)), fixed=True))

    @staticmethod
    def from_tensor_slices(tensors: Nest, name: str | None = None) -> Dataset:
        """Makes a dataset of the rows of arrays: numbers in lists are an array, tuples and dictionaries structure.

        Source: `tf.data.Dataset.from_tensor_slices`.
        """
        return Dataset(Indexed(make_numpy_dataset(to_host(tensors)), fixed=True))

    @staticmethod
    def from_tensors(tensors: Nest, name: str | None = None) -> Dataset:
        """Makes a dataset of one element. Source: `tf.data.Dataset.from_tensors`."""
        return Dataset(Indexed(make_numpy_dataset(jax.tree.map(lambda leaf: leaf[None], to_host(tensors))), fixed=True))

    @staticmethod
    def from_generator(
        generator: Callable[..., Iterable[Any]],
        output_types: Nest = None,
        output_shapes: object = None,
        args: tuple[Any, ...] = (),
        output_signature: Nest = None,
        name: str | None = None,
    ) -> Dataset:
        """Makes a dataset of what a generator gives; each pass calls it again.

        Args:
          generator: a function that returns an iterable of elements.
          output_types: the elements' types, in their structure.
          output_shapes: accepted for compatibility.
          args: its arguments.
          output_signature: the elements' specs, in their structure; instead of `output_types`.
          name: accepted for compatibility.

        Source: `tf.data.Dataset.from_generator`.
        """
        types = output_types
        if output_signature is not None:
            # Only types matter: shapes are those of what the generator gives.
            types = jax.tree.map(lambda spec: spec.dtype, output_signature, is_leaf=_is_spec)

        def elements(epoch: int) -> Iterator[Nest]:
            for element in generator(*args):
                host = to_host(element)
                yield host if types is None else jax.tree.map(lambda kind, leaf: leaf.astype(kind), types, host)

        return Dataset(Streamed(elements))

    @staticmethod
    def zip(*datasets: Nest, name: str | None = None) -> Dataset:
        """Makes a dataset of tuples, one element of each dataset. Source: `tf.data.Dataset.zip`."""
        # Given one by one or in a nest: TensorFlow takes both.
        parts: Any = datasets[0] if len(datasets) == 1 and not isinstance(datasets[0], Dataset) else datasets
        leaves, tree = jax.tree.flatten(parts, is_leaf=lambda node: isinstance(node, Dataset))

        def rows(epoch: int) -> Iterator[Nest]:
            passes = [leaf.pipeline.open(epoch) for leaf in leaves]
            return map(tree.unflatten, zip(*passes, strict=False))

        return Dataset(Streamed(rows))

    @staticmethod
    def list_files(file_pattern: str | Iterable[str], shuffle: bool | None = None, seed: int | None = None) -> Dataset:
        """Makes a dataset of the names of files that match patterns, in order unless `shuffle` is True.

        Raises:
          ArgumentError: no file matches.

        Source: `tf.data.Dataset.list_files`, which shuffles by default.
        """
        patterns = [file_pattern] if isinstance(file_pattern, str) else list(file_pattern)
        found = (glob.glob(pattern) for pattern in patterns)  # noqa: PTH207 (a pattern may be absolute)
        names = sorted(itertools.chain.from_iterable(found))
        if not names:
            raise ArgumentError(f"no file matches {patterns}. HINT: check the pattern and the working directory.")
        dataset = Dataset.from_tensor_slices(names)
        return dataset.shuffle(len(names), seed) if shuffle else dataset


class Dataset(Sources, Transformations):
    """Elements to read one after the other: trees of arrays.

    Made by its static methods. Strategies distribute it; iterated over by itself it gives JAX arrays.

    Args:
      pipeline: what it reads.
      options: its options.

    Source: `tf.data.Dataset`.
    """

    def __init__(self, pipeline: Pipeline, options: Options | None = None) -> None:
        self._pipeline = pipeline
        self._options = options
        self._passes = itertools.count()

    def _derive(self, pipeline: Pipeline) -> Dataset:
        return Dataset(pipeline, self._options)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that is read; for adapters."""
        return self._pipeline

    @property
    def policy(self) -> AutoShardPolicy | None:
        """The policy that its options carry; for adapters."""
        return None if self._options is None else self._options.experimental_distribute.auto_shard_policy

    def with_options(self, options: Options, name: str | None = None) -> Dataset:
        """Sets options; only the auto-shard policy has a meaning. Source: `tf.data.Dataset.with_options`."""
        return Dataset(self._pipeline, options)

    def options(self) -> Options:
        """Returns the options. Source: `tf.data.Dataset.options`."""
        return self._options or Options()

    @property
    def element_spec(self) -> Any:
        """Shapes and types of an element, which it may read one for. Source: `tf.data.Dataset.element_spec`.

        Raises:
          InputError: the dataset is empty.
        """
        for element in self._pipeline:
            # The first element will do: records of a dataset are alike but for the rows of a last, smaller batch.
            return jax.tree.map(lambda leaf: _spec(leaf, self._pipeline.rows_vary), element)
        raise InputError("the dataset is empty, so nothing is known of its elements. HINT: give it an element.")

    def cardinality(self) -> int:
        """Returns the number of elements, -1 for infinitely many and -2 if it is not known.

        Source: `tf.data.Dataset.cardinality`.
        """
        length = self._pipeline.length()
        if length is not None:
            return length
        # Of records with numbers, only a dataset that repeats for ever has no length.
        return -1 if isinstance(self._pipeline, Indexed) else -2

    def __len__(self) -> int:
        length = self._pipeline.length()
        if length is None:
            kind = "infinite" if isinstance(self._pipeline, Indexed) else "unknown"
            raise TypeError(f"the length of the dataset is {kind}. HINT: cardinality() says so without an error.")
        return length

    def __iter__(self) -> iterators.Iterator:
        return iterators.Iterator(self._pipeline.open(next(self._passes)), _tensor, lambda: self.element_spec)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Returns an iterator over elements of NumPy arrays. Source: `tf.data.Dataset.as_numpy_iterator`."""
        return self._pipeline.open(next(self._passes))

    def to_grain(self) -> grain.IterDataset[Any]:
        """Returns a Grain dataset of the same elements, for libraries that read those; each iterator is a pass."""
        return GrainStream(self._pipeline, self._passes)

    def reduce(self, initial_state: Nest, reduce_func: Callable[[Any, Any], Any], name: str | None = None) -> Any:
        """Combines all elements: `state = reduce_func(state, element)`. Source: `tf.data.Dataset.reduce`."""
        state = jax.tree.map(as_tensor, initial_state)
        for element in self:
            state = reduce_func(state, element)
        return state

    def __repr__(self) -> str:
        return f"<tf.data.Dataset of {self.cardinality()} elements>" if self.cardinality() >= 0 else "<tf.data.Dataset>"


def _tensor(leaf: ArrayLike | Dataset) -> Any:
    return leaf if isinstance(leaf, Dataset) else as_tensor(leaf)  # of a window


def _is_spec(node: object) -> bool:
    return isinstance(node, TensorSpec)


def _spec(leaf: ArrayLike, rows_vary: bool) -> TensorSpec:
    array = np.asarray(leaf)
    return TensorSpec((None, *array.shape[1:]) if rows_vary and array.ndim else array.shape, array.dtype)


class _IndexedSource(MapSource):
    """Adapter by which the input package reads records by number."""

    name = "tf.data.Dataset"

    def __init__(self, pipeline: Indexed, policy: AutoShardPolicy | None) -> None:
        super().__init__(pipeline.dataset)
        self._fixed, self._policy = pipeline.fixed, policy

    def static_rows(self) -> bool:
        """True if elements are sure to have one shape. What a function has changed may have another one each."""
        return self._fixed or super().static_rows()

    def policy(self) -> AutoShardPolicy | None:
        return self._policy


class _StreamedSource(IterableSource):
    """Adapter by which the input package reads a stream."""

    name = "tf.data.Dataset"

    def __init__(self, pipeline: Streamed, policy: AutoShardPolicy | None) -> None:
        super().__init__(pipeline)
        self._pipeline = pipeline
        self._policy = policy

    def at_epoch(self, epoch: int) -> Source:
        later = Streamed(lambda _: self._pipeline.open(epoch), self._pipeline.rows_vary)
        return _StreamedSource(later, self._policy)

    def policy(self) -> AutoShardPolicy | None:
        return self._policy


def _source(dataset: Dataset) -> Source:
    policy = dataset.policy
    if isinstance(dataset.pipeline, Indexed):
        return _IndexedSource(dataset.pipeline, policy)
    return _StreamedSource(dataset.pipeline, policy)


# From here: the room of input lies below this one, and may not import it.
register("tf.data.Dataset of jaxtribute.compat.tf", lambda dataset: isinstance(dataset, Dataset), _source)
