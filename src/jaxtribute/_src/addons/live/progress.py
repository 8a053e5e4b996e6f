"""A progress bar over the batches of a dataset, in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from jaxtribute import DistributedDataset
from jaxtribute._src.addons.live.examples import examples_in
from jaxtribute.errors import InputError
from jaxtribute.extending import settings

T = TypeVar("T")


class _Rate(ProgressColumn):
    """Examples per second."""

    def render(self, task: Task) -> Text:
        elapsed = task.finished_time or task.elapsed
        if not elapsed:
            return Text("- examples/s")
        return Text(f"{task.fields['examples'] / elapsed:,.0f} examples/s", "cyan")


def progress(
    dataset: Iterable[T], *, total: int | None = None, description: str = "batches", console: Console | None = None
) -> Iterator[T]:
    """Goes through the batches of a dataset and shows how far it has come, on the first worker alone.

    The bar has the batches, the examples per second and, where the number of batches is known, the time that is left.
    In a notebook it is a widget where ipywidgets is installed, else text.

        for batch in jd.progress(strategy.experimental_distribute_dataset(batches)):
            loss = train_step(batch)

    Args:
      dataset: a distributed dataset, its iterator, or anything else that gives batches.
      total: batches, where the dataset does not know it: by its `len`, or as `explain` of a distributed one tells.
      description: words before the bar.
      console: Rich's console to draw on; standard error by default.

    Yields:
      The elements of the dataset, unchanged.

    Raises:
      ArgumentError: `total` is less than 0.
      ArgumentTypeError: `total` is no whole number, or `description` no text.

    Examples:
      >>> from rich.console import Console
      >>> for batch in jd.progress([1, 2, 3], console=Console(quiet=True)):
      ...     pass
    """
    count = settings.whole("total", total, 0, optional=True)
    settings.text("description", description)
    return _shown(dataset, _length(dataset) if count is None else count, description, console)


def _shown(dataset: Iterable[T], total: int | None, description: str, console: Console | None) -> Iterator[T]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn()
    # Workers write to one terminal, where one bar is enough.
    hidden = jax.process_index() > 0
    with Progress(*columns, console=console or Console(stderr=True), disable=hidden) as bar:
        task = bar.add_task(description, total=total, examples=0)
        seen = 0
        for element in dataset:
            yield element
            # Behind the yield: the element has been used, and counts as done.
            seen += examples_in(element)
            bar.update(task, advance=1, examples=seen)


def _length(dataset: Iterable[object]) -> int | None:
    """Number of batches, where the dataset knows it without reading any."""
    if isinstance(dataset, DistributedDataset):
        return _batches(dataset)
    # Many have no length; of others it raises if it is not known.
    try:
        return len(dataset)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return None


def _batches(dataset: DistributedDataset) -> int | None:
    """Number of batches of a distributed dataset; None if workers have their own, which may be fewer or more."""
    try:
        found = dataset.explanation()
    except (InputError, OSError):
        return None  # a function makes it, or its files are not there: the pass itself says so
    shared = len(found.workers) == 1 or all(worker.rows is not None for worker in found.workers)
    return found.batches if shared else None
