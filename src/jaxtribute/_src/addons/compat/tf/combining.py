"""Datasets that take their elements from several others, by turns that are drawn or given."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxtribute._src.addons.compat.tf import element_specs
from jaxtribute._src.addons.compat.tf.cardinalities import INFINITE, UNKNOWN
from jaxtribute._src.addons.compat.tf.pipelines import Pipeline, Streamed
from jaxtribute._src.addons.compat.tf.random import data_seed
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.compat.tf.dataset import Dataset


class Combining:
    """A part of `Dataset`: the functions that make one of several."""

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset],
        weights: Leaf = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Draws for each element the dataset that it is taken from.

        Args:
          datasets: where elements come from.
          weights: the datasets' probabilities, or numbers in proportion to them; equal ones by default.
          seed: for the draws, which are not TensorFlow's.
          stop_on_empty_dataset: whether the first dataset that ends is the end; else the others go on.
          rerandomize_each_iteration: whether each pass has draws of its own; by default if there is no seed.

        Raises:
          ArgumentError: the weights are not one for each dataset, or none is above 0.

        Source: `tf.data.Dataset.sample_from_datasets`.
        """
        odds = np.ones(len(datasets)) if weights is None else _weights(weights, len(datasets))
        # What is never drawn from does not end the others.
        pipelines = [dataset.pipeline for dataset, odd in zip(datasets, odds, strict=True) if odd > 0]
        odds = odds[odds > 0]
        anew = seed is None if rerandomize_each_iteration is None else rerandomize_each_iteration
        number = data_seed() if seed is None else int(seed)

        def elements(epoch: int) -> Iterator[Nest]:
            generator = np.random.default_rng([number, epoch] if anew else number)
            passes, left = [pipeline.open(epoch) for pipeline in pipelines], odds.copy()
            while left.any():
                chosen = int(generator.choice(len(passes), p=left / left.sum()))
                try:
                    element = next(passes[chosen])
                except StopIteration:
                    if stop_on_empty_dataset:
                        return
                    left[chosen] = 0
                    continue
                yield element

        return _joined(pipelines, elements, _count(pipelines, stop_on_empty_dataset))

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        """Takes each element from the dataset whose number the next element of `choice_dataset` is.

        Args:
          datasets: where elements come from.
          choice_dataset: numbers, from 0 on.
          stop_on_empty_dataset: whether a choice of a dataset that has ended is the end; else it is passed over.

        Raises:
          ArgumentError: when such an element is read, a number of no dataset.

        Source: `tf.data.Dataset.choose_from_datasets`.
        """
        pipelines = [dataset.pipeline for dataset in datasets]

        def elements(epoch: int) -> Iterator[Nest]:
            passes = [pipeline.open(epoch) for pipeline in pipelines]
            for choice in choice_dataset.pipeline.open(epoch):
                number = int(choice)
                if not 0 <= number < len(passes):
                    raise ArgumentError(f"dataset {number} of {len(passes)}. HINT: number them from 0.")
                try:
                    element = next(passes[number])
                except StopIteration:
                    if stop_on_empty_dataset:
                        return
                    continue
                yield element

        return _joined(pipelines, elements, UNKNOWN)


def _weights(weights: Leaf, datasets: int) -> np.ndarray[Any, Any]:
    odds = np.asarray(None if hasattr(weights, "element_spec") else weights)
    if odds.shape != (datasets,) or not np.any(odds > 0):
        raise ArgumentError(
            f"weights {weights} for {datasets} datasets. HINT: give a list of one number for each, some above 0."
        )
    return odds.astype(np.float64)


def _count(pipelines: Sequence[Pipeline], stop_on_empty: bool) -> int:
    counts = [pipeline.count() for pipeline in pipelines]
    if len(counts) == 1:
        return counts[0]
    ends = any(count != INFINITE for count in counts) if stop_on_empty else INFINITE not in counts
    return UNKNOWN if ends else INFINITE


def _joined(pipelines: Sequence[Pipeline], elements: Any, count: int) -> Dataset:
    from jaxtribute._src.addons.compat.tf.dataset import Dataset

    return Dataset(
        Streamed(
            elements,
            count,
            lambda: functools.reduce(element_specs.general, [each.element_spec() for each in pipelines]),
        )
    )
