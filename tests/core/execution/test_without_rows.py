"""Replicas without rows, whose losses depend on less: others make collectives for gradients that they lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from replicas import here, mirrored, one_device

X = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
W = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "two": lambda: mirrored(2),
    "four": lambda: mirrored(4),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
}


def others_alone(z: Any, everyone: Any, first: Any) -> Any:
    """Without the pair of a row with itself: a constant stands there, and for no rows nowhere anything else."""
    own = first + jnp.arange(z.shape[0])
    scores = jnp.where(jnp.arange(everyone.shape[0])[None] == own[:, None], -1e9, z @ everyone.T)
    return jax.nn.logsumexp(scores, -1)


def taken(z: Any, everyone: Any, first: Any) -> Any:
    """By place."""
    rows = jnp.arange(z.shape[0])
    return -jax.nn.log_softmax(z @ everyone.T)[rows, first + rows]


def from_the_mean(z: Any, everyone: Any, first: Any) -> Any:
    """With the mean over all replicas, whose gradient is summed too."""
    mean = here().all_reduce("SUM", z.sum(0)) / everyone.shape[0]
    return jnp.where(z > 0, 0.0, (z - mean[None]) ** 2).sum(-1)


def all_of_it(z: Any, everyone: Any, first: Any) -> Any:
    return others_alone(z, everyone, first) + taken(z, everyone, first) + from_the_mean(z, everyone, first)


def from_moments(order: str) -> Callable[..., Any]:
    """With two sums of one shape, the gradient of one of which JAX leaves out where there are no rows."""

    def losses(z: Any, everyone: Any, first: Any) -> Any:
        rows = everyone.shape[0]
        means = {power: here().all_reduce("SUM", (z ** int(power)).sum(0)) / rows for power in order}
        shared = rows * (means["2"] ** 2).sum() / here().num_replicas_in_sync
        return jnp.concatenate([jnp.where(z > 0, 0.0, (z - means["1"][None]) ** 2).sum(-1), shared[None]])

    return losses


def trained(strategy: jd.Strategy, losses: Callable[..., Any], sizes: tuple[int, ...], *, compiled: bool) -> Any:
    with strategy.scope():
        w = jd.Variable(W)
    optimizer = jd.Optimizer(optax.sgd(0.1), w)

    def replica(x: Any) -> Any:
        def loss() -> Any:
            z = jnp.tanh(x @ w)
            counts = here().all_gather(jnp.array([x.shape[0]]), axis=0)
            before = jnp.arange(counts.size) < here().replica_id_in_sync_group
            each = losses(z, here().all_gather(z, axis=0), jnp.where(before, counts, 0).sum())
            return each.sum() / here().all_reduce("SUM", np.float32(x.shape[0]))

        value, gradients = jd.value_and_grad(loss, w)()
        optimizer.apply_gradients(gradients)
        return value

    step: Callable[[Any], Any] = lambda x: strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)  # noqa: E731
    if compiled:
        step = jd.function(step)
    batches = np.split(X[: sum(sizes)], np.cumsum(sizes)[:-1])
    distributed = list(strategy.experimental_distribute_dataset(batches))  # read to its end, though a step may fail
    return [float(step(x)) for x in distributed], w.numpy()


@pytest.mark.parametrize("sizes", [(4, 1, 3), (1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("losses", [others_alone, taken, from_the_mean, all_of_it])
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.quick_cases(1)
def test_their_gradients_are_those_of_one_device(name: str, losses: Any, sizes: tuple[int, ...]) -> None:
    values, w = trained(STRATEGIES[name](), losses, sizes, compiled=True)
    wanted, expected = trained(one_device(1), losses, sizes, compiled=True)
    np.testing.assert_allclose(values, wanted, rtol=1e-5)
    np.testing.assert_allclose(w, expected, rtol=1e-5, atol=1e-6)


TOLD = r"do not meet(.|\n)*replicas \[1\] have no rows.*@jd.function\), or drop the remainder"


def test_eager_steps_say_what_to_do() -> None:
    with pytest.raises(jd.errors.ContextError, match=TOLD):
        trained(mirrored(2), others_alone, (4, 1), compiled=False)


def test_what_is_gathered_for_others_is_not_guessed() -> None:
    """Where JAX has left out of the program without rows what only others use of theirs."""
    strategy = jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=1)
    with pytest.raises(jd.errors.ContextError, match=TOLD):
        trained(strategy, others_alone, (4, 1), compiled=True)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("order", ["12", "21"])
def test_of_sums_that_are_alike_none_stands_for_another(order: str) -> None:
    with pytest.raises(jd.errors.ContextError, match=TOLD):
        trained(mirrored(2), from_moments(order), (4, 1, 3), compiled=True)
