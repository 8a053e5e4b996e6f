"""Losses, statistics and gradients of a whole batch, from replicas that see parts of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.keras import share as shares
from jaxtribute._src.addons.keras.share import Share
from jaxtribute._src.core.execution.replica_context import ReplicaContext
from keras_models import RNG, WEIGHTS, X, Y, assert_same, both, crossentropy, keras, trained

# Of int64 JAX warns where Keras asks for shapes.
TOKENS = RNG.integers(0, 5, (16, 3), np.int32)
TOKENS[:, 0] = 1
LABELS = RNG.integers(0, 3, (16, 3), np.int32)


def every_reduction() -> Any:
    """One output for each way to reduce a loss, of masked tokens."""
    keras.utils.set_random_seed(0)
    inputs = keras.layers.Input((3,), dtype="int32")
    tokens = keras.layers.Embedding(5, 4, mask_zero=True)(inputs)
    names = "sum_over_batch_size", "sum", "mean", "mean_with_sample_weight"
    model = keras.Model(inputs, {name: keras.layers.Dense(3, name=name)(tokens) for name in names})
    model.compile(
        keras.optimizers.SGD(0.05),
        {name: crossentropy(reduction=name) for name in names},
        loss_weights=dict.fromkeys(names, 0.5),
        metrics={"sum": "accuracy"},
    )
    return model


@pytest.mark.slow
def test_losses_of_every_reduction_with_a_mask(four: jd.Strategy) -> None:
    labels = dict.fromkeys(("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight"), LABELS[:7])
    assert_same(*both(every_reduction, lambda model: trained(model, TOKENS[:7], labels, batch_size=7), four))


class Penalty(keras.layers.Layer):
    """Adds the mean of squares to the loss, and meets the other replicas."""

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        context = jd.get_replica_context()
        if context is not None:
            context.all_reduce("SUM", jnp.ones(()))
        return x


def test_losses_that_layers_add(four: jd.Strategy) -> None:
    def build() -> Any:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Input((8,)), keras.layers.Dense(4, activity_regularizer="l2"), Penalty()]
        model = keras.Sequential([*layers, keras.layers.Dense(3)])
        model.compile("sgd", crossentropy())
        return model

    assert_same(*both(build, lambda model: trained(model, X[:7], Y[:7], batch_size=7), four))


def test_losses_that_layers_add_where_replicas_take_turns() -> None:
    """Replicas that run as Python meet behind the first layer, and in the sum of the weights."""
    two = jd.MirroredStrategy(["CPU:0", "CPU:1"])

    def build() -> Any:
        model = keras.Sequential([keras.layers.Input((8,)), Penalty(), Penalty()])
        model.compile(loss=crossentropy(reduction="mean_with_sample_weight"), run_eagerly=True)
        return model

    data = {"sample_weight": WEIGHTS[:3], "batch_size": 3, "verbose": 0}
    np.testing.assert_allclose(*both(build, lambda model: model.evaluate(X[:3], Y[:3], **data), two), rtol=1e-6)
    with two.scope():
        model = build()
    rows = two.experimental_distribute_values_from_function(
        lambda context: X[:3][context.replica_id_in_sync_group :: 2]
    )
    found = two.experimental_local_results(two.run(lambda x: (model(x), sum(model.losses))[1], (rows,)))
    np.testing.assert_allclose(found, [2 * np.mean(X[:3:2] ** 2), 2 * np.mean(X[1:2] ** 2)], rtol=1e-6)


def test_a_loss_may_have_the_id_that_one_of_another_layer_had() -> None:
    """Objects that are gone leave their ids to others; here it is one object, which two layers add in turn."""
    a, b, c = jnp.arange(3.0)

    class Adding(keras.layers.Layer):
        given: Any = None

        def call(self, x: Any) -> Any:
            self.add_loss(x if self.given is None else self.given)
            return x

    model = keras.Sequential([keras.layers.Input((8,)), Adding(), Adding()])
    for losses in ([a, b], [b, c]):
        for layer, loss in zip(model.layers, losses, strict=True):
            layer.given = loss
        assert model.stateless_call([], [], X, return_losses=True)[2] == losses


def normalised(synchronized: bool) -> Any:
    keras.utils.set_random_seed(0)
    layer = keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.5)
    model = keras.Sequential([keras.layers.Input((8,)), layer, keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1), crossentropy())
    return model


@pytest.mark.slow
def test_batch_statistics_over_all_replicas(four: jd.Strategy) -> None:
    assert_same(*both(lambda: normalised(True), lambda model: trained(model, X[:7], Y[:7], batch_size=7), four))
    with jd.OneDeviceStrategy("CPU:0").scope():
        model = normalised(True)
    assert model.layers[0].get_config()["synchronized"]
    assert np.isfinite(model.train_on_batch(X[:4], Y[:4]))


def test_synchronized_statistics_are_those_of_the_batch_without_a_strategy(tmp_path: Path) -> None:
    """As a program runs unchanged on one device, in the default strategy's scope and outside of any."""
    with jd.get_strategy().scope():
        inside = normalised(True)
    outside, plain = normalised(True), normalised(False)
    outside.save(tmp_path / "model.keras")
    for model in (inside, outside, keras.saving.load_model(tmp_path / "model.keras")):
        np.testing.assert_array_equal(model(X, training=True), plain(X, training=True))
        for found, expected in zip(model.layers[0].get_weights(), plain.layers[0].get_weights(), strict=True):
            np.testing.assert_array_equal(found, expected)
        plain = normalised(False)


