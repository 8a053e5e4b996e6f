"""Optimizers of Keras that are to update `tf.Variable`s on parameter servers are named before they are refused."""

import pytest

from jaxtribute._src.addons.compat.migrate.scan import scan

NAME = "optimizer of Keras on parameter servers"
HEAD = """import tensorflow as tf
strategy = tf.distribute.{}
with strategy.scope():
    w, b = tf.Variable(1.0), tf.Variable(2.0)
    b = tf.Variable(2.0)
    layer = tf.keras.layers.Dense(2)
    opt = tf.keras.optimizers.{}(0.1)
"""
SERVERS = HEAD.format("ParameterServerStrategy(resolver)", "Adam")


def told(text: str) -> list[str]:
    return [one.advice for one in scan(text).left() if one.name == NAME]


@pytest.mark.parametrize(
    "update",
    [
        "opt.apply_gradients(zip(grads, [w, b]))",
        "opt.apply_gradients([(grads[0], b)])",
        "opt.apply_gradients(grads_and_vars=zip(grads, [w, b]))",
        "params = [w] + [b]\nopt.apply_gradients(zip(grads, params))",
        "opt.minimize(loss, [b])",
        (
            "class T:\n    def __init__(self):\n        self.v = tf.Variable(1.0)\n    def f(self):\n"
            "        opt.apply_gradients([(g, self.v)])"
        ),
    ],
)
def test_an_update_of_variables_is_told(update: str) -> None:
    (advice,) = told(SERVERS + update + "\n")
    assert "jd.Optimizer(optax.sgd(0.1), [" in advice
    older = SERVERS.replace("distribute.Param", "distribute.experimental.Param")
    assert len(told(older + update + "\n")) == 1


@pytest.mark.parametrize(
    "update",
    [
        "opt.apply_gradients(zip(grads, layer.trainable_variables))",
        "params = layer.trainable_variables\nopt.apply_gradients(zip(grads, params))",
        "mine = jd.Optimizer(optax.sgd(0.1), [w, b])\nmine.apply_gradients(grads)",
        "w.assign_sub(grads[0])",
    ],
)
def test_what_updates_layers_or_is_no_optimizer_of_keras_is_not(update: str) -> None:
    assert not told(SERVERS + update + "\n")


def test_under_other_strategies_it_is_not() -> None:
    update = "opt.apply_gradients(zip(grads, [w, b]))\n"
    assert not told(HEAD.format("MirroredStrategy()", "SGD") + update)
