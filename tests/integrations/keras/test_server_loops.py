"""Keras models in loops of one's own under parameter servers: one worker does what plain Keras does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.coordinator import ClusterCoordinator
from jaxtribute.errors import ArgumentError, ArgumentTypeError, VariableError
from keras_models import X, Y, keras
from parameter_servers.clusters import threads

BATCH, STEPS = 4, 6
AT_ONCE = jd.InputOptions(experimental_per_replica_buffer_size=0)


@pytest.fixture(scope="module")
def servers() -> Iterator[Any]:
    """One server and one worker."""
    with threads() as strategy:
        yield strategy


def batches() -> Iterator[Any]:
    return itertools.cycle([(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, len(X), BATCH)])


class Endless:
    def __iter__(self) -> Iterator[Any]:
        return batches()


def per_worker() -> Any:
    strategy = jd.get_strategy()
    return strategy.distribute_datasets_from_function(lambda _: Endless(), AT_ONCE)


class Made:
    """A model with state of each kind, its optimizer and its metrics."""

    def __init__(self) -> None:
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        layers = [
            keras.layers.Input((8,)),
            keras.layers.Dense(6, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.8)),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.3, seed=1),
            keras.layers.Dense(3, kernel_regularizer="l2"),
        ]
        self.model = keras.Sequential(layers)
        self.optimizer = keras.optimizers.AdamW(0.05, global_clipnorm=0.5)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.mean, self.accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    def all(self) -> dict[str, Any]:
        """All values."""
        variables = [*self.model.variables, *self.optimizer.variables, *self.mean.variables, *self.accuracy.variables]
        found = {f"{i} {variable.path}": np.asarray(variable.value) for i, variable in enumerate(variables)}
        return found | {"mean": np.asarray(self.mean.result()), "accuracy": np.asarray(self.accuracy.result())}


def train_step(made: Made, x: Any, y: Any) -> Any:
    def compute_loss() -> Any:
        logits = made.model(x, training=True)
        return made.loss(y, logits) + sum(made.model.losses), logits

    variables = made.model.trainable_variables
    (loss, logits), gradients = jd.value_and_grad(compute_loss, variables, has_aux=True)()
    made.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    made.mean.update_state(loss)
    made.accuracy.update_state(y, logits)
    return loss


def plain() -> tuple[list[float], dict[str, Any]]:
    """What Keras alone computes, by its stateless functions."""
    made = Made()
    made.optimizer.build(made.model.trainable_variables)
    losses: list[float] = []
    for x, y in itertools.islice(batches(), STEPS):

        def compute_loss(trainable: Any, rest: Any, x: Any = x, y: Any = y) -> Any:
            logits, rest, more = made.model.stateless_call(trainable, rest, x, training=True, return_losses=True)
            return made.loss(y, logits) + sum(more), (logits, rest)

        model = made.model
        values = [[v.value for v in group] for group in (model.trainable_variables, model.non_trainable_variables)]
        (loss, (logits, rest)), gradients = jax.value_and_grad(compute_loss, has_aux=True)(*values)
        for variable, value in zip(model.non_trainable_variables, rest, strict=True):
            variable.assign(value)
        made.optimizer.apply(gradients, model.trainable_variables)
        made.mean.update_state(loss)
        made.accuracy.update_state(y, logits)
        losses.append(float(loss))
    return losses, made.all()


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_one_worker_does_what_plain_keras_does(servers: Any, compiled: bool) -> None:
    losses, expected = plain()
    with servers.scope():
        made = Made()
    coordinator = ClusterCoordinator(servers)

    def step(iterator: Any) -> Any:
        return servers.reduce("SUM", servers.run(lambda x, y: train_step(made, x, y), args=next(iterator)), axis=None)

    step = jd.function(step) if compiled else step
    iterator = iter(coordinator.create_per_worker_dataset(per_worker))
    results = [coordinator.schedule(step, args=(iterator,)) for _ in range(STEPS)]
    coordinator.join()
    np.testing.assert_allclose([float(one) for one in coordinator.fetch(results)], losses, rtol=2e-5)
    found = made.all()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
    assert all(type(variable.stored).__name__ == "ServerVariable" for variable in made.optimizer.variables)
    made.accuracy.reset_state()
    assert float(made.accuracy.result()) == 0.0
