"""Replicas without rows, and with fewer than others: islands come to what `MirroredStrategy` does, with as many."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.addons.elastic.test_local import LocalJob
from tests.addons.elastic.test_strategy import Job

import jaxtribute as jd
from jaxtribute._src.addons.elastic.values import FOREIGN
from replicas import here
from samples import ALL_CASES

Case = Callable[["Model", Any], Any]


class Model:
    """Variables of a strategy, and the mean as islands have it.

    Args:
      strategy: the strategy.
      weighs: True if its own means weigh replicas by their rows.
    """

    def __init__(self, strategy: Any, *, weighs: bool) -> None:
        self.strategy, self._weighs = strategy, weighs
        with strategy.scope():
            self.w = jd.Variable(jnp.asarray([1.0, -2.0, 0.5]))
            self.wide = jd.Variable(jnp.asarray([[1.0, 0.0], [0.5, 2.0], [-1.0, 1.0]]))
            self.counter = jd.Variable(0.0, trainable=False, aggregation="sum")
            self.average = jd.Variable(0.0, trainable=False, aggregation="mean")
            self.optimizer = jd.Optimizer(optax.sgd(0.1), [self.w])
            self.of_wide = jd.Optimizer(optax.sgd(0.1), [self.wide])

    def weighed(self, value: Any, x: Any) -> Any:
        """A replica's value, so that its mean over the replicas is that over the examples."""
        if self._weighs:
            return value
        total, having = here().all_reduce("SUM", (jnp.float32(x.shape[0]), jnp.float32(bool(x.shape[0]))))
        return value * x.shape[0] * having / total

    def state(self) -> Any:
        """What all variables have come to."""
        return [np.asarray(each) for each in (self.w, self.wide, self.counter, self.average)]


def regularized(model: Model, x: Any) -> Any:
    rows = here().all_reduce("SUM", x.shape[0])

    def loss() -> Any:
        squares = (x @ model.w) ** 2
        penalty = jd.nn.scale_regularization_loss((model.w.read_value() ** 2).sum())
        return jd.nn.compute_average_loss(squares, global_batch_size=rows) + penalty

    value, grads = jd.value_and_grad(loss, [model.w])()
    model.optimizer.apply_gradients(grads)
    return value


def means_of_no_rows(model: Model, x: Any) -> Any:
    """The loss of a replica without rows is NaN, and its gradient may be."""
    value, grads = jd.value_and_grad(lambda: jnp.mean(x @ model.w) * model.w.read_value().sum(), [model.w])()
    model.optimizer.apply_gradients(grads)
    return value


def gradients_in_the_mean(model: Model, x: Any) -> Any:
    grads = jd.grad(lambda: model.weighed(jnp.mean((x @ model.w) ** 2) + model.w.read_value().sum(), x), [model.w])()
    model.optimizer.apply_gradients(grads, reduce_op="MEAN")
    return jnp.float32(0)


def sums_of_constants(model: Model, x: Any) -> Any:
    here_ = here()
    number = here_.replica_id_in_sync_group + 1
    return here_.all_reduce("SUM", (jnp.float32(1), number, jnp.ones((2, 2)), number > 1, x.shape[0]))


def means_of_constants(model: Model, x: Any) -> Any:
    own = jnp.float32(here().replica_id_in_sync_group + 1)
    return here().all_reduce("MEAN", (model.weighed(own, x), model.weighed(jnp.mean(x), x)))


def variables(model: Model, x: Any) -> Any:
    model.counter.assign_add(jnp.float32(1))
    model.counter.assign_add(jnp.mean(x))
    model.average.assign(model.weighed(jnp.mean(x), x))
    return jnp.float32(1)


def lengths(model: Model, x: Any) -> Any:
    """Gathered are one number of each replica, its rows, several of each row, and what that comes to."""
    own = here().replica_id_in_sync_group + 1
    counts = here().all_gather(jnp.asarray([x.shape[0]]), axis=0)
    two = here().all_gather(jnp.stack([own, own]), axis=0)
    rows = here().all_gather(x, axis=0)
    twice = here().all_gather(jnp.concatenate([x, 2 * x]), axis=0)
    more = here().all_gather(jnp.concatenate([x, jnp.ones((1, 3))]), axis=0)
    again = here().all_gather(rows[: x.shape[0]] + x, axis=0)
    all_of_them = [each.astype(jnp.float32) for each in (counts, two, rows, twice, more, again)]
    order = [jnp.sum(jnp.arange(len(each), dtype=jnp.float32) @ each) for each in all_of_them]
    return order, jnp.float32(sum(map(len, all_of_them)))


