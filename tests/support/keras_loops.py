"""A loop of one's own over a Keras model on two servers; its worker is killed. Prints what is not as in plain Keras."""

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxtribute as jd

keras: Any = __import__("keras")

STEPS, KILLED_AFTER = 12, 5
IDS = np.random.default_rng(0).integers(0, 9, (8, 3)).astype(np.int32)
LABELS = (IDS.sum(1) > 12).astype(np.float32)[:, None]


class Made:
    """A model, its optimizer and a metric."""

    def __init__(self) -> None:
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(0)
        ids = keras.Input((3,), dtype="int32")
        hidden = keras.ops.mean(keras.layers.Embedding(9, 6)(ids), axis=1)
        hidden = keras.layers.Dropout(0.2, seed=1)(keras.layers.BatchNormalization(momentum=0.5)(hidden))
        self.model = keras.Model(ids, keras.layers.Dense(1, "sigmoid", kernel_regularizer="l2")(hidden))
        self.optimizer = keras.optimizers.RMSprop(0.05)
        self.loss = keras.losses.BinaryCrossentropy()
        self.accuracy = keras.metrics.BinaryAccuracy()

    def values(self) -> dict[str, Any]:
        """All that a step changes."""
        variables = [*self.model.variables, *self.optimizer.variables, *self.accuracy.variables]
        return {f"{i} {variable.path}": np.asarray(variable.value) for i, variable in enumerate(variables)}


def train_step(made: Any, x: Any, y: Any) -> Any:
    """A replica's step of a model with its loss, its optimizer and its `accuracy`: gives the loss."""

    def compute_loss() -> Any:
        found = made.model(x, training=True)
        return made.loss(y, found) + sum(made.model.losses), found

    variables = made.model.trainable_variables
    (loss, found), gradients = jd.value_and_grad(compute_loss, variables, has_aux=True)()
    made.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    made.accuracy.update_state(y, found)
    return loss


def plain_step(made: Any) -> Callable[[Any, Any], Any]:
    """The same step by Keras alone, by its stateless functions: gives the loss."""
    model, optimizer = made.model, made.optimizer
    optimizer.build(model.trainable_variables)

    @jax.jit
    def gradients(trainable: Any, rest: Any, x: Any, y: Any) -> Any:
        def compute_loss(trainable: Any) -> Any:
            found, others, losses = model.stateless_call(trainable, rest, x, training=True, return_losses=True)
            return made.loss(y, found) + sum(losses), (found, others)

        return jax.value_and_grad(compute_loss, has_aux=True)(trainable)

    def step(x: Any, y: Any) -> Any:
        values = [[v.value for v in group] for group in (model.trainable_variables, model.non_trainable_variables)]
        (loss, (found, rest)), grads = gradients(*values, x, y)
        for variable, value in zip(model.non_trainable_variables, rest, strict=True):
            variable.assign(value)
        optimizer.apply(grads, model.trainable_variables)
        made.accuracy.update_state(y, found)
        return loss

    return step


def plain() -> dict[str, Any]:
    """What Keras alone comes to."""
    made = Made()
    step = plain_step(made)
    for _ in range(STEPS):
        step(IDS, LABELS)
    return made.values()


def main() -> None:
    """Trains on a worker, which is killed in the middle, and compares."""
    warnings.filterwarnings("ignore", "__array__ implementation")  # of Keras's variables, in every get_config
    partitioner = jd.experimental.partitioners.FixedShardsPartitioner(2)
    with jd.ParameterServerStrategy({"ps": 2, "worker": 1}, partitioner, timeout_s=120) as strategy:
        with strategy.scope():
            made = Made()
        coordinator = jd.coordinator.ClusterCoordinator(strategy)

        def replica_step(ids: Any, labels: Any) -> Any:
            return train_step(made, ids, labels)

        step = jd.function(lambda ids, labels: strategy.run(replica_step, args=(ids, labels)))
        for number in range(STEPS):
            result = coordinator.schedule(step, args=(IDS, LABELS))
            if number == KILLED_AFTER:
                result.fetch()
                os.kill(strategy.process_of("worker", 0), signal.SIGKILL)
        coordinator.join()
        found, expected = made.values(), plain()
        table = next(variable for variable in made.model.variables if variable.path.endswith("embeddings"))
        assert len(table.stored.layout.shards) == 2, table.stored
    assert found.keys() == expected.keys(), (found.keys(), expected.keys())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
    print(f"{len(found)} values as in plain Keras")


if __name__ == "__main__":
    main()
