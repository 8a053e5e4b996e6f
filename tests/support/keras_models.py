"""Small Keras models and data for the tests of the integration. Import it only where Keras runs on JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jaxtribute as jd

keras: Any = __import__("keras")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 8)).astype(np.float32)
Y = RNG.integers(0, 3, 16).astype(np.int32)
WEIGHTS = RNG.uniform(0.1, 2, 16).astype(np.float32)
BATCH = 6
"""Of 16 examples: on four replicas 2, 2, 2, 0, twice, then 1 each."""


def devices(number: int = 4) -> list[str]:
    """The names of logical CPU devices."""
    return [f"CPU:{i}" for i in range(number)]


def crossentropy(**kwargs: Any) -> Any:
    """Of integer labels and logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


def classifier(**compiled: Any) -> Any:
    """A compiled classifier of rows of `X`, the same each time."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(5, "tanh", kernel_regularizer=keras.regularizers.L2(0.01), name="hidden"),
            keras.layers.Dense(3, name="logits"),
        ]
    )
    compiled.setdefault("optimizer", keras.optimizers.SGD(0.05, momentum=0.9))
    model.compile(**{"loss": crossentropy(), "metrics": ["accuracy"], **compiled})
    return model


def stateful() -> Any:
    """A classifier of rows of `X`, not compiled, with state of each kind, a constraint and a loss of its own."""
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Input((8,)),
        keras.layers.Dense(6, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.8)),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dropout(0.3, seed=1),
        keras.layers.Dense(3, kernel_regularizer="l2"),
    ]
    return keras.Sequential(layers)


def both(build: Callable[[], Any], use: Callable[[Any], Any], strategy: jd.Strategy) -> tuple[Any, Any]:
    """What `use` returns for a model of plain Keras, and for one made in the strategy's scope."""
    return use(build()), under(strategy, build, use)


def under(strategy: jd.Strategy, build: Callable[[], Any], use: Callable[[Any], Any]) -> Any:
    """What `use` returns for a model made in the strategy's scope."""
    with strategy.scope():
        model = build()
    return use(model)


def trained(model: Any, *data: Any, **kwargs: Any) -> dict[str, Any]:
    """What a model learns in two epochs: the history and the weights, by name."""
    keras.utils.set_random_seed(1)
    history = model.fit(*(data or (X, Y)), **{"batch_size": BATCH, "epochs": 2, "verbose": 0, **kwargs}).history
    weights = {f"weight {i}": np.asarray(weight) for i, weight in enumerate(model.get_weights())}
    return {**{name: np.asarray(values) for name, values in history.items()}, **weights}


def assert_same(expected: dict[str, Any], found: dict[str, Any], tolerance: float = 2e-5) -> None:
    """Checks that two results of `trained` agree."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)
