"""What Keras may read from, and how it reaches the replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.addons.keras.data import DistributedAdapter, Placed, Placer, adapted
from jaxtribute._src.core.values.distributed import PerReplica
from jaxtribute.errors import ArgumentError
from keras_models import BATCH, X, Y, both, classifier, keras

BATCHES = [(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, len(X), BATCH)]


class Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return len(BATCHES)

    def __getitem__(self, index: int) -> Any:
        return BATCHES[index]


def generated() -> Iterator[Any]:
    yield from BATCHES


@pytest.fixture(scope="module")
def model(four: jd.Strategy) -> Any:
    with four.scope():
        return classifier()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras says so at the end of a source without length
def test_every_source_gives_the_same(model: Any, four: jd.Strategy) -> None:
    expected = model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    records = grain.MapDataset.source(list(zip(X, Y, strict=True))).batch(BATCH)
    distributed = four.experimental_distribute_dataset(BATCHES)
    sources = [Sequence(), records, records.to_iter_dataset(), distributed, distributed]  # the last one twice
    for source in sources:
        np.testing.assert_allclose(model.evaluate(source, verbose=0), expected, rtol=1e-6)
    for once in (generated(), iter(distributed)):
        np.testing.assert_allclose(model.evaluate(once, steps=len(BATCHES), verbose=0), expected, rtol=1e-6)


def test_functions_that_make_datasets(model: Any, four: jd.Strategy) -> None:
    def quarters(context: jd.InputContext) -> Any:
        assert context.num_replicas_in_sync == 4
        return [(X[i : i + 4], Y[i : i + 4]) for i in range(0, len(X), 4)]

    expected = model.evaluate(X, Y, batch_size=16, verbose=0)
    for function in (quarters, jd.experimental.DatasetCreator(quarters)):
        np.testing.assert_allclose(model.evaluate(function, steps=1, verbose=0), expected, rtol=1e-6)
    with pytest.raises(ArgumentError, match=r"y with a function that makes datasets. HINT"):
        model.evaluate(quarters, Y, verbose=0)


def test_distributed_datasets_in_fit(model: Any, four: jd.Strategy) -> None:
    distributed = four.experimental_distribute_dataset(BATCHES)
    history = model.fit(distributed, validation_data=distributed, epochs=2, verbose=0).history
    np.testing.assert_allclose(history["val_loss"][-1], model.evaluate(distributed, verbose=0)[0], rtol=1e-6)
    endless = four.experimental_distribute_dataset(BATCHES * 3)
    before = int(model.optimizer.iterations.numpy())
    model.fit(iter(endless), steps_per_epoch=4, epochs=2, verbose=0)
    assert int(model.optimizer.iterations.numpy()) - before == 8
    with pytest.raises(ValueError, match=r"class_weight=.*HINT: let the dataset give weights"):
        model.fit(distributed, class_weight={0: 1.0}, verbose=0)


def test_batches_are_cut_as_tensorflow_cuts_them(four: jd.Strategy) -> None:
    (x, y, nothing), total = Placer(four, True)((X[:6], Y[:6], None))
    assert total == 6
    assert nothing is None
    assert [part.shape[0] for part in x.values] == [2, 2, 2, 0]
    np.testing.assert_array_equal(np.concatenate([np.asarray(part) for part in y.values]), Y[:6])
    (x,), total = Placer(jd.OneDeviceStrategy("CPU:3"), False)((X[:5],))
    assert total == 5
    assert [device.id for device in x.devices()] == [3]


def test_what_is_placed_already_shows_the_shape_of_the_whole(four: jd.Strategy) -> None:
    adapter = adapted(four.experimental_distribute_dataset([(X[:6], Y[:6]), (X[:8], Y[:8])]), four)
    assert isinstance(adapter, DistributedAdapter)
    assert (adapter.num_batches, adapter.batch_size, adapter.has_partial_batch, adapter.partial_batch_size) == (
        None,
    ) * 4
    ragged, even = adapter.get_numpy_iterator()
    assert [leaf.shape for leaf in ragged] == [(6, 8), (6,)]
    assert [leaf.dtype for leaf in even] == [np.float32, np.int32]
    assert [leaf.shape for leaf in even] == [(8, 8), (8,)]
    placed, total = Placer(four, True)(even)
    assert total == 8
    assert all(isinstance(leaf, PerReplica) for leaf in placed)
    alone = jd.OneDeviceStrategy("CPU:0")
    (whole,) = next(iter(adapted(alone.experimental_distribute_dataset([(X[:3],)]), alone).get_jax_iterator()))
    assert isinstance(whole, Placed)
    assert whole.shape == (3, 8)
    assert adapted(X, four) is X


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scipy", "BCOO"])
def test_sparse_inputs_are_cut_by_rows(kind: str, four: jd.Strategy) -> None:
    import scipy.sparse
    from jax.experimental import sparse

    dense: Any = np.where(X > 0.5, X, 0)
    given = scipy.sparse.csr_matrix(dense) if kind == "scipy" else sparse.BCOO.fromdense(dense)

    def use(model: Any) -> dict[str, Any]:
        losses = model.fit(given, Y, batch_size=6, shuffle=False, verbose=0).history["loss"]
        return {"losses": losses, "outputs": model.predict(given, batch_size=6, verbose=0)}

    expected, found = both(classifier, use, four)
    assert found["outputs"].shape == (16, 3)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)


class OneBuffer(keras.utils.PyDataset):
    """Gives each batch in the same memory, at an address at which JAX uses it as it is."""

    def __init__(self) -> None:
        super().__init__()
        memory = np.empty(4 * 8 * X.itemsize + 64, np.uint8)
        start = -memory.ctypes.data % 64
        self.buffer = memory[start : start + 4 * 8 * X.itemsize].view(np.float32).reshape(4, 8)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        self.buffer[...] = X[index * 4 : index * 4 + 4]
        return self.buffer, Y[index * 4 : index * 4 + 4]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_source_may_write_the_next_batch_where_the_last_one_was(replicas: int) -> None:
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    with strategy.scope():
        placer = Placer(strategy, False)
        batches = keras.src.backend.jax.trainer.JAXEpochIterator(OneBuffer())._get_iterator()
        placed = [placer(batch)[0][0] for batch in batches]  # all of them before the first one is read
    read = [np.asarray(strategy.gather(leaf, axis=0)) for leaf in placed]
    np.testing.assert_array_equal(np.concatenate(read), X)
    with strategy.scope():
        model = classifier()
    np.testing.assert_array_equal(model.predict(OneBuffer(), verbose=0), model.predict(X, batch_size=4, verbose=0))


def test_one_devices_program_takes_numbers_of_numpy_as_they_are(four: jd.Strategy) -> None:
    alone = jd.OneDeviceStrategy("CPU:1")
    (x, y), total = Placer(alone, True)((X[:5], Y[:5]))
    assert total == 5
    assert np.shares_memory(x, X)
    assert np.shares_memory(y, Y)
    words = np.array(["a", "b"], object)
    for strategy, compiled, batch in ((alone, False, X[:4]), (four, True, X[:4]), (alone, True, jax.device_put(X[:4]))):
        placed, _ = Placer(strategy, compiled)(batch)
        assert not isinstance(placed, np.ndarray)
    with pytest.raises(jd.errors.InputError):
        Placer(alone, True)(words)
    with pytest.warns(UserWarning, match="keeps the last bits"):
        Placer(alone, True)(np.array([2**40, 1]))


KINDS = (np.float32, np.int32, np.int64, np.uint8, np.bool_, np.float16)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), compiled=st.booleans(), replicas=st.sampled_from([1, 2, 4]))
def test_batches_like_an_earlier_one_are_placed_as_that_was(data: st.DataObject, compiled: bool, replicas: int) -> None:
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    placer = Placer(strategy, compiled)
    for number in range(8):
        kind, rows = data.draw(st.sampled_from(KINDS)), data.draw(st.integers(0, 4))
        x = np.arange(number, number + rows * 3).reshape(rows, 3).astype(kind)
        batch = data.draw(st.sampled_from([(x,), (x, x[:, 0]), {"x": x}, (x, None), (jnp.asarray(x), x)]))
        (found, total), (expected, fresh) = placer(batch), Placer(strategy, compiled)(batch)
        assert total == fresh == rows
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert type(one) is type(other)
            assert one.dtype == other.dtype
            assert getattr(one, "sharding", None) == getattr(other, "sharding", None)
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("replicas", [1, 2])
def test_every_batch_is_looked_through_for_numbers_that_do_not_fit(replicas: int) -> None:
    placer = Placer(jd.MirroredStrategy([f"CPU:{i}" for i in range(replicas)]), True)
    small = np.array([1, 2])
    for _ in range(2):
        placer(small)
    with pytest.warns(UserWarning, match="keeps the last bits"):
        placer(small + 2**40)


def test_batches_of_whole_arrays_are_not_copied() -> None:
    with jd.MirroredStrategy(["CPU:0"]).scope():
        batches = keras.src.backend.jax.trainer.JAXEpochIterator(X, batch_size=4, shuffle=False)._get_iterator()
        assert all(np.shares_memory(batch, X) for batch in batches)