def first_row(model: Model, x: Any) -> Any:
    counts = here().all_gather(jnp.array([x.shape[0]]), axis=0)
    before = jnp.arange(counts.size) < here().replica_id_in_sync_group
    first = jnp.where(before, counts, 0).sum()
    hidden = x @ model.wide
    logits = hidden @ here().all_gather(hidden, axis=0).T
    own = jax.nn.one_hot(first + jnp.arange(x.shape[0]), logits.shape[1], dtype=bool)
    return jnp.sum(jnp.where(own, logits, jnp.zeros_like(logits))), first


def gradients_through_sums(model: Model, x: Any) -> Any:
    w = model.w.read_value()
    total = lambda w: here().all_reduce("SUM", {"a": jnp.sum(x @ w) + jnp.sum(w), "n": x.shape[0]})["a"]  # noqa: E731
    of_nan = lambda w: total(w) * jnp.mean(x)  # noqa: E731
    return jax.grad(lambda w: total(w) ** 2)(w), jax.grad(of_nan)(w)


def gradients_through_means(model: Model, x: Any) -> Any:
    w = model.w.read_value()
    mean = lambda w: here().all_reduce("MEAN", model.weighed(jnp.mean(x @ w), x))  # noqa: E731
    return jax.grad(lambda w: mean(w) ** 2)(w), jax.grad(lambda w: mean(w) * jnp.mean(x))(w)


def gradients_through_gathers(model: Model, x: Any) -> Any:
    def loss() -> Any:
        hidden = here().all_gather(x @ model.wide, axis=0)
        own = here().all_gather(jnp.sum(model.wide.read_value(), axis=0)[None], axis=0)
        spread = jnp.sum((hidden - hidden.mean(0, keepdims=True)) ** 2) + jnp.sum(own**2)
        return spread / here().num_replicas_in_sync

    value, grads = jd.value_and_grad(loss, [model.wide])()
    model.of_wide.apply_gradients(grads)
    w = model.w.read_value()
    return value, jax.grad(lambda w: here().all_gather(x @ w, axis=0).sum() * jnp.mean(x))(w)


def merged(model: Model, x: Any) -> Any:
    sums = lambda strategy, *values: [strategy.reduce("SUM", each, axis=None) for each in values]  # noqa: E731
    return here().merge_call(sums, (jnp.float32(1), jnp.sum(x), jnp.mean(x)))


def again(model: Model, x: Any) -> Any:
    return x.sum(axis=1), jnp.ones(2), jnp.mean(x), model.weighed(jnp.mean(x), x), jnp.float32(x.shape[0])


def reduced_outside(model: Model, batch: Any) -> Any:
    """Reductions of what `run` returns, along an axis and not, also of what a second `run` makes of it."""
    strategy = model.strategy
    rows, ones, mean, weighed, count = strategy.run(again, (model, batch))
    of_second = strategy.run(lambda mean, ones: (mean, here().all_reduce("SUM", ones)), (mean, ones))
    return [
        *(strategy.reduce("SUM", each, axis=None) for each in (ones, mean, count)),
        *(strategy.reduce("SUM", each, axis=0) for each in (rows, ones)),
        strategy.reduce("MEAN", weighed, axis=None),
        *(strategy.reduce("MEAN", each, axis=0) for each in (rows, ones)),
        *(strategy.reduce("SUM", each, axis=None) for each in of_second),
    ]


def in_replicas(case: Case) -> Case:
    """Sums of what a replica function returns."""

    def step(model: Model, batch: Any) -> Any:
        results = model.strategy.run(functools.partial(case, model), (batch,))
        return jax.tree.map(
            lambda each: model.strategy.reduce("SUM", each, axis=None),
            results,
            is_leaf=lambda leaf: isinstance(leaf, jd.DistributedValues),
        )

    return step


CASES: dict[str, Case] = {
    case.__name__: in_replicas(case)
    for case in (
        regularized,
        means_of_no_rows,
        gradients_in_the_mean,
        sums_of_constants,
        means_of_constants,
        variables,
        lengths,
        first_row,
        gradients_through_sums,
        gradients_through_means,
        gradients_through_gathers,
        merged,
    )
} | {"reduced_outside": reduced_outside}


def batches(replicas: int) -> list[Any]:
    """One that replicas share evenly, unevenly, and with some that have no rows."""
    chance = np.random.default_rng(replicas)
    sizes = [2 * replicas] * ALL_CASES + [2 * replicas - 1] + [replicas + 1] * (replicas > 2) + [1]
    return [chance.normal(size=(size, 3)).astype("float32") for size in sizes]


