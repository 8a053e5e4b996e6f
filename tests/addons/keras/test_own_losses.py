"""Steps and losses of the user's own with each way to reduce a loss and to weight examples, beside plain Keras."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import JaxtributeError
from keras_models import RNG, WEIGHTS, devices, keras, trained

TOKENS = RNG.integers(0, 4, (16, 3), np.int32)
TOKENS[:, 0] = 1
LABELS = RNG.integers(0, 2, (16, 3), np.int32)
RANDOM = RNG.uniform(0.1, 2, (16, 3)).astype(np.float32)
REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none", "several", "one number", "rows")


class Net(keras.Model):
    """Scores of tokens, of which a mask may leave some out."""

    def __init__(self, *, masked: bool, several: bool) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(4, 2, mask_zero=masked)
        self.heads = [keras.layers.Dense(2, name=name) for name in (("a", "b") if several else ("a",))]
        self.several = several

    def call(self, x: Any) -> Any:
        tokens = self.table(x)
        if self.several:
            return {head.name: head(tokens) for head in self.heads}
        return self.heads[0](tokens)


class CallsKeras(Net):
    def train_step(self, state: Any, data: Any) -> Any:
        return super().train_step(state, data)


class WrittenOut(Net):
    """The step of Keras's guide to custom steps in JAX."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, layers, optimizer, metrics = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

        gradient = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        options = {"training": True, "optimizer_variables": optimizer}
        (_, aux), grads = gradient(trainable, layers, metrics, x, y, sample_weight, **options)
        value, _, layers, _ = aux
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        new: list[Any] = []
        logs: dict[str, Any] = {}
        for metric in self.metrics:
            mine = metrics[len(new) : len(new) + len(metric.variables)]
            if metric.name == "loss":
                mine = metric.stateless_update_state(mine, value, sample_weight=x.shape[0])
                logs["loss"] = metric.stateless_result(mine)
            new += mine
        return logs, (trainable, layers, optimizer, new)


class Halved(Net):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs) / 2


class Penalised(Net):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        penalty = sum(jnp.sum(jnp.square(head.kernel.value)) for head in self.heads)
        return super().compute_loss(*args, **kwargs) + 0.1 * penalty


class PenalisedInStep(Penalised, CallsKeras):
    """A loss and a step."""


class OwnUpdates(Net):
    def compute_loss_and_updates(self, *args: Any, **kwargs: Any) -> Any:
        loss, others = super().compute_loss_and_updates(*args, **kwargs)
        return 3 * loss, others


class InStepOfTensorFlow(Net):
    def train_step(self, data: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

        def loss() -> Any:
            return self.compute_loss(x=x, y=y, y_pred=self(x, training=True), sample_weight=sample_weight)

        value, grads = jd.value_and_grad(loss, self.trainable_variables)()
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": value}


KINDS: tuple[type[Any], ...] = (Net, CallsKeras, WrittenOut, Halved, Penalised, PenalisedInStep, OwnUpdates)
STRATEGIES: tuple[Callable[[], jd.Strategy], ...] = (
    lambda: jd.MirroredStrategy(devices(2)),
    lambda: jd.MirroredStrategy(devices(4)),
    lambda: jd.FullyShardedStrategy(devices(4)),
)
WEIGHTINGS = ("none", "of rows", "of tokens", "mask", "mask and rows")


def squares(y: Any, y_pred: Any) -> Any:
    """A value for each token."""
    return jnp.mean(jnp.square(jax.nn.one_hot(y.astype(jnp.int32), 2) - y_pred), -1)


def build(kind: type[Any], reduction: str, weighting: str, *, eager: bool = False) -> Any:
    keras.utils.set_random_seed(0)
    model = kind(masked=weighting.startswith("mask"), several=reduction == "several")

    def crossentropy(reduction: str) -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)

    losses: dict[str, Any] = {
        "several": {"a": crossentropy("mean_with_sample_weight"), "b": crossentropy("sum")},
        "one number": lambda y, y_pred: jnp.mean(squares(y, y_pred)),
        "rows": squares,
    }
    weights = {"a": 1.0, "b": 0.25} if reduction == "several" else None
    loss = losses[reduction] if reduction in losses else crossentropy(reduction)
    model.compile(keras.optimizers.SGD(0.05), loss, loss_weights=weights, run_eagerly=eager)
    model(TOKENS[:1])
    return model


def use(model: Any, weighting: str) -> dict[str, Any]:
    """Seven rows, then seven, then two: on four replicas 2, 2, 2, 1, and 1, 1, 0, 0."""
    labels: Any = {"a": LABELS, "b": LABELS[::-1]} if model.several else LABELS
    given: dict[str, Any] = {}
    if weighting.endswith("rows"):
        given["sample_weight"] = WEIGHTS[:, None] * np.ones((1, 3), np.float32)
    elif weighting == "of tokens":
        given["sample_weight"] = RANDOM
    if model.several and "sample_weight" in given:
        given["sample_weight"] = {"a": given["sample_weight"], "b": given["sample_weight"] / 2}
    return trained(model, TOKENS, labels, batch_size=7, shuffle=False, **given)


def is_same(expected: dict[str, Any], found: dict[str, Any]) -> bool:
    return all(np.allclose(found[name], value, rtol=1e-4, atol=1e-5) for name, value in expected.items())


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", [*KINDS, InStepOfTensorFlow], ids=lambda kind: kind.__name__)
def test_a_step_is_that_of_one_device_or_is_said_not_to_be(kind: type[Any], reduction: str, weighting: str) -> None:
    try:
        # In TensorFlow's form Keras has no step on JAX; without one of its own the numbers are the same.
        expected = use(build(Net if kind is InStepOfTensorFlow else kind, reduction, weighting), weighting)
    except (TypeError, ValueError) as error:
        pytest.skip(f"plain Keras refuses it: {error}")
    number = sum(map(len, (kind.__name__, reduction, weighting)))
    strategy = STRATEGIES[number % len(STRATEGIES)]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with strategy.scope():
                model = build(kind, reduction, weighting)
            found = use(model, weighting)
        except (JaxtributeError, NotImplementedError) as refusal:
            assert "HINT" in str(refusal)  # noqa: PT017
            return
    # Losses that Keras reduces are known: of them nothing is said, with a penalty for weights neither.
    told = [str(one.message) for one in caught if "HINT" in str(one.message)]
    if kind is InStepOfTensorFlow:  # whose metrics are its own
        del expected["loss"]
    known = kind is not InStepOfTensorFlow and reduction not in ("one number", "rows")
    assert is_same(expected, found) or told, {name: (expected[name], found[name]) for name in expected}
    assert not (known and told), told
