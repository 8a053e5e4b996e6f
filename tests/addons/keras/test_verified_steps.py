"""`verify` on steps of a model's own, in TensorFlow's form and in Keras's for JAX, on batches of any size."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute.integrations.keras import Verify

ERROR = keras.losses.MeanSquaredError()


def whole_mean(y: Any, out: Any) -> Any:
    context = jd.get_replica_context()
    assert context is not None
    return jnp.sum((y - out) ** 2) / context.all_reduce("SUM", y.shape[0])


LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "compute_loss": lambda model, y, out: model.compute_loss(y=y, y_pred=out),
    "a loss object": lambda model, y, out: ERROR(y, out),
    "two rows of each": lambda model, y, out: ERROR(keras.ops.concatenate([y, -y]), keras.ops.concatenate([out, out])),
    "weighted": lambda model, y, out: ERROR(y, out, sample_weight=y[:, 0] ** 2),
}


class InForm(keras.Sequential):
    """A step in TensorFlow's form."""

    own: Any

    def __init__(self, layers: Any) -> None:
        super().__init__(layers)
        self.tracker = keras.metrics.Mean(name="tracked")

    def train_step(self, data: Any) -> Any:
        x, y = data
        loss, grads = jd.value_and_grad(lambda: self.own(self, y, self(x)), self.trainable_variables)()
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"own": loss, "tracked": self.tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


class ForJax(keras.Sequential):
    """A step in Keras's form for JAX."""

    own: Any

    def train_step(self, state: Any, data: Any) -> Any:
        (trainable, others, slots, metrics), (x, y) = state, data

        def loss_of(trainable: Any) -> Any:
            out, after = self.stateless_call(trainable, others, x, training=True)[:2]
            return self.own(self, y, out), after

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
        return {"own": loss}, (trainable, others, slots, metrics)


def verdict_of(form: type[Any], loss: Any, rows: int) -> testing.Verdict:
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(rows, size)).astype(np.float32) for size in (4, 1))
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = form([keras.Input((4,)), keras.layers.Dense(1)])
        model.own = loss
        model.compile("sgd", "mse")
    verify = Verify(raises=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps that are wrong are warned of
        model.fit(x, y, batch_size=rows, verbose=0, callbacks=[verify])
    (verdict,) = verify.verdicts
    return verdict


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("rows", [3, 8, 12, 20])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("form", [ForJax, InForm])
def test_right_steps_of_any_number_of_rows(form: type[Any], name: str, rows: int) -> None:
    verdict = verdict_of(form, LOSSES[name], rows)
    assert verdict.right, str(verdict)
    assert len(verdict.tried) >= 5, str(verdict)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("rows", [3, 8])
def test_sums_of_the_whole_batch_are_right_and_means_of_ones_own_are_found(rows: int) -> None:
    right = verdict_of(InForm, lambda _, y, out: whole_mean(y, out), rows)
    assert "kernel" not in str(right), str(right)  # a metric counts a share by its rows
    wrong = verdict_of(InForm, lambda model, y, out: jnp.mean((y - out) ** 2), rows)
    assert [one.culprit.pattern.name for one in wrong.findings] == ["local-mean"], str(wrong)
