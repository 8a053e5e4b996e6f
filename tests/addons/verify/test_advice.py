"""Advice that is followed to the letter makes a step right."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing
from replicas import everyone, here, total

ROWS = 12
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=ROWS).astype(np.float32)


class Case(NamedTuple):
    """A wrong step, and what a report makes of it.

    Attributes:
      name: the pattern.
      advice: a part of what the report says to write.
      wrong: the loss, or the value that is written; of the variables, the rows, and what the variable held.
      right: the same, as the advice says.
      first: what the variable holds first; None for a loss.
      how: its arguments, or how gradients are reduced.
      rightly: likewise, as the advice says.
      added: whether the value is added to the variable.
    """

    name: str
    advice: str
    wrong: Callable[..., Any]
    right: Callable[..., Any]
    first: Any = None
    how: Any = "SUM"
    rightly: Any = "SUM"
    added: bool = False


def losses(w: Any, x: Any, y: Any) -> Any:
    return (x @ w - y) ** 2


def sum_of(w: Any, x: Any, y: Any, old: Any) -> Any:
    del old
    return losses(w, x, y).sum() / ROWS


def weighted(w: Any, x: Any, y: Any, reduce: Callable[[Any], Any]) -> Any:
    kinds = (y > 0).astype(int)
    counts = reduce(jnp.bincount(kinds, length=2))
    return (losses(w, x, y) / jnp.maximum(counts, 1)[kinds]).sum() / ROWS


def dice(w: Any, x: Any, y: Any, reduce: Callable[[Any], Any]) -> Any:
    p, t = jax.nn.sigmoid(x @ w), (y > 0) * 1.0
    return 1 - (2 * reduce((p * t).sum()) + 1) / (reduce(p.sum() + t.sum()) + 1)


def hardest(w: Any, x: Any, y: Any) -> Any:
    found = jnp.argmax(losses(w, x, y))
    return losses(w, x[found][None], y[found][None]).sum()


def first_row(x: Any) -> Any:
    counts = everyone(jnp.array([x.shape[0]]))
    return jnp.where(jnp.arange(counts.size) < here().replica_id_in_sync_group, counts, 0).sum()


def mine(values: Any, x: Any) -> Any:
    return jax.lax.dynamic_slice(values, (first_row(x),), (x.shape[0],))


ON_READ: dict[str, Any] = {"synchronization": jd.VariableSynchronization.ON_READ}
FIRST = {"aggregation": "only_first_replica"}
MEAN, SUM = {"aggregation": "mean"}, {"aggregation": "sum"}
CASES = {
    "average of a part": Case(
        "local-total",
        "all-reduce what comes of this replica's rows alone",
        lambda w, x, y, old: 0.9 * old + 0.1 * sum_of(w, x, y, old),
        lambda w, x, y, old: 0.9 * old + 0.1 * total(sum_of(w, x, y, old)),
        1.0,
        MEAN,
        MEAN,
    ),
    "best of a part": Case(
        "local-total",
        "all-reduce what comes of this replica's rows alone",
        lambda w, x, y, old: jnp.minimum(old, sum_of(w, x, y, old)),
        lambda w, x, y, old: jnp.minimum(old, total(sum_of(w, x, y, old))),
        1e9,
        MEAN,
        MEAN,
    ),
    "argmax": Case(
        "extreme-over-batch",
        "jnp.argmax(jd.get_replica_context().all_gather(values, axis=0))",
        lambda w, x, y, _: hardest(w, x, y),
        lambda w, x, y, _: hardest(w, everyone(x), everyone(y)) / here().num_replicas_in_sync,
    ),
    "min": Case(
        "extreme-over-batch",
        "all_gather(y.min(initial=9.0)[None], axis=0).min(axis=0)",
        lambda w, x, y, _: (losses(w, x, y) * y.min(initial=9.0)).sum() / ROWS,
        lambda w, x, y, _: (losses(w, x, y) * everyone(y.min(initial=9.0)[None]).min(axis=0)).sum() / ROWS,
    ),
    "max of columns": Case(
        "extreme-over-batch",
        "all_gather(jnp.abs(x).max(0, initial=0.0)[None], axis=0).max(axis=0)",
        lambda w, x, y, _: sum_of(w, x / jnp.abs(x).max(0, initial=0.0), y, 0),
        lambda w, x, y, _: sum_of(w, x / everyone(jnp.abs(x).max(0, initial=0.0)[None]).max(axis=0), y, 0),
    ),
    "counts of classes": Case(
        "batch-statistics",
        "all_reduce('SUM', jnp.bincount(kinds, length=2))",
        lambda w, x, y, _: weighted(w, x, y, lambda value: value),
        lambda w, x, y, _: weighted(w, x, y, total),
    ),
    "ratio of sums": Case(
        "local-total",
        "divide a loss by num_replicas_in_sync, and reduce with 'SUM'",
        lambda w, x, y, _: dice(w, x, y, lambda value: value),
        lambda w, x, y, _: dice(w, x, y, total) / here().num_replicas_in_sync,
        how="MEAN",
    ),
    "kept until read": Case(
        "local-total",
        "make seen with aggregation='sum'",
        sum_of,
        sum_of,
        0.0,
        {**ON_READ, **MEAN},
        {**ON_READ, **SUM},
        added=True,
    ),
    "kept of one": Case(
        "one-replica",
        "make seen with aggregation='sum'",
        sum_of,
        sum_of,
        0.0,
        {**ON_READ, **FIRST},
        {**ON_READ, **SUM},
        added=True,
    ),
    "counter that is read": Case(
        "counted-on-each-replica",
        "make seen with aggregation='only_first_replica'",
        lambda *_: 1,
        lambda *_: 1,
        0,
        {**ON_READ, **SUM},
        {**ON_READ, **FIRST},
        added=True,
    ),
    "counter": Case(
        "counted-on-each-replica",
        "make seen with aggregation='only_first_replica'",
        lambda *_: jnp.int32(1),
        lambda *_: jnp.int32(1),
        0,
        SUM,
        FIRST,
        added=True,
    ),
    "associative scan": Case(
        "order-of-rows",
        "take this replica's rows of the result",
        lambda w, x, y, _: sum_of(w, x, jax.lax.associative_scan(jnp.add, y), 0),
        lambda w, x, y, _: sum_of(w, x, mine(jax.lax.associative_scan(jnp.add, everyone(y)), x), 0),
    ),
    "first of the gathered": Case(
        "numbers-of-rows",
        "it is jnp.where(jnp.arange(counts.size)",
        lambda w, x, y, _: sum_of(w, x, everyone(y)[: x.shape[0]], 0),
        lambda w, x, y, _: sum_of(w, x, mine(everyone(y), x), 0),
    ),
    "turned by the replica": Case(
        "rows-by-replica",
        "numbers-of-rows in docs/guide/verify.md",
        lambda w, x, y, _: sum_of(w, jnp.where(here().replica_id_in_sync_group % 2 == 0, x, -x), y, 0),
        lambda w, x, y, _: sum_of(w, jnp.where(((first_row(x) + jnp.arange(len(x))) % 2 == 0)[:, None], x, -x), y, 0),
    ),
    "rows that are left out": Case(
        "order-of-rows",
        "all_gather(rows, axis=0)",
        lambda w, x, y, _: sum_of(w, x[: len(x) // 4 * 4], y[: len(x) // 4 * 4], 0),
        lambda w, x, y, _: jnp.where(first_row(x) + jnp.arange(len(x)) < 12, losses(w, x, y), 0).sum() / ROWS,
    ),
}


def verdict(case: Case, *, right: bool, transform: Any = None) -> testing.Verdict:
    strategy, how = jd.MirroredStrategy(["CPU:0", "CPU:1"]), case.rightly if right else case.how
    value = case.right if right else case.wrong
    with strategy.scope():
        w = jd.Variable(np.array([0.5, -0.3, 0.2], np.float32), name="w")
        optimizer = jd.Optimizer(transform or optax.sgd(0.1), [w])
        seen = None if case.first is None else jd.Variable(case.first, name="seen", trainable=False, **how)

    def replica(x: Any, y: Any) -> None:
        loss = sum_of if seen is not None else value
        optimizer.apply_gradients(
            jd.grad(lambda: loss(w.read_value(), x, y, 0), [w])(), "SUM" if seen is not None else how
        )
        if seen is not None and case.added:
            seen.assign_add(value(w.read_value(), x, y, None))
        elif seen is not None:
            seen.assign(value(w.read_value(), x, y, seen.read_value()))

    step = jd.function(lambda x, y: strategy.run(replica, (x, y)))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return testing.verify(step, X, Y, strategy=strategy, raises=False)


@pytest.mark.quick_cases(10, whole=True)
@pytest.mark.parametrize("name", CASES)
def test_the_mistake_has_its_line_and_advice(name: str) -> None:
    case = CASES[name]
    found = verdict(case, right=False)
    assert [one.culprit.pattern.name for one in found.findings] == [case.name], str(found)
    assert case.advice in str(found), str(found)
    # No call that changes a variable is put into another one.
    assert "', seen.assign" not in str(found), str(found)
    assert "(seen.assign" not in str(found), str(found)


@pytest.mark.quick_cases(3, whole=True)
@pytest.mark.parametrize(
    "transform", [optax.adam(0.1), optax.adamw(0.1), optax.lion(0.1)], ids=["adam", "adamw", "lion"]
)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.first is None])
def test_the_advice_is_the_same_where_the_size_of_gradients_changes_slots_alone(name: str, transform: Any) -> None:
    found = verdict(CASES[name], right=False, transform=transform)
    assert CASES[name].advice in str(found), str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_the_advice_says_is_right(name: str) -> None:
    found = verdict(CASES[name], right=True)
    assert not found.findings, str(found)
    assert found.tried, str(found)