def test_batch_statistics_of_each_replica_are_averaged_by_its_examples(four: jd.Strategy) -> None:
    with four.scope():
        model = normalised(False)
    model.train_on_batch(X[:7], Y[:7])
    layer = model.layers[0]
    np.testing.assert_allclose(layer.moving_mean.numpy(), 0.5 * X[:7].mean(0), atol=1e-6)
    parts = [X[0:2], X[2:4], X[4:6], X[6:7]]
    variance = sum(len(part) * part.var(0) for part in parts) / 7
    np.testing.assert_allclose(layer.moving_variance.numpy(), 0.5 + 0.5 * variance, atol=1e-6)


def test_outside_a_step_keras_is_as_it_was() -> None:
    loss = crossentropy(reduction="sum")(Y[:4], X[:4, :3])
    mean = crossentropy()(Y[:4], X[:4, :3])
    np.testing.assert_allclose(loss, 4 * mean, rtol=1e-6)
    assert shares.current() is None


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows", [8, 7, 3])
def test_synchronized_statistics_in_a_loop_of_ones_own(four: jd.Strategy, rows: int, compiled: bool) -> None:
    """Three steps on four replicas, one of them without examples, are those of one device."""
    x, y = X[:rows], X[:rows, :1]
    results: list[list[Any]] = []
    for strategy in (four, jd.OneDeviceStrategy("CPU:0")):
        with strategy.scope():
            keras.utils.set_random_seed(0)
            layers = [keras.layers.BatchNormalization(synchronized=True, momentum=0.5), keras.layers.Dense(1)]
            model = keras.Sequential([keras.layers.Input(X.shape[1:]), *layers])
            optimizer = jd.Optimizer(optax.sgd(0.1), model.trainable_variables)

        def replica(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            loss = lambda: jnp.sum((model(x, training=True) - y) ** 2) / rows  # noqa: E731
            value, grads = jd.value_and_grad(loss, model.trainable_variables)()
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
            return value

        def step(batch: Any, strategy: jd.Strategy = strategy, replica: Any = replica) -> Any:
            return strategy.reduce("SUM", strategy.run(replica, batch), axis=None)

        run = jd.function(step) if compiled else step
        losses = [float(run(batch)) for batch in strategy.experimental_distribute_dataset([(x, y)] * 3)]
        results.append([losses, *(np.asarray(variable) for variable in model.variables)])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_share() -> None:
    def of(strategy: jd.Strategy, rows: int) -> Share:
        return Share(ReplicaContext(strategy, 0), rows, 8)

    one = of(jd.get_strategy(), 2)
    assert one.alone
    assert one.weight == 0.25
    assert Share(one.context, 0, 0).weight == 1.0
    assert one.sum([1.0]) == [1.0]
    with shares.entered(one):
        assert shares.current() is one
    assert shares.current() is None


def test_a_replica_without_examples_adds_nothing(four: jd.Strategy) -> None:
    @jd.function
    def total() -> Any:
        def replica() -> Any:
            context = jd.get_replica_context()
            assert context is not None
            return Share(context, 0, 4).sum(jnp.float32(jnp.nan)), Share(context, 1, 4).sum(jnp.float32(1))

        return four.run(replica)

    nothing, four_ones = total()
    assert float(nothing) == 0
    assert float(four_ones) == 4
