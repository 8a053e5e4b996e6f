"""Makes datasets out of datasets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute._src.addons.compat.tf.pipelines import Pipeline, Streamed, take_turns
from jaxtribute._src.addons.compat.tf.random import data_seed
from jaxtribute._src.addons.compat.tf.tensors import host_array
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.compat.tf.dataset import Dataset


def to_host(element: Nest) -> Nest:
    """An element with NumPy leaves. Lists are arrays, as in TensorFlow; tuples and dictionaries are structure."""
    # None is a leaf here: a tree would drop it without a word.
    return jax.tree.map(host_array, element, is_leaf=lambda node: isinstance(node, list) or node is None)


def apply(function: Callable[..., Any], element: Nest) -> Any:
    """Calls a user's function on an element; a tuple's parts become its arguments. It computes on the CPU."""
    # Elements lie on the host, and a function that runs for each of them must not wait for an accelerator.
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

        It runs as Python, on NumPy arrays, for each element when that is read; the order is always kept.

        Source: `tf.data.Dataset.map`.
        """
        del num_parallel_calls, deterministic
        return self._derive(self._pipeline.map(lambda element: to_host(apply(map_func, element))))

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """Keeps the elements for which a function holds. Source: `tf.data.Dataset.filter`."""
        del name
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
        del num_parallel_calls, deterministic
        size = _count("batch_size", batch_size, least=1)
        return self._derive(self._pipeline.batch(size, drop_remainder))

    def unbatch(self, name: str | None = None) -> Dataset:
        """Takes elements apart along their first axis. Source: `tf.data.Dataset.unbatch`."""
        del name
        return self.flat_map(_slices)

    def repeat(self, count: Leaf = None, name: str | None = None) -> Dataset:
        """Gives all elements several times; by default, or for -1, for ever. Source: `tf.data.Dataset.repeat`."""
        del name
        times = None if count is None else _count("count", count, least=-1)
        return self._derive(self._pipeline.repeat(None if times == -1 else times))

    def shard(self, num_shards: Leaf, index: Leaf, name: str | None = None) -> Dataset:
        """Keeps every `num_shards`-th element from number `index` on. Source: `tf.data.Dataset.shard`."""
        del name
        shards, first = _count("num_shards", num_shards, least=1), _count("index", index, least=0)
        if first >= shards:
            raise ArgumentError(f"shard {first} of {shards} does not exist. HINT: number shards from 0.")
        return self._derive(self._pipeline.cut(first, None, shards))

    def take(self, count: Leaf, name: str | None = None) -> Dataset:
        """Keeps the first elements; all for -1. Source: `tf.data.Dataset.take`."""
        del name
        number = _count("count", count, least=-1)
        return self._derive(self._pipeline.cut(0, None if number == -1 else number))

    def skip(self, count: Leaf, name: str | None = None) -> Dataset:
        """Leaves out the first elements; all for -1. Source: `tf.data.Dataset.skip`."""
        del name
        number = _count("count", count, least=-1)
        return self._derive(self._pipeline.cut(0, 0) if number == -1 else self._pipeline.cut(number, None))

    def shuffle(
        self,
        buffer_size: Leaf,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        name: str | None = None,
    ) -> Dataset:
        """Puts the elements into another order.

        Elements that can be asked for by number are drawn from all of them, whatever the buffer. The order is not
        TensorFlow's. Each repetition and each pass has an order of its own unless `reshuffle_each_iteration` is false.

        Source: `tf.data.Dataset.shuffle`.
        """
        del name
        size = _count("buffer_size", buffer_size, least=1)
        seed = data_seed() if seed is None else int(seed)
        return self._derive(self._pipeline.shuffle(size, seed, anew=bool(reshuffle_each_iteration)))

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Dataset:
        """Gives the elements of both, one dataset after the other. Source: `tf.data.Dataset.concatenate`."""
        del name
        first, second = self._pipeline, dataset.pipeline
        return self._derive(Streamed(lambda epoch: itertools.chain(first.open(epoch), second.open(epoch))))

    def enumerate(self, start: int = 0, name: str | None = None) -> Dataset:
        """Pairs each element with its number, an int64. Source: `tf.data.Dataset.enumerate`."""
        del name
        pipeline = self._pipeline
        return self._derive(
            Streamed(lambda epoch: ((np.int64(n), element) for n, element in enumerate(pipeline.open(epoch), start)))
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

        return self._derive(Streamed(elements))

    def prefetch(self, buffer_size: Leaf, name: str | None = None) -> Dataset:
        """Changes nothing: distributed datasets prefetch by themselves. Source: `tf.data.Dataset.prefetch`."""
        del buffer_size, name
        return self._derive(self._pipeline)

    def cache(self, filename: str = "", name: str | None = None) -> Dataset:
        """Keeps the elements in memory from the first pass on.

        Raises:
          ArgumentError: a file is named, which is not supported.

        Source: `tf.data.Dataset.cache`.
        """
        del name
        if filename:
            raise ArgumentError(f"cache({filename!r}): files are not supported. HINT: call cache() to use memory.")
        return self._derive(self._pipeline.cache())


def _count(name: str, value: Leaf, least: int) -> int:
    number = int(value)
    if number < least:
        raise ArgumentError(f"{name} is {number}. HINT: give a whole number from {least} up.")
    return number


def _slices(*element: Nest) -> Dataset:
    from jaxtribute._src.addons.compat.tf.dataset import Dataset

    return Dataset.from_tensor_slices(*element) if len(element) == 1 else Dataset.from_tensor_slices(element)
