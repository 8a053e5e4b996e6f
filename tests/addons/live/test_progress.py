"""The progress bar."""

import io
from collections.abc import Generator, Iterator

import jax
import numpy as np
import pytest
from rich.console import Console

import jaxtribute as jd


def console() -> Console:
    """A terminal whose text can be looked at."""
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)


def text(shown: Console) -> str:
    """The text that a terminal was given."""
    file = shown.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_batches_examples_and_the_end() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    data = strategy.experimental_make_numpy_dataset(np.arange(100, dtype=np.float32)).batch(32)
    shown, seen = console(), 0
    for batch in jd.progress(strategy.experimental_distribute_dataset(data), console=shown):
        seen += sum(part.shape[0] for part in batch.values)  # pyright: ignore[reportAttributeAccessIssue]
    assert seen == 100
    assert "4/4" in text(shown)
    assert "examples/s" in text(shown)


def test_a_list_knows_its_length_and_a_generator_does_not() -> None:
    shown = console()
    assert list(jd.progress([np.ones(3), np.ones(2)], console=shown, description="words")) is not None
    assert "words" in text(shown)
    assert "2/2" in text(shown)

    def batches() -> Iterator[int]:
        yield from range(3)

    shown = console()
    assert list(jd.progress(batches(), console=shown)) == [0, 1, 2]
    assert "3/?" in text(shown)


def test_totals_of_distributed_datasets() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    data = strategy.experimental_make_numpy_dataset(np.arange(100, dtype=np.float32)).batch(32)
    endless = strategy.experimental_distribute_dataset(data.repeat())
    made = strategy.distribute_datasets_from_function(lambda context: data)
    for dataset, taken, told in ((endless, 5, "/?"), (made, 2, "/?")):
        shown = console()
        batches = jd.progress(dataset, console=shown)
        assert isinstance(batches, Generator)
        for _ in range(taken):
            next(batches)
        batches.close()
        assert told in text(shown)


def test_only_the_first_worker_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    shown = console()
    assert list(jd.progress([1, 2], console=shown)) == [1, 2]
    assert text(shown) == ""


def test_a_wrong_total() -> None:
    with pytest.raises(jd.errors.ArgumentError, match="total"):
        jd.progress([1], total=-1)
