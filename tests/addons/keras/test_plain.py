"""Keras variables that no strategy's scope has seen, in functions of one's own: read and written, never constants."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from keras_models import X, Y, classifier, crossentropy, keras
from processes import run_python

_FIRST = """
    import jax.numpy as jnp
    import keras
    import numpy as np
    import jaxtribute as jd

    variable = keras.Variable(np.ones(2, np.float32))

    @jd.function
    def doubled():
        variable.assign_add(jnp.ones(2))
        return 2 * variable.value

    print(float(doubled()[0]), float(doubled()[0]))
    variable.assign(np.zeros(2))
    print(float(doubled()[0]), float(variable.value[1]))
"""


@pytest.mark.slow
def test_no_scope_is_needed_before() -> None:
    assert run_python(_FIRST, devices=2, env={"KERAS_BACKEND": "jax"}).split() == ["4.0", "6.0", "2.0", "1.0"]


def test_weights_that_are_set_or_trained_count() -> None:
    model = classifier()

    @jd.function
    def logits(x: Any) -> Any:
        return model(x)

    np.testing.assert_allclose(logits(X), model(X), rtol=1e-5, atol=1e-6)
    model.set_weights([weight + 1 for weight in model.get_weights()])
    np.testing.assert_allclose(logits(X), model(X), rtol=1e-5, atol=1e-6)
    before = np.asarray(logits(X))
    model.fit(X, Y, verbose=0, epochs=2)
    np.testing.assert_allclose(logits(X), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)
    assert not np.allclose(logits(X), before)
    assert logits.experimental_get_tracing_count() == 1


@pytest.mark.slow
def test_fit_is_plain_keras_after_a_function_has_read_the_model() -> None:
    def losses(read: bool) -> list[float]:
        model = classifier()
        if read:
            forward: Any = jd.function(model)
            forward(X)
        return model.fit(X, Y, batch_size=6, epochs=2, shuffle=False, verbose=0).history["loss"]

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-6)


def test_metrics_and_random_states_are_written() -> None:
    mean = keras.metrics.Mean()
    dropout = keras.layers.Dropout(0.5, seed=3)

    @jd.function
    def step(x: Any) -> Any:
        mean.update_state(x)
        return dropout(x, training=True)

    ones = np.ones((4, 8), np.float32)
    first, second = step(ones), step(3 * ones)
    assert float(mean.result()) == 2
    assert not np.array_equal(np.asarray(first) > 0, np.asarray(second) > 0)
    mean.reset_state()
    step(ones)
    assert float(mean.result()) == 1


class Loop:
    """A model in a training step of one's own, made where the test says."""

    def __init__(self, built: bool) -> None:
        self.model = classifier()
        self.optimizer = keras.optimizers.Adam(0.05)
        if built:
            self.optimizer.build(self.model.trainable_variables)
        self.loss, self.mean = crossentropy(), keras.metrics.Mean()

    def step(self, x: Any, y: Any) -> Any:
        def compute_loss() -> Any:
            return self.loss(y, self.model(x, training=True))

        variables = self.model.trainable_variables
        value, gradients = jd.value_and_grad(compute_loss, variables)()
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.mean.update_state(value)
        return value

    def run(self, step: Any) -> dict[str, Any]:
        losses = [float(step(X[i : i + 8], Y[i : i + 8])) for i in (0, 8, 0)]
        return {"losses": losses, "weights": self.model.get_weights(), "mean": float(self.mean.result())}


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-5)
    for one, other in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    one = jd.OneDeviceStrategy("CPU:0")
    with one.scope():
        loop = Loop(built=True)
    return loop.run(lambda x, y: one.run(loop.step, args=(x, y)))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("how", ["eager", "compiled", "run", "scope"])
def test_a_loop_of_ones_own_under_the_default_strategy(expected: dict[str, Any], how: str, built: bool) -> None:
    default = jd.get_strategy()
    if how == "scope":
        with default.scope():
            loop = Loop(built)
    else:
        loop = Loop(built)
    step: Any = loop.step if how == "eager" else jd.function(loop.step)
    if how in ("run", "scope"):
        step = jd.function(lambda x, y: default.run(loop.step, args=(x, y)))
    same(loop.run(step), expected)


@pytest.mark.slow
def test_a_model_from_outside_in_a_replica_function(four: jd.Strategy, expected: dict[str, Any]) -> None:
    loop = Loop(built=True)

    @jd.function
    def step(batch: Any) -> Any:
        return four.reduce("MEAN", four.run(loop.step, args=batch), axis=None)

    batches = four.experimental_distribute_dataset([(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 0)])
    losses = [float(step(batch)) for batch in batches]
    assert losses[0] == pytest.approx(expected["losses"][0], rel=1e-5)
    assert all(variable.strategy is four for variable in loop.model.variables)
    assert float(jnp.asarray(loop.mean.count.value)) == 12


def test_a_variable_of_the_default_strategy_moves_to_the_model_that_trains(four: jd.Strategy) -> None:
    model = classifier()
    forward: Any = jd.function(model)
    forward(X)
    expected = model.get_weights()
    with four.scope():
        model.compile("sgd", crossentropy())
    for weight, before in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(weight, before)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert all(variable.strategy is four for variable in model.variables)
