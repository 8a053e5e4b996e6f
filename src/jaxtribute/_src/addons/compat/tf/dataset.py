"""`tf.data.Dataset` on Grain, and its options."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import grain
import jax
import numpy as np

from jaxtribute import AutoShardPolicy, DistributedDataset
from jaxtribute._src.addons.compat.catalog.lookup import why_absent
from jaxtribute._src.addons.compat.tf import cardinalities, element_specs, iterators
from jaxtribute._src.addons.compat.tf.absences import telling_absent
from jaxtribute._src.addons.compat.tf.combining import Combining
from jaxtribute._src.addons.compat.tf.conversion import as_tensor
from jaxtribute._src.addons.compat.tf.pipelines import GrainStream, Indexed, Pipeline, Streamed
from jaxtribute._src.addons.compat.tf.regrouping import Regrouping
from jaxtribute._src.addons.compat.tf.specs import TensorSpec
from jaxtribute._src.addons.compat.tf.transformations import to_host
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import IterableSource, MapSource, Source
from jaxtribute.extending import register_source as register
from jaxtribute.input import make_numpy_dataset
from jaxtribute.typing import ArrayLike, DType, Leaf, Nest


class DistributeOptions:
    """Division of a dataset among workers. Source: `tf.data.experimental.DistributeOptions`."""

    def __init__(self) -> None:
        self.auto_shard_policy = AutoShardPolicy.AUTO
        self.num_devices: int | None = None


@telling_absent("tf.data.Options")
class Options:
    """Options of a dataset. All attributes are accepted; only `experimental_distribute` has a meaning here.

    Source: `tf.data.Options`.
    """

    def __init__(self) -> None:
        self.experimental_distribute: DistributeOptions = DistributeOptions()
        self.threading: Any = _Anything()
        self.experimental_threading = self.threading
        self.experimental_optimization: Any = _Anything()
        self.autotune: Any = _Anything()
        self.experimental_service: Any = _Anything()
        for name in _SETTINGS:
            setattr(self, name, None)
        self.deterministic: bool | None = None


_SETTINGS = (
    "dataset_name",
    "experimental_deterministic",
    "experimental_external_state_policy",
    "experimental_slack",
    "experimental_symbolic_checkpoint",
    "experimental_warm_start",
)


class _Anything:
    """Takes any attribute."""


class Sources:
    """A part of `Dataset`: the functions that make one."""

    @staticmethod
    def range(*args: Leaf, output_type: DType = np.int64, name: str | None = None) -> Dataset:
        """Makes a dataset of numbers, by the arguments of Python's `range`. Source: `tf.data.Dataset.range`."""
        return _of_rows(np.arange(*args, dtype=output_type))

    @staticmethod
    def from_tensor_slices(tensors: Nest, name: str | None = None) -> Dataset:
        """Makes a dataset of the rows of arrays: numbers in lists are an array, tuples and dictionaries structure.

        Source: `tf.data.Dataset.from_tensor_slices`.
        """
        return _of_rows(to_host(tensors))

    @staticmethod
    def from_tensors(tensors: Nest, name: str | None = None) -> Dataset:
        """Makes a dataset of one element. Source: `tf.data.Dataset.from_tensors`."""
        return _of_rows(jax.tree.map(lambda leaf: leaf[None], to_host(tensors)))

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
          output_shapes: the elements' shapes beside `output_types`, for `element_spec`.
          args: its arguments.
          output_signature: the elements' specs, in their structure; instead of `output_types`.
          name: accepted for compatibility.

        Source: `tf.data.Dataset.from_generator`.
        """
        types, spec = output_types, output_signature
        if spec is not None:
            # Only types matter: shapes are those of what the generator gives.
            types = jax.tree.map(lambda spec: spec.dtype, output_signature, is_leaf=_is_spec)
        elif output_shapes is not None:
            spec = jax.tree.map(lambda kind, shape: TensorSpec(shape, kind), types, output_shapes)

        def elements(epoch: int) -> Iterator[Nest]:
            for element in generator(*args):
                host = to_host(element)
                yield host if types is None else jax.tree.map(lambda kind, leaf: leaf.astype(kind), types, host)

        return Dataset(Streamed(elements, spec=None if spec is None else lambda: spec))

    @staticmethod
    def zip(*datasets: Nest, name: str | None = None) -> Dataset:
        """Makes a dataset of tuples, one element of each dataset. Source: `tf.data.Dataset.zip`."""
        # Given one by one or in a nest: TensorFlow takes both.
        parts: Any = datasets[0] if len(datasets) == 1 and not isinstance(datasets[0], Dataset) else datasets
        leaves, tree = jax.tree.flatten(parts, is_leaf=lambda node: isinstance(node, Dataset))

        def rows(epoch: int) -> Iterator[Nest]:
            passes = [leaf.pipeline.open(epoch) for leaf in leaves]
            return map(tree.unflatten, zip(*passes, strict=False))

        return Dataset(
            Streamed(
                rows,
                cardinalities.zipped(leaf.pipeline.count() for leaf in leaves),
                lambda: tree.unflatten(leaf.pipeline.element_spec() for leaf in leaves),
            )
        )

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


class Dataset(Sources, Combining, Regrouping):
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
        """Shapes and types of an element; an axis that may have any length is None.

        Functions are called on the first elements to find it out, or on zeros if the dataset is empty.

        Raises:
          InputError: the dataset is empty, and nothing tells what its elements are.

        Source: `tf.data.Dataset.element_spec`.
        """
        return self._pipeline.element_spec()

    def cardinality(self) -> int:
        """Returns the number of elements, -1 for infinitely many and -2 if it is not known.

        Source: `tf.data.Dataset.cardinality`.
        """
        return self._pipeline.count()

    def __len__(self) -> int:
        count = self._pipeline.count()
        if count < 0:
            kind = "infinite" if count == cardinalities.INFINITE else "unknown"
            raise TypeError(f"the length of the dataset is {kind}. HINT: cardinality() says so without an error.")
        return count

    def __bool__(self) -> bool:
        """True: without this Python would ask for the length."""
        return True

    def __iter__(self) -> iterators.Iterator:
        return iterators.Iterator(self._pipeline.open(next(self._passes)), _tensor, lambda: self.element_spec)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Returns an iterator over elements of NumPy arrays. Source: `tf.data.Dataset.as_numpy_iterator`."""
        return self._pipeline.open(next(self._passes))

    def to_grain(self) -> grain.IterDataset[Any]:
        """Returns a Grain dataset of the same elements, for libraries that read those; each iterator is a pass."""
        return GrainStream(self._pipeline, self._passes)

    def get_single_element(self, name: str | None = None) -> Any:
        """Returns the only element.

        Raises:
          ArgumentError: the dataset has none, or several.

        Source: `tf.data.Dataset.get_single_element`.
        """
        elements = list(itertools.islice(self, 2))
        if len(elements) != 1:
            told = "several elements" if elements else "none"
            raise ArgumentError(f"of one element, the dataset has {told}. HINT: take(1), or loop over it.")
        return elements[0]

    def reduce(self, initial_state: Nest, reduce_func: Callable[[Any, Any], Any], name: str | None = None) -> Any:
        """Combines all elements: `state = reduce_func(state, element)`. Source: `tf.data.Dataset.reduce`."""
        state = jax.tree.map(as_tensor, initial_state)
        for element in self:
            state = reduce_func(state, element)
        return state

    def __getattr__(self, name: str) -> Any:
        reason = "" if name.startswith("_") else why_absent(f"tf.data.Dataset.{name}")
        told = reason or "docs/migration.md lists what exists of tf.data"
        raise AttributeError(f"a Dataset has no {name!r}. HINT: {told}.", name=name, obj=self)

    def __repr__(self) -> str:
        return f"<tf.data.Dataset of {self.cardinality()} elements>" if self.cardinality() >= 0 else "<tf.data.Dataset>"


