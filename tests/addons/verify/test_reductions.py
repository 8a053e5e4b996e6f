"""Reductions outside of the step: a mistake within the step is told once, by its own line, and no other hides it."""

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

ROWS = 12


def scores(w: Any, x: Any) -> Any:
    return (x @ w.read_value()) ** 2


def right(w: Any, x: Any) -> Any:
    return scores(w, x).sum() / ROWS


def regularizer(w: Any, x: Any) -> Any:
    return scores(w, x).sum() / ROWS + 0.1 * jnp.sum(w.read_value() ** 2)  # at: regularizer


def logarithm(w: Any, x: Any) -> Any:
    return jnp.log(scores(w, x).sum())  # at: logarithm


def centered(w: Any, x: Any) -> Any:
    return scores(w, x - x.mean(0)).sum() / ROWS  # at: centered


def local_mean(w: Any, x: Any) -> Any:
    return scores(w, x).mean()  # at: local_mean


def own_count(w: Any, x: Any) -> Any:
    mask = x[:, 0] > 0
    return (scores(w, x) * mask).sum() / mask.sum()  # at: own_count


def verdicts(loss: Any, how: Any, *, trains: bool, eager: bool, gradients: Any = "SUM") -> list[testing.Verdict]:
    """What comes of a step whose loss is reduced around it."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = jd.Variable(np.full(4, 0.5, "f"))
        optimizer = jd.Optimizer(optax.sgd(0.1), [w])

    def replica(x: Any) -> Any:
        if not trains:
            return loss(w, x)
        value, grads = jd.value_and_grad(lambda: loss(w, x), [w])()
        optimizer.apply_gradients(grads, gradients)  # at: applied
        return value

    compiled = jd.function(lambda x: strategy.run(replica, (x,)))
    watcher = Watcher(lambda _: None, None)
    batches = [np.random.default_rng(0).normal(size=(ROWS, 4)).astype("f")] * 2
    with observe(watcher, *KINDS), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for x in strategy.experimental_distribute_dataset(batches):
            strategy.reduce(how, strategy.run(replica, (x,)) if eager else compiled(x), axis=None)  # at: reduced
    return watcher.verdicts


def told(found: list[testing.Verdict]) -> list[tuple[str, int]]:
    culprits = [finding.culprit for verdict in found for finding in verdict.findings]
    return [(each.pattern.name, each.place.line if each.place is not None else 0) for each in culprits]


MISTAKES = [
    (regularizer, "counted-on-each-replica"),
    (logarithm, "local-total"),
    (centered, "batch-statistics"),
    (own_count, "local-count"),
]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
@pytest.mark.parametrize(("loss", "name"), [*MISTAKES, (local_mean, "local-mean")])
def test_what_follows_from_a_mistake_in_the_step_is_no_finding_of_its_own(loss: Any, name: str, eager: bool) -> None:
    found = verdicts(loss, "SUM", trains=True, eager=eager)
    assert told(found) == [(name, line_of(__file__, loss.__name__))], "\n".join(map(str, found))
    assert len(found) == 1
    assert any("strategy.reduce of the result" in one.name for one in found[0].findings[0].differences)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("loss", "name"), MISTAKES)
def test_a_mistake_of_a_step_that_trains_nothing_is_named_by_its_own_line(loss: Any, name: str) -> None:
    found = verdicts(loss, "SUM", trains=False, eager=True)
    assert told(found) == [(name, line_of(__file__, loss.__name__))], "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("loss", "gradients", "how", "names"),
    [
        # The update is wrong, and the reduction as well: neither follows from the other.
        (right, "MEAN", "MEAN", [("mean-of-sums", "applied"), ("mean-of-sums", "reduced")]),
        (right, "SUM", "MEAN", [("mean-of-sums", "reduced")]),
        (right, "SUM", "SUM", []),
        # Wrong for uneven batches, which hides nothing that is wrong for all.
        (local_mean, "MEAN", "SUM", [("mean-of-means", "local_mean"), ("sum-of-means", "reduced")]),
        (local_mean, "MEAN", "MEAN", [("mean-of-means", "local_mean")]),
    ],
)
def test_what_does_not_follow_is_a_finding(loss: Any, gradients: str, how: str, names: list[tuple[str, str]]) -> None:
    found = verdicts(loss, how, trains=True, eager=True, gradients=gradients)
    assert told(found) == [(name, line_of(__file__, mark)) for name, mark in names], "\n".join(map(str, found))
