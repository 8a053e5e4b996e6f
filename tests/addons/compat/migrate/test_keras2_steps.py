"""Training steps of Keras 2 after `migrate --write`: the loss and the metrics are those that Keras 2 computed."""

from __future__ import annotations

import pytest

from jaxtribute._src.addons.compat.migrate.scan import scan
from processes import run_python

HEAD = """
import tensorflow as tf
class M(tf.keras.Model):
"""
STEP = """
    def test_step(self, data):
        x, y, w = data
        y_pred = self(x, training=False)
        {loss}
        self.compiled_metrics.update_state({y}, sample_weight=w)
        return self.get_metrics_result()
"""
KEPT = "loss = self.compiled_loss(y, y_pred, w, regularization_losses=self.losses)"
BARE = "self.compiled_loss(y, y_pred, sample_weight=w, regularization_losses=list(self.losses))"


def step(loss: str = KEPT, y: str = "y, y_pred") -> str:
    """A program whose step has that line for the loss, and those arguments of the metrics."""
    return HEAD + STEP.format(loss=loss, y=y)


def left(program: str) -> list[str]:
    """The names of what is left to the reader."""
    return [finding.name for finding in scan(program).left()]


@pytest.mark.parametrize("loss", [KEPT, BARE])
@pytest.mark.parametrize("y", ["y, y_pred", "y_true=y, y_pred=y_pred"])
def test_a_step_with_the_models_own_losses_is_rewritten_as_a_whole(loss: str, y: str) -> None:
    text = scan(step(loss, y)).rewritten()
    assert not left(step(loss, y))
    assert not left(text)
    assert "        loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=w)\n" in text
    assert "        self.compute_metrics(x=None, y=y, y_pred=y_pred, sample_weight=w)\n" in text


FITTED = """
import tensorflow as tf
class M(tf.keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}
    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}
"""
FIT = """
import numpy as np, jaxtribute as jd

def fit(kind):
    with jd.MirroredStrategy().scope():
        x = tf.keras.Input((2,))
        hidden = tf.keras.layers.Dense(2, kernel_initializer="ones", kernel_regularizer="l2")(x)
        model = kind(x, [tf.keras.layers.Dense(1, kernel_initializer="ones", name=name)(hidden) for name in "ab"])
        model.own = tf.keras.metrics.Mean(name="own")
        model.compile("sgd", ["mse", "mae"], metrics=[["mae"], ["mse"]])
    data = np.ones((8, 2), np.float32), (np.zeros((8, 1), np.float32), np.zeros((8, 1), np.float32))
    told = model.fit(*data, epochs=2, batch_size=4, verbose=0, validation_data=data).history
    return {name: np.asarray(told[name]) for name in sorted(told)}

expected, got = fit(tf.keras.Model), fit(M)
assert expected.keys() == got.keys() and {"a_loss", "val_b_mse", "own"} <= got.keys(), (expected, got)
for name in got:
    np.testing.assert_allclose(got[name], expected[name], rtol=1e-5, err_msg=name)
"""


@pytest.mark.slow
def test_steps_of_a_model_of_several_outputs_tell_what_keras_3s_own_steps_tell() -> None:
    run_python(scan(FITTED).rewritten() + FIT, devices=1, env={"KERAS_BACKEND": "jax"})


@pytest.mark.parametrize(
    "call",
    [
        "self.compiled_loss(y, y_pred)",
        "self.compiled_loss(y, y_pred, regularization_losses=None)",
        "self.compiled_loss(y, y_pred, regularization_losses=[penalty])",
    ],
)
def test_a_loss_without_the_models_own_losses_is_left_to_the_reader(call: str) -> None:
    program = step(f"loss = {call}\n        loss += sum(self.losses)")
    (told, _) = (finding for finding in scan(program).left())
    assert (told.name, told.line) == (".compiled_loss", 8)
    assert "self.compute_loss(y=y, y_pred=y_pred)" in told.advice
    assert "sum(self.losses)" in told.advice
    assert call in scan(program).rewritten()


def test_a_method_that_is_itself_compute_loss_does_not_come_to_call_itself() -> None:
    method = "    def compute_loss(self, x, y, y_pred, w):\n        return " + KEPT.partition("= ")[2] + "\n"
    (told,) = scan(HEAD + method).left()
    assert "super().compute_loss(y=y, y_pred=y_pred, sample_weight=w)" in told.advice
    assert method in scan(HEAD + method).rewritten()


def test_each_step_updates_its_metrics_with_its_own_loss() -> None:
    other = STEP.replace("test_step", "train_step").format(loss=KEPT, y="y, y_pred")
    program = step(KEPT.replace("loss", "val", 1), "y, y_pred") + other
    text = scan(program).rewritten()
    assert not left(program)
    assert text.index("update_state(val)") < text.index("def train_step") < text.index("update_state(loss)")


@pytest.mark.parametrize(
    "loss",
    [
        f"{KEPT}\n        loss += self.extra(x)",
        "loss = self.extra(x)",
        "loss = self.extra(x) + self.compiled_loss(y, y_pred, regularization_losses=self.losses)",
        f"loss = self.extra(x)\n        {BARE}",
    ],
)
def test_metrics_are_left_to_the_reader_where_no_name_holds_the_loss(loss: str) -> None:
    other = STEP.replace("test_step", "train_step").format(loss=KEPT, y="y, y_pred")
    program = step(loss) + other
    assert left(program) == [".compiled_metrics"]
    assert scan(program).rewritten().count("self.compiled_metrics.update_state(y, y_pred, sample_weight=w)") == 1


@pytest.mark.parametrize("method", ["compute_metrics", "metrics"])
def test_metrics_of_a_model_that_lists_or_updates_them_itself_are_left_to_the_reader(method: str) -> None:
    assert left(f"{step()}    def {method}(self, *given):\n        return []\n") == [".compiled_metrics"]