def table(strategy: Any, replicas: int, *, compiled: bool, weighs: bool) -> dict[tuple[str, int], Any]:
    """All that the cases come to, for each of the batches."""
    results: dict[tuple[str, int], Any] = {}
    for name, case in CASES.items():
        model = Model(strategy, weighs=weighs)
        step = functools.partial(case, model)
        step = jd.function(step) if compiled else step
        data = batches(replicas)
        for rows, batch in zip(map(len, data), strategy.experimental_distribute_dataset(data), strict=True):
            try:
                results[name, rows] = jax.tree.leaves((jax.tree.map(np.asarray, step(batch)), model.state()))
            except Exception as error:
                error.add_note(f"in {name}, of {rows} rows")
                raise
    return results


@functools.cache
def expected(replicas: int) -> dict[tuple[str, int], Any]:
    strategy = jd.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    return table(strategy, replicas, compiled=True, weighs=False)


JOBS: dict[str, tuple[Callable[[], Job], int]] = {
    "two": (lambda: Job(2), 2),
    "three": (lambda: Job(3), 3),
    "of two devices": (lambda: LocalJob([2, 2]), 4),
    "virtual on one": (lambda: Job(1, virtual_replicas=4), 4),
    "virtual on two": (lambda: Job(2, virtual_replicas=4), 4),
}


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.filterwarnings("ignore:.*mean:RuntimeWarning")
@pytest.mark.parametrize(
    ("job", "compiled"),
    # Steps of several replicas on an island are refused eagerly.
    [*((job, True) for job in JOBS), ("two", False), ("three", False)]
    if ALL_CASES
    else [("two", True), ("two", False)],
)
def test_islands_come_to_what_mirrored_replicas_do(job: str, compiled: bool) -> None:
    make, replicas = JOBS[job]
    results = make().run(lambda strategy: table(strategy, replicas, compiled=compiled, weighs=True))
    wrong: list[str] = []
    for island, result in enumerate(results):
        for (name, rows), mine in result.items():
            theirs = expected(replicas)[name, rows]
            for place, (got, want) in enumerate(zip(mine, theirs, strict=True)):
                if got.shape != want.shape or not np.allclose(got, want, rtol=1e-4, atol=1e-4):
                    wrong.append(f"island {island}, {name}, {rows} rows, {place}: {got} is not {want}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_islands_that_train_alone_add_to_sums_without_rows(compiled: bool) -> None:
    """As `MirroredStrategy` does; what else they write then is taken back."""
    data = [np.full((size, 3), size, np.float32) for size in (4, 1, 2, 1)]

    def body(strategy: Any) -> list[float]:
        with strategy.scope():
            w = jd.Variable(jnp.ones(3))
            optimizer = jd.Optimizer(optax.sgd(0.0), [w])
            calls, means, ints = (jd.Variable(start, trainable=False, aggregation="sum") for start in (0.0, 0.0, 0))
            average = jd.Variable(0.0, trainable=False, aggregation="mean")

        def replica(x: Any) -> None:
            optimizer.apply_gradients(jd.grad(lambda: jnp.mean(x @ w), [w])(), reduce_op="MEAN")
            calls.assign_add(jnp.float32(1))
            means.assign_add(jnp.mean(x))
            ints.assign_add(jnp.int32(2))
            average.assign(jnp.mean(x))

        step = jd.function(lambda x: strategy.run(replica, (x,)))
        for batch in strategy.experimental_distribute_dataset(data):
            step(batch) if compiled else strategy.run(replica, (batch,))
        return [float(each) for each in (calls, means, ints)]

    for devices in ([1, 1], [2, 2]):
        expected = body(jd.MirroredStrategy([f"CPU:{number}" for number in range(sum(devices))]))
        assert LocalJob(devices, sync_every=4, outer_optimizer=optax.sgd(1.0)).run(body) == [expected] * 2


@pytest.mark.parametrize(("rows", "total"), [(None, 2.0), (3, 2.0), (0, 2.0), (FOREIGN, 0.0)])
def test_what_another_island_has_computed_adds_nothing(rows: int | None, total: float) -> None:
    """As the values of steps that an island which has joined was only given."""
    with contextlib.closing(jd.experimental.ElasticStrategy()) as strategy:
        value: Any = strategy.run(lambda: jnp.ones(2))
        value.rows = rows
        summed = strategy.run(lambda each: here().all_reduce("SUM", each), (value,))
        assert float(strategy.reduce("SUM", value, axis=None)[0]) == total / 2
        assert float(strategy.reduce("SUM", value, axis=0)) == total
        assert float(jnp.sum(strategy.experimental_local_results(summed)[0])) == total
