"""Makes datasets out of datasets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute._src.addons.compat.tf import cardinalities, element_specs
from jaxtribute._src.addons.compat.tf.cardinalities import UNKNOWN
from jaxtribute._src.addons.compat.tf.conversion import host_array
from jaxtribute._src.addons.compat.tf.element_specs import DatasetSpec
from jaxtribute._src.addons.compat.tf.padding import padded, padded_spec
from jaxtribute._src.addons.compat.tf.pipelines import Indexed, Pipeline, Streamed, take_turns
from jaxtribute._src.addons.compat.tf.random import data_seed
from jaxtribute._src.addons.compat.tf.specs import TensorSpec
from jaxtribute._src.addons.compat.tf.texts import with_texts
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.typing import Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.compat.tf.dataset import Dataset


def to_host(element: Nest) -> Nest:
    """An element with NumPy leaves. Lists are arrays, as in TensorFlow; tuples and dictionaries are structure."""
    return jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, Transformations) else host_array(leaf),  # datasets are of a window
        element,
        is_leaf=lambda node: isinstance(node, list),
    )


def of_function(result: Nest) -> Any:
    """The result of a user's function, as an element. A list of its own is a tuple: one within is an array.

    Raises:
      ArgumentTypeError: it returned nothing.
    """
    if result is None:
        raise ArgumentTypeError("a function that makes elements returned None. HINT: has it a `return`?")
    return to_host(tuple(result) if isinstance(result, list) else result)


def apply(function: Callable[..., Any], element: Nest) -> Any:
    """Calls a user's function on an element; a tuple's parts become its arguments. It computes on the CPU."""
    # Elements lie on the host, and a function that runs for each of them must not wait for an accelerator.
    element = jax.tree.map(with_texts, element)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return function(*element) if isinstance(element, tuple) else function(element)


class Transformations:
    """A part of `Dataset`: the methods that return another one. `name` is accepted for compatibility in all."""

    _pipeline: Pipeline

    def _derive(self, pipeline: Pipeline) -> Dataset:
        raise NotImplementedError

    def map(
        self, map_func: Callable[..., Any], num_parallel_calls: object = None, deterministic: object = None
    ) -> Dataset:
        """Changes each element by a function, which gets a tuple's parts as arguments.

        It runs as Python, on NumPy arrays, for each element when that is read; the order is always kept. It runs for
        `element_spec` as well: on the first elements, and where axes have any length on a longer one.

        Source: `tf.data.Dataset.map`.
        """
        return self._derive(self._pipeline.map(lambda element: of_function(apply(map_func, element))))

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """Keeps the elements for which a function holds. Source: `tf.data.Dataset.filter`."""
        # Which records are left is not known before they are read, so that they have no numbers any more.
        return self._derive(self._pipeline.stream().filter(lambda element: bool(apply(predicate, element))))

    def batch(
        self,
        batch_size: Leaf,
        drop_remainder: bool = False,
        num_parallel_calls: object = None,
        deterministic: object = None,
    ) -> Dataset:
        """Joins elements along a new first axis; the last batch may be smaller. Source: `tf.data.Dataset.batch`."""
        size = whole("batch_size", batch_size, least=1)
        return self._derive(self._pipeline.batch(size, drop_remainder))

    def padded_batch(
        self,
        batch_size: Leaf,
        padded_shapes: Nest = None,
        padding_values: Nest = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Joins elements of different lengths along a new first axis, padded at their ends.

        Args:
          batch_size: the number of elements.
          padded_shapes: a shape for each part of an element; None or -1 in it, and by default, for the longest.
          padding_values: what is put there for each part, or for all; 0 by default, b"" for strings.
          drop_remainder: whether a last, smaller batch is left out.
          name: accepted for compatibility.

        Raises:
          ArgumentError: an element is longer than its padded shape.

        Source: `tf.data.Dataset.padded_batch`.
        """
        size = whole("batch_size", batch_size, least=1)
        pipeline, spec = self._pipeline, padded_spec(self._pipeline, padded_shapes, size if drop_remainder else None)
        lists = pipeline.stream().gather(size, drop_remainder)

        def batches(epoch: int) -> Iterator[Nest]:
            return (padded(rows, padded_shapes, padding_values) for rows in lists.open(epoch))

        return self._derive(Streamed(batches, lists.size, spec))

    def window(
        self,
        size: Leaf,
        shift: Leaf = None,
        stride: Leaf = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Makes datasets of `size` elements each; one begins `shift` elements after the other, `size` by default.

        Source: `tf.data.Dataset.window`.
        """
        width, step = whole("size", size, least=1), whole("stride", stride, least=1)
        move = width if shift is None else whole("shift", shift, least=1)
        pipeline, span = self._pipeline, (width - 1) * step + 1

        def windows(epoch: int) -> Iterator[Sequence[Nest]]:
            elements, held = pipeline.open(epoch), []
            while True:
                held += itertools.islice(elements, span - len(held))
                if not held or (drop_remainder and len(held) < span):
                    return
                yield held[::step]
                # Elements between two windows are read, and left out.
                missing = max(0, move - len(held))
                held = held[move:]
                for _ in itertools.islice(elements, missing):
                    pass

        return self._derive(
            Streamed(
                lambda epoch: (self._datasets_of(rows) for rows in windows(epoch)),
                cardinalities.windows(pipeline.count(), span, move, drop_remainder),
                lambda: jax.tree.map(DatasetSpec, pipeline.element_spec()),
            )
        )

    def _datasets_of(self, rows: Sequence[Nest]) -> Any:
        """A dataset of the rows, or a nest of datasets, one for each part."""
        tree, pipeline = jax.tree.structure(rows[0]), self._pipeline
        columns = zip(*[jax.tree.leaves(row) for row in rows], strict=True)
        return tree.unflatten(
            self._derive(
                Streamed(
                    lambda _, column=column: iter(column),
                    len(column),
                    lambda part=part: jax.tree.leaves(pipeline.element_spec())[part],
                )
            )
            for part, column in enumerate(columns)
        )

    def apply(self, transformation_func: Callable[..., Any]) -> Any:
        """Calls a function of datasets on this one. Source: `tf.data.Dataset.apply`."""
        return transformation_func(self)

    def unbatch(self, name: str | None = None) -> Dataset:
        """Takes elements apart along their first axis. Source: `tf.data.Dataset.unbatch`."""
        rows, count = self._pipeline, UNKNOWN
        if isinstance(rows, Indexed) and rows.fixed:
            # All of them are sure to have the same number of rows; without an axis they are refused when read.
            spec = jax.tree.leaves(rows.element_spec())[0]
            count = cardinalities.repeated(rows.count(), (*spec.shape, 1)[0])

        def elements(epoch: int) -> Iterator[Nest]:
            return itertools.chain.from_iterable(map(taken_apart, rows.open(epoch)))

        return self._derive(Streamed(elements, count, lambda: element_specs.unbatched(rows.element_spec())))

    def repeat(self, count: Leaf = None, name: str | None = None) -> Dataset:
        """Gives all elements several times; by default, or for -1, for ever. Source: `tf.data.Dataset.repeat`."""
        times = None if count is None else whole("count", count, least=-1)
        return self._derive(self._pipeline.repeat(None if times == -1 else times))

    def shard(self, num_shards: Leaf, index: Leaf, name: str | None = None) -> Dataset:
        """Keeps every `num_shards`-th element from number `index` on. Source: `tf.data.Dataset.shard`."""
        shards, first = whole("num_shards", num_shards, least=1), whole("index", index, least=0)
        if first >= shards:
            raise ArgumentError(f"shard {first} of {shards} does not exist. HINT: number shards from 0.")
        return self._derive(self._pipeline.cut(first, None, shards))

    def take(self, count: Leaf, name: str | None = None) -> Dataset:
        """Keeps the first elements; all for -1. Source: `tf.data.Dataset.take`."""
        number = whole("count", count, least=-1)
        return self._derive(self._pipeline.cut(0, None if number == -1 else number))

    def skip(self, count: Leaf, name: str | None = None) -> Dataset:
        """Leaves out the first elements; all for -1. Source: `tf.data.Dataset.skip`."""
        number = whole("count", count, least=-1)
        return self._derive(self._pipeline.cut(0, 0) if number == -1 else self._pipeline.cut(number, None))

    def shuffle(
        self,
        buffer_size: Leaf,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        name: str | None = None,
    ) -> Dataset:
        """Puts the elements into another order.

        Elements that can be asked for by number are drawn from all of them, whatever the buffer; one of 1 keeps their
        order. The order is not TensorFlow's. Each repetition and each pass has an order of its own unless
        `reshuffle_each_iteration` is false.

        Source: `tf.data.Dataset.shuffle`.
        """
        size = whole("buffer_size", buffer_size, least=1)
        seed = data_seed() if seed is None else int(seed)
        pipeline = self._pipeline
        return self._derive(
            pipeline if size == 1 else pipeline.shuffle(size, seed, anew=bool(reshuffle_each_iteration))
        )

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """Gives the elements of both, one dataset after the other. Source: `tf.data.Dataset.concatenate`."""
        first, second = self._pipeline, dataset.pipeline
        return self._derive(
            Streamed(
                lambda epoch: itertools.chain(first.open(epoch), second.open(epoch)),
                cardinalities.joined([first.count(), second.count()]),
                lambda: element_specs.general(first.element_spec(), second.element_spec()),
            )
        )

    def enumerate(self, start: int = 0, name: str | None = None) -> Dataset:
        """Pairs each element with its number, an int64. Source: `tf.data.Dataset.enumerate`."""
        pipeline = self._pipeline
        return self._derive(
            Streamed(
                lambda epoch: ((np.int64(n), element) for n, element in enumerate(pipeline.open(epoch), start)),
                pipeline.count(),
                lambda: (TensorSpec([], np.int64), pipeline.element_spec()),
            )
        )

    def flat_map(self, map_func: Callable[..., Dataset], name: str | None = None) -> Dataset:
        """Gives the elements of the datasets that a function makes of each element.

        Source: `tf.data.Dataset.flat_map`.
        """
        return self.interleave(map_func, cycle_length=1, name=name)

    def interleave(
        self, map_func: Callable[..., Dataset], cycle_length: int | None = None, block_length: int = 1, **_: object
    ) -> Dataset:
        """Maps flat like `flat_map`, taking turns at `cycle_length` datasets, 8 by default, by `block_length` elements.

        Source: `tf.data.Dataset.interleave`.
        """
        pipeline = self._pipeline
        width = 8 if cycle_length is None or cycle_length < 1 else cycle_length

        def elements(epoch: int) -> Iterator[Nest]:
            made = (apply(map_func, element).pipeline.open(epoch) for element in pipeline.open(epoch))
            return take_turns(made, width, block_length)

        def spec() -> Any:
            (made,) = jax.tree.leaves(
                element_specs.of_results(partial(apply, map_func), pipeline.first(), pipeline.element_spec())
            )
            return made.element_spec

        return self._derive(Streamed(elements, spec=spec))

    def prefetch(self, buffer_size: Leaf, name: str | None = None) -> Dataset:
        """Changes nothing: distributed datasets prefetch by themselves. Source: `tf.data.Dataset.prefetch`."""
        return self._derive(self._pipeline)

    def cache(self, filename: str = "", name: str | None = None) -> Dataset:
        """Keeps the elements in memory from the first pass on.

        Raises:
          ArgumentError: a file is named, which is not supported.

        Source: `tf.data.Dataset.cache`.
        """
        if filename:
            raise ArgumentError(f"cache({filename!r}): files are not supported. HINT: call cache() to use memory.")
        return self._derive(self._pipeline.cache())


def whole(name: str, value: Leaf, least: int) -> int:
    """An argument as a whole number.

    Raises:
      ArgumentError: it is smaller than `least`.
    """
    number = int(value)
    if number < least:
        raise ArgumentError(f"{name} is {number}. HINT: give a whole number from {least} up.")
    return number


def taken_apart(element: Nest) -> Iterator[Nest]:
    """The rows of a batch.

    Raises:
      ArgumentError: it has parts of different lengths, or without an axis.
    """
    leaves, tree = jax.tree.flatten(element)
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = [np.shape(leaf) for leaf in leaves]
        raise ArgumentError(f"an element of shapes {shapes} cannot be taken apart. HINT: batch() first.")
    return map(tree.unflatten, zip(*leaves, strict=True))
