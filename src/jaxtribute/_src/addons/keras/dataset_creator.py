"""`DatasetCreator`: a dataset that each worker makes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jaxtribute import InputContext, InputOptions
from jaxtribute.errors import ArgumentTypeError


class DatasetCreator:
    """Maker of the dataset of a Keras model's `fit` or `evaluate`, called on each worker.

    Under `jd.ParameterServerStrategy` it is the input that `fit` takes, together with `steps_per_epoch`. The other
    strategies take it as well; there it is what `Strategy.distribute_datasets_from_function` takes.

    Args:
      dataset_fn: takes a `jd.InputContext` and returns a dataset whose batches are those of one replica.
      input_options: how the dataset is prefetched.

    Raises:
      ArgumentTypeError: `dataset_fn` is no function, or `input_options` no `jd.InputOptions`.

    Source: `tf.keras.utils.experimental.DatasetCreator`.
    """

    dataset_fn: Callable[[InputContext], Iterable[Any]]
    input_options: InputOptions | None

    def __init__(
        self, dataset_fn: Callable[[InputContext], Iterable[Any]], input_options: InputOptions | None = None
    ) -> None:
        if not callable(dataset_fn):
            raise ArgumentTypeError(
                f"dataset_fn is {dataset_fn!r} of type {type(dataset_fn).__name__}. HINT: pass a function that takes "
                "a jd.InputContext and returns a dataset."
            )
        if input_options is not None and not isinstance(input_options, InputOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(
                f"input_options is {input_options!r} of type {type(input_options).__name__}. "
                "HINT: pass a jd.InputOptions, or leave it out."
            )
        self.dataset_fn, self.input_options = dataset_fn, input_options

    def __call__(self, input_context: InputContext) -> Iterable[Any]:
        """Returns the dataset of one worker."""
        return self.dataset_fn(input_context)