def _tensor(leaf: ArrayLike | Dataset) -> Any:
    return leaf if isinstance(leaf, Dataset) else as_tensor(leaf)  # of a window


def _is_spec(node: object) -> bool:
    return isinstance(node, TensorSpec)


def _of_rows(arrays: Nest) -> Dataset:
    spec = element_specs.of_rows(arrays)
    return Dataset(Indexed(make_numpy_dataset(arrays), fixed=True, spec=lambda: spec))


class _Source:
    """The part of an adapter that tells of the dataset, however it is read."""

    name = "tf.data.Dataset"
    _pipeline: Any
    _policy: AutoShardPolicy | None

    def count(self) -> int:
        """The number of elements, as `tf.data.Dataset.cardinality` tells it."""
        return self._pipeline.count()

    def general(self, spec: Nest) -> Nest:
        """The spec of every element: later batches may be wider than the first."""
        return element_specs.opened(spec, self._pipeline.element_spec())

    def policy(self) -> AutoShardPolicy | None:
        """The policy of the dataset's options."""
        return self._policy


class _IndexedSource(_Source, MapSource):
    """Adapter by which the input package reads records by number."""

    def __init__(self, pipeline: Indexed, policy: AutoShardPolicy | None) -> None:
        super().__init__(pipeline.dataset)
        self._pipeline, self._policy = pipeline, policy

    def static_rows(self) -> bool:
        """True if elements are sure to have one shape. What a function has changed may have another one each."""
        return self._pipeline.fixed or super().static_rows()

    def at_epoch(self, epoch: int) -> Source:
        """A later pass: what repeats for ever goes on with its shuffles, too."""
        if self._pipeline.later is None:
            return super().at_epoch(epoch)
        return _IndexedSource(self._pipeline.at(epoch), self._policy)

    def length(self) -> tuple[int, int] | None:
        """Batches and examples of one pass, if it ends."""
        return None if self._pipeline.endless else super().length()


