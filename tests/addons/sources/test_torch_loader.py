"""PyTorch loaders, where PyTorch is installed."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxtribute._src.core.input.sources import adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import InputError
from jaxtribute.input import InputContext, distribute_dataset

torch: Any = pytest.importorskip("torch")
data: Any = pytest.importorskip("torch.utils.data")

# Releases of PyTorch and torchdata warn of each other.
pytestmark = pytest.mark.filterwarnings("ignore")


def loader(examples: int = 10, batch: int = 4, **options: Any) -> Any:
    rows = data.TensorDataset(torch.arange(examples), torch.arange(examples).reshape(examples, 1).float())
    return data.DataLoader(rows, batch_size=batch, **options)


def read(stream: Any) -> list[list[int]]:
    found: list[list[int]] = []
    while True:
        try:
            found.append(jax.tree.leaves(next(stream).tree)[0].tolist())
        except StopIteration:
            return found


def test_batches_are_arrays() -> None:
    source = adapt(loader())
    assert source.name == "torch.utils.data.DataLoader"
    assert read(source.open(Shard())) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert source.length() == (3, 10)
    assert source.batch_size() == 4
    assert source.left_over() == 0


def test_drop_last() -> None:
    source = adapt(loader(drop_last=True))
    assert source.static_rows()
    assert source.length() == (2, 8)
    assert source.left_over() == 2


def test_on_devices() -> None:
    mesh = ReplicaMesh(jax.devices()[:4])
    found = list(distribute_dataset(loader(), mesh, None, InputContext(1, 0, 4)))
    labels = [[np.asarray(part).tolist() for part in element[0].values] for element in found]
    assert labels == [[[0], [1], [2], [3]], [[4], [5], [6], [7]], [[8], [9], [], []]]
    assert found[0][1].values[0].shape == (1, 1)


def test_structures() -> None:
    records = [{"x": np.float32(number), "pair": (number, [number])} for number in range(4)]
    stream = adapt(data.DataLoader(records, batch_size=2)).open(Shard())
    batch = next(stream)
    assert batch.tree["x"].tolist() == [0, 1]
    assert batch.tree["pair"][1][0].tolist() == [0, 1]
    assert batch.total == 2


def test_an_ordered_loader_goes_to_a_position() -> None:
    stream = adapt(loader()).open(Shard())
    stream.set_state({"batches": 2})
    assert read(stream) == [[8, 9]]


def test_a_shuffling_loader_does_not() -> None:
    source = adapt(loader(shuffle=True))
    assert source.shuffled_anew
    with pytest.raises(InputError, match=r"shuffles.*StatefulDataLoader"):
        source.open(Shard()).set_state({"batches": 1})


def test_a_stateful_loader_keeps_its_position() -> None:
    stateful: Any = pytest.importorskip("torchdata.stateful_dataloader")
    rows = data.TensorDataset(torch.arange(10))

    def make() -> Any:
        generator = torch.Generator()
        generator.manual_seed(3)
        return stateful.StatefulDataLoader(rows, batch_size=4, shuffle=True, generator=generator)

    everything = read(adapt(make()).open(Shard()))
    first = adapt(make()).open(Shard())
    before = [next(first).tree[0].tolist()]
    state = first.get_state()
    second = adapt(make()).open(Shard())
    second.set_state(state)
    assert before + read(second) == everything
    with pytest.raises(InputError, match="before its first batch"):
        second.set_state(state)


def test_a_stream_of_batches_without_a_length() -> None:
    class Numbers(data.IterableDataset):  # pyright: ignore[reportUntypedBaseClass]
        def __iter__(self) -> Any:
            return iter(range(5))

    source = adapt(data.DataLoader(Numbers(), batch_size=2))
    assert source.length() is None
    assert read(source.open(Shard())) == [[0, 1], [2, 3], [4]]
