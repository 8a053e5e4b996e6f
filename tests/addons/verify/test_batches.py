"""Steps that are not given their batch, or not its size, and those whose loss reads nothing that is trained."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute.nn import compute_average_loss
from replicas import mirrored

ROWS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
TARGETS = ROWS @ np.float32([1, 2, 3])


def context() -> Any:
    return jd.get_replica_context()


def state(strategy: jd.Strategy, rate: float = 0.1) -> tuple[jd.Variable, jd.Optimizer]:
    with strategy.scope():
        w = jd.Variable(np.zeros(3, np.float32), name="w")
        return w, jd.Optimizer(optax.sgd(rate), [w])


# Losses without the size of the batch.


def average(w: Any, x: Any, y: Any) -> Any:
    return jd.nn.compute_average_loss((x @ w - y) ** 2)  # global_batch_size is left out


def weighed(w: Any, x: Any, y: Any) -> Any:
    return jd.nn.compute_average_loss(
        (x @ w - y) ** 2,
        jnp.abs(y),
    )


def of_elements(w: Any, x: Any, y: Any) -> Any:
    decay = jd.nn.scale_regularization_loss(jnp.sum(w.read_value() ** 2))
    return compute_average_loss(jnp.abs(x * w[None] - y[:, None])) + decay


def of_the_replicas_rows(w: Any, x: Any, y: Any) -> Any:
    count = x.shape[0] * context().num_replicas_in_sync
    return jd.nn.compute_average_loss((x @ w - y) ** 2, global_batch_size=count)


WITH_COUNT = {
    average: "jd.nn.compute_average_loss((x @ w - y) ** 2, global_batch_size=count); or",
    of_elements: "compute_average_loss(jnp.abs(x * w[None] - y[:, None]), global_batch_size=count); or",
}
"""What the advice makes of a call; of others it has the names of the guide."""


@pytest.mark.filterwarnings("ignore:.*has no global_batch_size:RuntimeWarning")
@pytest.mark.parametrize("rows", [8, 5], ids=["even", "uneven"])
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("loss", [average, weighed, of_elements, of_the_replicas_rows])
def test_a_loss_without_the_size_of_the_batch_is_named(loss: Callable[..., Any], replicas: int, rows: int) -> None:
    strategy = mirrored(replicas)
    w, optimizer = state(strategy)

    def replica(x: Any, y: Any) -> Any:
        value, gradients = jd.value_and_grad(lambda: loss(w, x, y), [w])()
        optimizer.apply_gradients(gradients)
        return value

    step = jd.function(lambda x, y: strategy.reduce("SUM", strategy.run(replica, (x, y)), axis=None))
    found = testing.verify(step, ROWS[:rows], TARGETS[:rows], strategy=strategy, raises=False)
    assert [one.culprit.pattern.name for one in found.findings] == ["default-batch-size"], str(found)
    assert found.right == (rows == 8), str(found)
    assert WITH_COUNT.get(loss, "(per_example_losses, global_batch_size=count); or") in str(found)
