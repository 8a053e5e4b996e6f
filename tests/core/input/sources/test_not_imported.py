"""TensorFlow and PyTorch are recognised where they are imported, and never imported: with stand-ins for both."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxtribute._src.core.input.options import AutoShardPolicy
from jaxtribute._src.core.input.sources import adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.errors import InputError
from processes import run_python


@pytest.mark.slow
def test_neither_is_ever_imported() -> None:
    run_python(
        """
        import sys
        import numpy as np
        from jaxtribute._src.core.input.sources import adapt
        adapt([np.arange(2)])
        assert not {"tensorflow", "torch"} & set(sys.modules)
        """
    )


def drain(stream: Any) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(next(stream).tree)
        except StopIteration:
            return found


# --- PyTorch ---------------------------------------------------------------------------------------------------------


class Tensor:
    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)

    def detach(self) -> "Tensor":
        return self

    def cpu(self) -> "Tensor":
        return self

    def numpy(self) -> Any:
        return self.value


class SequentialSampler:
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


class RandomSampler(SequentialSampler):
    generator = None


class DataLoader:
    def __init__(self, length: int, batch_size: int, *, drop_last: bool = False, shuffle: bool = False) -> None:
        self.sampler = (RandomSampler if shuffle else SequentialSampler)(length)
        self.batch_size, self.drop_last = batch_size, drop_last

    def __len__(self) -> int:
        size = self.batch_size
        return self.sampler.length // size if self.drop_last else -(-self.sampler.length // size)

    def __iter__(self) -> Iterator[Any]:
        for batch in range(len(self)):
            stop = min((batch + 1) * self.batch_size, self.sampler.length)
            numbers = Tensor(range(batch * self.batch_size, stop))
            yield [numbers, {"again": numbers}]


class StatefulDataLoader(DataLoader):
    position = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in list(super().__iter__())[self.position :]:
            self.position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module, data = ModuleType("torch"), ModuleType("torch.utils.data")
    vars(module)["Tensor"], vars(data)["DataLoader"] = Tensor, DataLoader
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch.utils.data", data)


@pytest.mark.usefixtures("torch")
def test_a_loader() -> None:
    source = adapt(DataLoader(5, 2))
    assert source.name == "torch.utils.data.DataLoader"
    assert [tree[0].tolist() for tree in drain(source.open(Shard()))] == [[0, 1], [2, 3], [4]]
    assert [tree[1]["again"].tolist() for tree in drain(source.open(Shard()))] == [[0, 1], [2, 3], [4]]
    assert (source.length(), source.left_over(), source.batch_size()) == ((3, 5), 0, 2)
    dropping = adapt(DataLoader(5, 2, drop_last=True))
    assert (dropping.length(), dropping.left_over(), dropping.static_rows()) == ((2, 4), 1, True)


@pytest.mark.usefixtures("torch")
def test_positions_of_loaders() -> None:
    stream = adapt(DataLoader(5, 2)).open(Shard())
    stream.set_state({"batches": 2})
    assert [tree[0].tolist() for tree in drain(stream)] == [[4]]
    shuffling = adapt(DataLoader(5, 2, shuffle=True))
    assert shuffling.shuffled_anew
    with pytest.raises(InputError, match="StatefulDataLoader"):
        shuffling.open(Shard()).set_state({"batches": 1})


@pytest.mark.usefixtures("torch")
def test_positions_of_stateful_loaders() -> None:
    first = adapt(StatefulDataLoader(5, 2)).open(Shard())
    next(first)
    second = adapt(StatefulDataLoader(5, 2)).open(Shard())
    second.set_state(first.get_state())
    assert [tree[0].tolist() for tree in drain(second)] == [[2, 3], [4]]
    with pytest.raises(InputError, match="before its first batch"):
        second.set_state(first.get_state())
    second.close()


# --- TensorFlow ------------------------------------------------------------------------------------------------------


class Shape(tuple[int | None, ...]):
    @property
    def rank(self) -> int:
        return len(self)


class TensorSpec:
    def __init__(self, shape: tuple[int | None, ...], dtype: Any) -> None:
        self.shape, self.dtype = Shape(shape), SimpleNamespace(as_numpy_dtype=dtype)


class Dataset:
    def __init__(self, elements: list[Any], inputs: tuple[Any, ...] = (), policy: int = 0) -> None:
        self.elements, self.inputs, self.policy = elements, inputs, policy
        self.element_spec: Any = TensorSpec((None,), np.int64)

    def _inputs(self) -> tuple[Any, ...]:
        return self.inputs

    def options(self) -> Any:
        return SimpleNamespace(experimental_distribute=SimpleNamespace(auto_shard_policy=self.policy))

    def as_numpy_iterator(self) -> Iterator[Any]:
        return iter(self.elements)

    def skip(self, count: int) -> "Dataset":
        return Dataset(self.elements[count:])


class ShuffleDataset(Dataset):
    _seed, _seed2 = 3, 0
    _reshuffle_each_iteration: Any = False


class TFRecordDataset(Dataset):
    _filenames = np.array([b"a", b"b"])


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tensorflow")
    vars(module).update(data=SimpleNamespace(Dataset=Dataset), TensorSpec=TensorSpec, string=object())
    monkeypatch.setitem(sys.modules, "tensorflow", module)


@pytest.mark.usefixtures("tensorflow")
def test_a_tf_dataset() -> None:
    source = adapt(Dataset([np.arange(2), np.arange(1)], policy=-1))
    assert source.name == "tf.data.Dataset"
    assert source.policy() is AutoShardPolicy.OFF
    spec = source.spec()
    assert spec is not None
    assert (spec.shape, spec.dtype) == ((None,), np.int32)
    assert not source.static_rows()
    stream = source.open(Shard())
    assert [tree.tolist() for tree in drain(stream)] == [[0, 1], [0]]
    assert stream.get_state() == {"batches": 2}
    stream.set_state({"batches": 1})
    assert [tree.tolist() for tree in drain(stream)] == [[0]]
    stream.close()


@pytest.mark.usefixtures("tensorflow")
def test_elements_that_arrays_cannot_hold() -> None:
    dataset = Dataset([])
    dataset.element_spec = object()
    with pytest.raises(InputError, match=r"no shape.*HINT"):
        adapt(dataset).spec()


class InterleaveDataset(Dataset):
    """Reads the files that another dataset names."""


class FlatMapDataset(Dataset):
    """Likewise."""


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("kind", [InterleaveDataset, FlatMapDataset, ShuffleDataset])
def test_only_datasets_that_open_files_by_name_turn_strings_into_files(kind: type[Dataset]) -> None:
    names = Dataset([np.asarray(b"a"), np.asarray(b"b")])
    names.element_spec = TensorSpec((), np.bytes_)
    names.element_spec.dtype = vars(sys.modules["tensorflow"])["string"]
    files = adapt(Dataset([], (kind([], (names,)),))).files()
    assert files == (() if kind is ShuffleDataset else ("a", "b"))


@pytest.mark.usefixtures("tensorflow")
def test_shuffles_and_files_below() -> None:
    reader = TFRecordDataset([])
    steady = ShuffleDataset([], (reader,))
    assert adapt(Dataset([], (steady,))).files() == ("a", "b")
    assert not adapt(steady).shuffled_anew
    vars(steady)["_reshuffle_each_iteration"] = None
    anew = adapt(Dataset([], (steady,)))
    assert anew.shuffled_anew
    with pytest.raises(InputError, match="reshuffle_each_iteration=False"):
        anew.open(Shard()).set_state({"batches": 1})
