"""Which adapter takes which dataset."""

from collections.abc import Iterator
from typing import Any

import grain
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtribute._src.core.input.sources import adapt
from jaxtribute._src.core.points import SOURCES
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.input import ArraySource, make_numpy_dataset


class Batches:
    def __iter__(self) -> Iterator[Any]:
        yield np.arange(2)


def loader() -> Any:
    sampler = grain.samplers.IndexSampler(4, grain.sharding.NoSharding(), shuffle=False, num_epochs=1)
    return grain.DataLoader(data_source=ArraySource(np.arange(4)), sampler=sampler)


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (grain.MapDataset.range(3), "grain.MapDataset"),
        (grain.MapDataset.range(3).to_iter_dataset().map(lambda x: x), "grain.IterDataset"),
        (make_numpy_dataset(np.arange(4)).to_iter_dataset().batch(2), "grain.MapDataset"),
        (loader(), "grain.DataLoader"),
        (np.zeros((3, 2)), "grain.MapDataset"),
        (jnp.zeros(3), "grain.MapDataset"),
        ((np.zeros(3), {"y": jnp.zeros(3)}), "grain.MapDataset"),
        ({"x": np.zeros(3)}, "grain.MapDataset"),
        ([np.zeros(3)], "iterable of batches"),
        ([(np.zeros(3), np.zeros(3))], "iterable of batches"),
        (Batches(), "iterable of batches"),
        ((x for x in [np.zeros(2)]), "iterable of batches"),
    ],
)
def test_each_dataset_has_its_adapter(dataset: Any, name: str) -> None:
    source = adapt(dataset)
    assert source.name == name
    assert adapt(source) is source


@pytest.mark.parametrize("dataset", [3, None, object(), lambda: 1])
def test_what_no_adapter_takes(dataset: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"cannot be distributed\. HINT: give one of: .*any iterable"):
        adapt(dataset)


def test_an_adapter_registers_itself_once() -> None:
    adapt([])
    names = [adapter.name for adapter in SOURCES.entries()]
    assert len(set(names)) == len(names)
    assert {"grain.MapDataset", "grain.IterDataset", "grain.DataLoader"} <= set(names)


def test_the_most_general_adapter_comes_last() -> None:
    adapt([])
    assert max(SOURCES.entries(), key=lambda adapter: adapter.rank).name == "any iterable of batches"
