"""Calls of Keras 2 that `migrate --write` rewrites: what comes out is Python that Keras 3 takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxtribute._src.addons.compat.migrate.scan import scan

STEP = """
import tensorflow as tf
class M(tf.keras.Model):
    def train_step(self, data):
        x, y, w = data
        y_pred = self(x)
        loss = self.compiled_loss(y, y_pred, w, regularization_losses=self.losses)
        self.compiled_metrics.update_state(y, y_pred, sample_weight=w)
        return loss
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tf.keras.optimizers.Adam(lr=0.1, beta_1=0.9)", "tf.keras.optimizers.Adam(learning_rate=0.1, beta_1=0.9)"),
        (
            "tf.keras.backend.sum(tf.keras.backend.square(x), axis=-1)",
            "tf.keras.ops.sum(tf.keras.ops.square(x), axis=-1)",
        ),
        ("tf.keras.backend.flatten(x)", "tf.keras.ops.ravel(x)"),
        ("model.compile('sgd', 'mse', ['mae'])", "model.compile('sgd', 'mse', metrics=['mae'])"),
        (
            "model.compile('sgd', 'mse', ['mae'], [1.0])",
            "model.compile('sgd', 'mse', metrics=['mae'], loss_weights=[1.0])",
        ),
        ("o.get_scaled_loss(loss)", "loss"),
    ],
)
def test_a_call_is_rewritten_and_nothing_is_left(before: str, after: str) -> None:
    report = scan(f"import tensorflow as tf\n{before}\n")
    assert not report.left()
    assert report.rewritten().splitlines()[-1] == after
    assert not scan(report.rewritten()).left()


@pytest.mark.parametrize("call", ["tf.keras.backend.sum(x, dims=1)", "tf.keras.backend.argmax(x)"])
def test_what_has_other_arguments_or_defaults_is_left_to_the_reader(call: str) -> None:
    report = scan(f"import tensorflow as tf\n{call}\n")
    assert report.left()
    assert call in report.rewritten()


def test_a_training_step_updates_the_loss_and_the_metrics() -> None:
    text = scan(STEP).rewritten()
    assert not scan(text).left()
    told: dict[str, Any] = {}

    class Base:
        metrics = [  # noqa: RUF012
            SimpleNamespace(name=name, update_state=lambda *a, name=name, **k: told.update({name: (a, k)}))
            for name in ("loss", "mae")
        ]

        def __call__(self, x: Any) -> Any:
            return 2 * x

        def compute_loss(self, y: Any, y_pred: Any, sample_weight: Any) -> Any:
            return y + y_pred + sample_weight

    space: dict[str, Any] = {"tf": SimpleNamespace(keras=SimpleNamespace(Model=Base))}
    exec(text.partition("tf\n")[2], space)
    assert space["M"]().train_step((1, 10, 100)) == 112
    assert told == {"loss": ((112,), {}), "mae": ((10, 2), {"sample_weight": 100})}
