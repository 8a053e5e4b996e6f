"""Keras's TensorBoard callback without TensorFlow."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorboardX.proto import event_pb2 as event_pb2  # before a test: it sets an environment variable

import jaxtribute as jd
from jaxtribute.errors import ArgumentError
from jaxtribute.integrations.keras import TensorBoard

pytestmark = pytest.mark.slow


class Kept:
    """A tracker that keeps what is written."""

    def __init__(self) -> None:
        self.numbers: list[tuple[str, int, float]] = []
        self.histograms: list[tuple[str, int]] = []

    def scalars(self, values: Any, step: int, time_s: float) -> None:
        self.numbers += [(name, step, float(value)) for name, value in values.items()]

    def histogram(self, name: str, values: Any, step: int, time_s: float) -> None:
        self.histograms.append((name, step))

    def text(self, name: str, text: str, step: int, time_s: float) -> None: ...

    def configure(self, settings: Any) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def fitted(strategy: jd.Strategy, callback: keras.callbacks.Callback) -> keras.callbacks.History:
    x = np.arange(24, dtype=np.float32).reshape(12, 2) / 24
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model: Any = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="only")])
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model.fit(
        x, x.sum(1), batch_size=4, epochs=2, validation_data=(x[:4], x[:4].sum(1)), verbose=0, callbacks=[callback]
    )


def test_epochs_batches_and_weights_are_written_under_keras_names() -> None:
    kept = Kept()
    callback = TensorBoard("nowhere", histogram_freq=1, update_freq=2, trackers=[kept])
    history = fitted(jd.MirroredStrategy(["CPU:0", "CPU:1"]), callback).history
    found = {(name, step): value for name, step, value in kept.numbers}
    steps = {step for name, step in found if name == "batch_loss"}
    assert steps == {2, 4, 6}
    names = {name for name, _ in found}
    assert names == {"batch_loss", "epoch_loss", "epoch_learning_rate", "evaluation_loss_vs_iterations"}
    losses = [value for name, _, value in kept.numbers if name == "epoch_loss"]
    np.testing.assert_allclose(sorted(losses), sorted(history["loss"] + history["val_loss"]), rtol=1e-6)
    assert found["evaluation_loss_vs_iterations", 6] == pytest.approx(history["val_loss"][1], rel=1e-6)
    assert found["epoch_learning_rate", 1] == pytest.approx(0.1)
    assert {step for _, step in kept.histograms} == {0, 1}
    assert {name.partition("/")[2] for name, _ in kept.histograms} == {
        f"only/{name}/histogram" for name in ("kernel", "bias")
    }


def test_files_lie_where_keras_puts_them(tmp_path: Path) -> None:
    fitted(jd.get_strategy(), TensorBoard(tmp_path / "log"))
    for part in ("train", "validation"):
        (file,) = (tmp_path / "log" / part).iterdir()
        assert "tfevents" in file.name
        assert b"epoch_loss" in file.read_bytes()


def test_pictures_of_weights_are_refused() -> None:
    with pytest.raises(ArgumentError, match="write_images"):
        TensorBoard(write_images=True)
