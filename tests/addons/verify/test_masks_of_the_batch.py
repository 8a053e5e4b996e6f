"""Masks over the rows of the whole batch are no choice of a replica: what is wrong behind them has its own name."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing
from marked_lines import line_of
from replicas import everyone, here, total

ROWS = 12
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)


def before(value: Any) -> Any:
    """The sum over the replicas before this one."""
    values = everyone(value[None])
    earlier = jnp.arange(values.shape[0]) < here().replica_id_in_sync_group
    return jnp.where(earlier.reshape(-1, *[1] * value.ndim), values, 0).sum(0)


def mine(values: Any, x: Any) -> Any:
    return jax.lax.dynamic_slice_in_dim(values, before(jnp.asarray(x.shape[0])), x.shape[0])


def whole(chosen: Any, scores: Any, x: Any) -> Any:
    del chosen, x
    return jnp.ones_like(scores)


def capacity(chosen: Any, scores: Any, x: Any) -> Any:
    del scores, x
    return (before(chosen.sum(0)) + jnp.cumsum(chosen, 0)) * chosen <= 4


def order(chosen: Any, scores: Any, x: Any) -> Any:
    del chosen
    ranks = jnp.argsort(jnp.argsort(-everyone(scores), axis=0), axis=0)
    return mine(ranks, x) < 8


def largest(chosen: Any, scores: Any, x: Any) -> Any:
    del chosen, x
    return scores >= jax.lax.top_k(everyone(scores).T, 8)[0][:, -1]


def scattered(chosen: Any, scores: Any, x: Any) -> Any:
    del chosen
    _, places = jax.lax.top_k(everyone(scores)[:, 0], 8)
    size = everyone(scores).shape[0]
    return mine(jnp.zeros(size).at[places].set(1.0), x)[:, None]


def numbered(chosen: Any, scores: Any, x: Any) -> Any:
    del chosen, scores
    return (before(jnp.asarray(x.shape[0])) + jnp.arange(x.shape[0]) < 9)[:, None]


def product(share: Any, scores: Any) -> Any:
    return total(share * (scores.sum(0) / ROWS)).sum()  # at: product


def square(share: Any, scores: Any) -> Any:
    return total(((share + scores.sum(0) / ROWS) ** 2).sum())  # at: square


def logarithm(share: Any, scores: Any) -> Any:
    return total(jnp.log1p(share * 2.0) + scores.sum(0)).sum()  # at: logarithm


def balanced(share: Any, scores: Any) -> Any:
    return (total(share) * total(scores.sum(0) / ROWS)).sum()


def verdict(mask: Callable[..., Any], balance: Callable[..., Any]) -> testing.Verdict:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = jd.Model({"w": np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)}, optax.sgd(0.1))

    def loss(x: Any) -> Any:
        scores = jax.nn.softmax(x @ model.value["w"])
        chosen = jax.nn.one_hot(jnp.argmax(scores, 1), 3)
        kept = chosen * mask(chosen, scores, x)
        share = balance(kept.sum(0) / ROWS, scores) / here().num_replicas_in_sync
        return ((scores[:, 0] - 0.5) ** 2).sum() / ROWS + 0.1 * share

    step = jd.function(lambda x: strategy.reduce("SUM", strategy.run(model.minimize, (loss, x)), axis=None))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return testing.verify(step, X, strategy=strategy, raises=False)


MASKS = [whole, capacity, order, largest, scattered, numbered]


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize("balance", [product, square, logarithm])
@pytest.mark.parametrize("mask", MASKS)
def test_a_part_of_a_sum_behind_a_mask_is_told_as_one(mask: Any, balance: Any) -> None:
    found = verdict(mask, balance)
    assert [one.culprit.pattern.name for one in found.findings] == ["local-total"], str(found)
    lines = [place.line for place in found.findings[0].culprit.places]
    assert line_of(__file__, balance.__name__) in lines, str(found)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_of_the_batch_raises_no_alarm(mask: Any) -> None:
    found = verdict(mask, balanced)
    assert found.right, str(found)
    assert found.tried, str(found)


@pytest.mark.parametrize(
    "pick",
    [
        lambda part, first: jnp.where(first, part, 0),
        lambda part, first: part * first,
        lambda part, first: jnp.where(first & (part.sum() > -1e9), part, 0),
    ],
)
def test_the_choice_of_a_replica_is_still_told(pick: Any) -> None:
    found = verdict(capacity, lambda share, scores: total(pick(share, here().replica_id_in_sync_group == 0)).sum())
    (finding,) = found.findings
    assert finding.culprit.pattern.name == "one-replica", str(found)
