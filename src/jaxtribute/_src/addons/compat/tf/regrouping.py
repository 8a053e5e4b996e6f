"""Makes datasets whose elements depend on those before: ends, states, other batches, and batches of like lengths."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute._src.addons.compat.tf import element_specs
from jaxtribute._src.addons.compat.tf.cardinalities import UNKNOWN
from jaxtribute._src.addons.compat.tf.padding import padded, padded_spec, padded_to, shapes_of_parts
from jaxtribute._src.addons.compat.tf.pipelines import Streamed, stacked
from jaxtribute._src.addons.compat.tf.texts import with_texts
from jaxtribute._src.addons.compat.tf.transformations import Transformations, apply, taken_apart, to_host, whole
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.compat.tf.dataset import Dataset


class Regrouping(Transformations):
    """A part of `Dataset`: further methods that return another one. `name` is accepted for compatibility in all."""

    def take_while(self, predicate: Callable[..., Any], name: str | None = None) -> Dataset:
        """Gives the elements before the first for which a function does not hold.

        Source: `tf.data.Dataset.take_while`.
        """
        rows = self._pipeline.stream()

        def elements(epoch: int) -> Iterator[Nest]:
            return itertools.takewhile(lambda element: bool(apply(predicate, element)), rows.open(epoch))

        return self._derive(replace(rows, open=elements, size=UNKNOWN))

    def unique(self, name: str | None = None) -> Dataset:
        """Gives each element once, where it first is. Source: `tf.data.Dataset.unique`."""
        rows = self._pipeline.stream()

        def elements(epoch: int) -> Iterator[Nest]:
            seen: set[Any] = set()
            for element in rows.open(epoch):
                key = tuple(map(_key, jax.tree.leaves(element)))
                if key not in seen:
                    seen.add(key)
                    yield element

        return self._derive(replace(rows, open=elements, size=UNKNOWN))

    def scan(
        self, initial_state: Nest, scan_func: Callable[[Any, Any], tuple[Any, Any]], name: str | None = None
    ) -> Dataset:
        """Changes each element by a function that carries a state: `state, element = scan_func(state, element)`.

        Source: `tf.data.Dataset.scan`.
        """
        pipeline, first = self._pipeline, to_host(initial_state)

        def scanned(state: Nest, element: Nest) -> tuple[Any, Any]:
            # As one argument: a tuple's parts are not taken apart here.
            state, made = apply(lambda: scan_func(*jax.tree.map(with_texts, (state, element))), ())
            return to_host(state), to_host(made)

        def elements(epoch: int) -> Iterator[Nest]:
            state = first
            for element in pipeline.open(epoch):
                state, made = scanned(state, element)
                yield made

        def spec() -> Any:
            return element_specs.of_results(
                lambda element: scanned(first, element)[1], pipeline.first(), pipeline.element_spec()
            )

        return self._derive(Streamed(elements, pipeline.count(), spec))

    def rebatch(self, batch_size: Leaf, drop_remainder: bool = False, name: str | None = None) -> Dataset:
        """Makes other batches of the rows of batches.

        Args:
          batch_size: the number of rows, or several numbers that take turns.
          drop_remainder: whether a last, smaller batch is left out.
          name: accepted for compatibility.

        Raises:
          ArgumentError: a size is below 1; when such an element is read, one that is no batch.

        Source: `tf.data.Dataset.rebatch`.
        """
        pipeline = self._pipeline
        sizes = [whole("batch_size", size, least=1) for size in np.ravel(batch_size)]
        if not sizes:
            raise ArgumentError(f"{batch_size=}. HINT: give a whole number, or several.")

        def elements(epoch: int) -> Iterator[Nest]:
            rows = itertools.chain.from_iterable(map(taken_apart, pipeline.open(epoch)))
            for size in itertools.cycle(sizes):
                batch = list(itertools.islice(rows, size))
                if not batch or (drop_remainder and len(batch) < size):
                    return
                yield stacked(batch)

        size = _only(sizes) if drop_remainder else None
        return self._derive(
            Streamed(
                elements,
                spec=lambda: element_specs.batched(element_specs.unbatched(pipeline.element_spec()), size),
            )
        )

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Nest = None,
        padding_values: Nest = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Dataset:
        """Makes padded batches of elements of like lengths.

        Args:
          element_length_func: tells the length of an element; it gets a tuple's parts as arguments.
          bucket_boundaries: the lengths, rising, at which the next bucket begins.
          bucket_batch_sizes: the size of batches of each bucket, one more than boundaries.
          padded_shapes: as for `padded_batch`.
          padding_values: as for `padded_batch`.
          pad_to_bucket_boundary: whether axes of any length are padded to one less than the bucket's boundary.
          no_padding: whether elements are joined as they are.
          drop_remainder: whether last, smaller batches are left out.
          name: accepted for compatibility.

        Raises:
          ArgumentError: there is not one more size than boundaries, or when elements are read, one is as long as the
            last boundary and is to be padded to that.

        Source: `tf.data.Dataset.bucket_by_sequence_length`.
        """
        pipeline = self._pipeline
        sizes = [whole("bucket_batch_sizes", size, least=1) for size in bucket_batch_sizes]
        bounds = [int(bound) for bound in bucket_boundaries]
        if len(sizes) != len(bounds) + 1:
            raise ArgumentError(
                f"{len(sizes)} sizes of batches for {len(bounds)} boundaries. HINT: a bucket lies on each side of one."
            )

        def joined(bucket: int, rows: list[Nest]) -> Any:
            if no_padding:
                return stacked(rows)
            if not pad_to_bucket_boundary:
                return padded(rows, padded_shapes, padding_values)
            if bucket == len(bounds):
                raise ArgumentError(
                    f"an element is as long as the last of {bounds}. HINT: filter it out, or add a boundary."
                )
            leaves, tree = jax.tree.flatten(pipeline.element_spec())
            given = shapes_of_parts(padded_shapes, tree)
            shapes = (leaf.shape if shape is None else shape for leaf, shape in zip(leaves, given, strict=True))
            filled = [[bounds[bucket] - 1 if length in (None, -1) else length for length in shape] for shape in shapes]
            return padded_to(rows, filled, padding_values)

        def elements(epoch: int) -> Iterator[Nest]:
            buckets: list[list[Nest]] = [[] for _ in sizes]
            for element in pipeline.open(epoch):
                length = int(apply(element_length_func, element))
                bucket = int(np.searchsorted(bounds, length, side="right"))
                buckets[bucket].append(element)
                if len(buckets[bucket]) == sizes[bucket]:
                    yield joined(bucket, buckets[bucket])
                    buckets[bucket] = []
            for bucket, rows in enumerate(buckets):
                if rows and not drop_remainder:
                    yield joined(bucket, rows)

        size = _only(sizes) if drop_remainder else None
        spec = (
            (lambda: element_specs.batched(pipeline.element_spec(), size))
            if no_padding
            else padded_spec(pipeline, padded_shapes, size)
        )
        return self._derive(Streamed(elements, spec=spec))


def _only(sizes: Sequence[int]) -> int | None:
    """The size that all are; None if they differ."""
    return sizes[0] if len(set(sizes)) == 1 else None


def _key(leaf: Any) -> Any:
    array = np.asarray(leaf)
    return array.shape, array.dtype.str, str(array.tolist()) if array.dtype.kind == "O" else array.tobytes()
