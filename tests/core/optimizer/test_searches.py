"""Line searches, which call the loss, as on one device: with terms by the replicas, and losses kept in states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from replicas import mirrored

X = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
BATCHES = {"even": [X[:4], X[4:8]], "uneven": [X[:4], X[4:7], X[7:8]]}
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "two": lambda: mirrored(2),
    "four": lambda: mirrored(4),
    "sharded": lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=1),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
}
SEARCHES = {
    "lbfgs": optax.lbfgs(memory_size=4),
    "backtracking": optax.chain(
        optax.sgd(0.5), optax.scale_by_backtracking_linesearch(max_backtracking_steps=8, store_grad=True)
    ),
}


def fits(w: Any, x: Any) -> Any:
    return (jnp.tanh(x @ w) - 0.3) ** 2


def plain(search: optax.GradientTransformationExtraArgs, batches: list[Any], penalty: float) -> Any:
    """What Optax does on one device."""
    w = jnp.ones(3)
    state = search.init(w)
    for x in batches:

        def loss(w: Any, x: Any = x) -> Any:
            return fits(w, x).sum() / 4 + penalty * jnp.sum(w**2)

        value, grads = jax.value_and_grad(loss)(w)
        updates, state = search.update(grads, state, w, value=value, grad=grads, value_fn=loss)
        w = optax.apply_updates(w, updates)
    return np.asarray(w)


PENALTIES: dict[str, Callable[[Any], Any]] = {
    "none": lambda w: 0.0,
    "scaled": lambda w: jd.nn.scale_regularization_loss(0.1 * jnp.sum(w**2)),
    "by the context": lambda w: 0.1 * jnp.sum(w**2) / jd.get_strategy().num_replicas_in_sync,
    "by the replica": lambda w: 0.1 * jnp.sum(w**2) / number_of_replicas(),
}


def number_of_replicas() -> int:
    context = jd.get_replica_context()
    assert context is not None
    return context.num_replicas_in_sync


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_search_is_that_of_one_device(
    name: str, search: str, batches: str, compiled: bool, penalty: str, kept: bool
) -> None:
    """`kept` is Optax's own idiom, which takes loss and gradient from the state if they are known."""
    strategy = STRATEGIES[name]()
    with strategy.scope():
        w = jd.Variable(jnp.ones(3))
    optimizer = jd.Optimizer(SEARCHES[search], w)

    def replica(x: Any) -> None:
        def loss(w: Any) -> Any:
            return jd.nn.compute_average_loss(fits(w, x), global_batch_size=4) + PENALTIES[penalty](w)

        if kept:
            value, grads = optax.value_and_grad_from_state(loss)(w.read_value(), state=optimizer.state)
        else:
            value, grads = jax.value_and_grad(loss)(w.read_value())
        optimizer.apply_gradients(grads, value=value, grad=grads, value_fn=loss)

    step: Callable[[Any], Any] = lambda x: strategy.run(replica, (x,))  # noqa: E731
    if compiled:
        step = jd.function(step)
    for x in strategy.experimental_distribute_dataset(BATCHES[batches]):
        step(x)
    wanted = plain(SEARCHES[search], BATCHES[batches], 0.0 if penalty == "none" else 0.1)
    np.testing.assert_allclose(w.numpy(), wanted, rtol=2e-5, atol=1e-6)


def test_the_state_that_a_replica_sees_knows_no_loss() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        w = jd.Variable(jnp.ones(3))
    optimizer = jd.Optimizer(SEARCHES["backtracking"], w)
    seen = strategy.run(lambda: optax.tree.get(optimizer.state, "value"))
    assert np.isnan(strategy.experimental_local_results(seen)).all()
    assert np.asarray(optax.tree.get(optimizer.state, "value")) == np.inf