class _StreamedSource(_Source, IterableSource):
    """Adapter by which the input package reads a stream."""

    # Which files a function opens is not known before it has run.
    to_share_files = (
        "give all names to one reader, tf.data.TFRecordDataset(files), in place of interleave or flat_map over them"
    )

    def __init__(self, pipeline: Streamed, policy: AutoShardPolicy | None) -> None:
        super().__init__(pipeline)
        self._pipeline, self._policy = pipeline, policy

    def at_epoch(self, epoch: int) -> Source:
        """A later pass, which a source that is opened anew begins by its own number."""
        later = replace(self._pipeline, open=lambda _: self._pipeline.open(epoch))
        return _StreamedSource(later, self._policy)


def _source(dataset: Dataset) -> Source:
    policy = dataset.policy
    if isinstance(dataset.pipeline, Indexed):
        return _IndexedSource(dataset.pipeline, policy)
    return _StreamedSource(dataset.pipeline, policy)


# From here: the room of input lies below this one, and may not import it.
register("tf.data.Dataset of jaxtribute.compat.tf", lambda dataset: isinstance(dataset, Dataset), _source)


def _cardinality(dataset: DistributedDataset[Any]) -> int:
    """The number of elements, -1 for infinitely many and -2 if it is not known.

    Of `distribute_datasets_from_function` it is that of the function's dataset, of which a step takes an element for
    each replica. Source: the `cardinality` of TensorFlow's distributed datasets.
    """
    source = dataset.source
    if isinstance(source, (_IndexedSource, _StreamedSource)):
        return source.count()
    try:
        return len(dataset)
    except TypeError:
        return cardinalities.UNKNOWN


# Of the core's class, since strategies make it: `len(dataset)` is what programs without TensorFlow's names ask.
DistributedDataset.cardinality = property(_cardinality)  # pyright: ignore[reportAttributeAccessIssue]
