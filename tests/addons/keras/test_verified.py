"""The callback that verifies the steps of `fit`."""

import contextlib
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute.integrations.keras import Verify


@pytest.mark.slow
def test_keras_fit_is_verified_by_a_callback() -> None:
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(40, size)).astype(np.float32) for size in (4, 1))
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model: Any = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6, "relu"),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"])
    verify = Verify()
    model.fit(x, y, batch_size=20, epochs=2, validation_split=0.5, verbose=0, callbacks=[verify])
    assert len(verify.verdicts) == 2, verify.verdicts
    assert all(one.right and len(one.tried) >= 5 and not one.unverified for one in verify.verdicts), verify.verdicts

    def hardest(y: Any, out: Any) -> Any:
        return keras.ops.max((y - out) ** 2)

    model.compile("adam", hardest)
    before = model.get_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's steps warn of it, too
        with pytest.raises(testing.NotOneDeviceError, match=rf"{Path(__file__).name}:\d+.*\n(.*\n)*.*INSTEAD"):
            model.fit(x, y, batch_size=20, verbose=0, callbacks=[Verify()])
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))


@pytest.mark.slow
def test_steps_of_padded_batches_are_verified_where_a_replica_has_no_rows() -> None:
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    y = (x[:, :1] > 0).astype(np.int32)
    with jd.MirroredStrategy([f"CPU:{number}" for number in range(4)]).scope():
        model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    verify = Verify()
    model.fit(x, y, batch_size=50, verbose=0, validation_split=0.5, callbacks=[verify])
    assert len(verify.verdicts) == 2, verify.verdicts
    assert all(one.right and "not verified" not in str(one) for one in verify.verdicts), verify.verdicts


class Total(keras.metrics.Mean):
    """Tells its sum, which every replica adds to."""

    def result(self) -> Any:
        return self.total


@pytest.mark.parametrize(
    ("metric", "value", "names"),
    [
        # A mean to which each replica adds one number of its rows: only replicas with other numbers of rows spoil it.
        (keras.metrics.Mean, jnp.mean, {"mean-of-means"}),
        (keras.metrics.Mean, lambda x: x, set()),
        (keras.metrics.Mean, lambda x: x.sum() / 12, {"mean-of-sums"}),
        # The same numbers, but who tells the sum has it once for each replica.
        (Total, jnp.mean, {"local-mean"}),
        (Total, lambda x: x, set()),
    ],
    ids="numbers rows parts sum_of_numbers sum_of_rows".split(),
)
def test_a_mean_counts_what_each_replica_adds(metric: Any, value: Any, names: set[str]) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        told = metric("loss")

    def replica(x: Any) -> None:
        told.update_state(value(x))

    @jd.function
    def step(x: Any) -> None:
        strategy.run(replica, (x,))

    batch = next(iter(strategy.experimental_distribute_dataset([np.exp(-np.arange(12, dtype=np.float32))])))
    found = testing.verify(step, batch, strategy=strategy, raises=False)
    assert {one.culprit.pattern.name for one in found.findings} == names, str(found)
    assert found.right == (names <= {"mean-of-means"}), str(found)
    for one in found.findings:
        assert Path(__file__).name in str(one.culprit.place), str(found)


@pytest.mark.parametrize("made", ["in the scope", "outside"])
def test_replicas_of_a_custom_loop_drop_other_numbers(made: str) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope() if made == "in the scope" else contextlib.nullcontext():
        dropout: Any = keras.layers.Dropout(0.5)

    @jd.function
    def step(x: Any) -> Any:
        return strategy.run(lambda x: dropout(x, training=True), (x,))

    first, then = (np.ones((12, 8), np.float32) for _ in range(2))
    batches = list(strategy.experimental_distribute_dataset([first, then]))
    found = [value for batch in batches for value in map(np.asarray, step(batch).values)]
    assert len({value.tobytes() for value in found}) == 4, found
    testing.verify(step, first, strategy=strategy)
