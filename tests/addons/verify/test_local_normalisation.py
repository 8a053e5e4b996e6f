"""A local normalisation that feeds a right sum: one finding, at its own line, whatever else passes by its size."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute._src.addons.verify.watching import KINDS, Watcher
from jaxtribute.experimental import observe
from marked_lines import line_of
from replicas import here

ROWS = 12
FAINT = 1e-6
"""A factor of weights that a result hardly shows: it seems to be right, whatever they are."""


def total(part: Any) -> Any:
    return here().all_reduce("SUM", part)


def everywhere(a: Any) -> Any:
    return here().all_gather(a, 0)


def average(a: Any) -> Any:
    return total(a.sum()) / total(a.shape[0])


def centered(a: Any) -> Any:
    return a - a.mean()  # at: centered


def standard(a: Any) -> Any:
    return (a - a.mean()) / (a.std() + 1e-6)  # at: standard


def scaled(a: Any) -> Any:
    return a / jnp.sqrt((a**2).mean())  # at: scaled


def shifted(a: Any) -> Any:
    return jnp.exp(a - a.max())  # at: shifted


def softmax(a: Any) -> Any:
    return jax.nn.softmax(a)  # at: softmax


def largest(a: Any) -> Any:
    return a >= jax.lax.top_k(a, 3)[0][-1]  # at: largest


def above(a: Any) -> Any:
    return a > jnp.median(a)  # at: above


def centered_over_all(a: Any) -> Any:
    return a - average(a)


def standard_over_all(a: Any) -> Any:
    rest = a - average(a)
    return rest / (jnp.sqrt(average(rest**2)) + 1e-6)


def scaled_over_all(a: Any) -> Any:
    return a / jnp.sqrt(average(a**2))


def shifted_over_all(a: Any) -> Any:
    return jnp.exp(a - everywhere(a).max())


def softmax_over_all(a: Any) -> Any:
    shares = jnp.exp(a - everywhere(a).max())
    return shares / total(shares.sum())


def largest_over_all(a: Any) -> Any:
    return a >= jax.lax.top_k(everywhere(a), 3)[0][-1]


def above_over_all(a: Any) -> Any:
    return a > jnp.median(everywhere(a))


def verdicts(weigh: Any, *, trains: bool) -> list[testing.Verdict]:
    """What comes of a step whose loss weighs rows, and is added up rightly; and of a result that it hardly changes."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = jd.Variable(np.full(4, 0.5, "f"))
        optimizer = jd.Optimizer(optax.adam(0.01), [w])

    def replica(x: Any, a: Any) -> Any:
        rows = total(x.shape[0])
        weights = weigh(a)

        def loss() -> Any:
            return ((x @ w.read_value() - 1.0) ** 2 * jnp.exp(0.3 * weights)).sum() / rows

        value, grads = jd.value_and_grad(loss, [w])()
        if trains:
            optimizer.apply_gradients(grads)
        return value, x.shape[0] / rows + FAINT * weights.sum() / rows

    @jd.function
    def step(x: Any, a: Any) -> Any:
        loss, seen = strategy.run(replica, (x, a))
        seen = strategy.reduce("SUM", seen, axis=None)
        return strategy.reduce("SUM", loss, axis=None), seen

    random = np.random.default_rng(0)
    batches = [(random.normal(size=(ROWS, 4)).astype("f"), random.normal(size=ROWS).astype("f"))] * 2
    watcher = Watcher(lambda _: None, None)
    with observe(watcher, *KINDS), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for x, a in strategy.experimental_distribute_dataset(batches):
            step(x, a)
    return watcher.verdicts


LOCAL = [centered, standard, scaled, shifted, softmax, largest, above]
OVER_ALL = [
    centered_over_all,
    standard_over_all,
    scaled_over_all,
    shifted_over_all,
    softmax_over_all,
    largest_over_all,
    above_over_all,
]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("trains", [False, True], ids=["evaluates", "trains"])
@pytest.mark.parametrize("weigh", LOCAL)
def test_the_right_sum_behind_a_local_normalisation_is_not_blamed(weigh: Any, trains: bool) -> None:
    found = verdicts(weigh, trains=trains)
    lines = [finding.culprit.place for verdict in found for finding in verdict.findings]
    assert [getattr(line, "line", None) for line in lines] == [line_of(__file__, weigh.__name__)], "\n".join(
        map(str, found)
    )


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("trains", [False, True], ids=["evaluates", "trains"])
@pytest.mark.parametrize("weigh", OVER_ALL)
def test_a_normalisation_over_all_replicas_is_right(weigh: Any, trains: bool) -> None:
    found = verdicts(weigh, trains=trains)
    assert all(verdict.right for verdict in found), "\n".join(map(str, found))
