"""Means over the replicas: those that uneven batches make wrong are told, and no others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import jaxtribute as jd
from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute.compat import tf
from replicas import here, mirrored

FOUR, TWO = mirrored(4), mirrored(2)
ROWS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
"""Of four replicas two get two rows, one gets one and one gets none."""


def normalised(x: Any, mean: Callable[[Any], Any]) -> Any:
    """A batch normalization, as libraries write it."""
    centre, square = mean(x.mean(0)), mean((x**2).mean(0))
    return (x - centre[None]) / jnp.sqrt(square - centre**2 + np.float32(1e-5))[None]


def positive(x: Any) -> Any:
    """A mask."""
    return (x > 0).astype(x.dtype)


WRONG: dict[str, Callable[[Any], Any]] = {
    "a mean": lambda x: lax.pmean(x.mean(), AXIS),
    "a mean within a jit": jax.jit(lambda x: lax.pmean(jnp.square(x).mean(0), AXIS)),
    "a mean in a loop": lambda x: lax.fori_loop(0, 2, lambda _, mean: lax.pmean(mean, AXIS), x.mean()),
    "a variance": lambda x: lax.pmean(x.var(0), AXIS),
    "by hand": lambda x: lax.psum(x.mean(), AXIS) / lax.psum(1, AXIS),
    "by the axis": lambda x: lax.psum(x.mean(), AXIS) / lax.axis_size(AXIS),
    "a normalization": lambda x: normalised(x, partial(lax.pmean, axis_name=AXIS)),
    "gradients": lambda x: lax.pmean(jax.grad(lambda w: ((x * w) ** 2).mean())(np.float32(2)), AXIS),
    "a count that is a number": lambda x: lax.psum(x.sum(0), AXIS) / lax.psum(x.shape[0], AXIS),
    "a length": lambda x: lax.psum(x.sum(0), AXIS) / lax.psum(len(x), AXIS),
    "all_reduce": lambda x: here().all_reduce("MEAN", x.mean()),
    "all_reduce of a nest": lambda x: here().all_reduce("MEAN", {"a": x.mean(0), "b": (x**2).mean()}),
    "all_reduce of gradients": lambda x: here().all_reduce("MEAN", jax.grad(lambda w: (x * w).mean())(np.float32(2))),
    "all but what is no number": lambda x: here().all_reduce("MEAN", jnp.nanmean(x)),
    "a masked mean": lambda x: here().all_reduce("MEAN", jnp.mean(x, where=x > 0)),
    "a masked mean by hand": lambda x: lax.pmean((x * positive(x)).sum() / positive(x).sum(), AXIS),
    "a weighted mean of rows": lambda x: lax.pmean(jnp.average(x, 0, weights=jnp.square(x)), AXIS),
    "a count of ones": lambda x: lax.pmean(x.sum(0) / jnp.ones_like(x).sum(0), AXIS),
    "a product with shares": lambda x: lax.pmean(x[:, 0] @ jnp.full(len(x), 1 / max(len(x), 1)), AXIS),
    "gradients of a masked mean": lambda x: lax.pmean(
        jax.grad(lambda w: (x * w * positive(x)).sum() / positive(x).sum())(np.float32(2)), AXIS
    ),
    "a masked mean within a jit": jax.jit(lambda x: lax.pmean(jax.nn.relu(x).sum() / positive(x).sum(), AXIS)),
    "shares that add up to another batch": lambda x: here().all_reduce("MEAN", x.mean() * x.shape[0] ** 2),
}
MEANS: dict[str, Callable[[Any], Any]] = {
    "a mean": lambda x: x.mean(),
    "in a nest": lambda x: {"a": (x.sum(), x.mean(0))},
    "a variance": lambda x: x.var(),
    "a loss": jax.jit(lambda x: jnp.square(x).mean()),
}
"""Results that are no part of the whole batch's mean."""
PARTS: dict[str, Callable[[Any], Any]] = {
    "a sum": lambda x: x.sum(),
    "weighted sums": lambda x: x.sum(0) / np.float32(5 / 3),
    "means weighted by rows": lambda x: x.mean() * x.shape[0] / np.float32(5 / 3),
    "a number of the replica's own": lambda x: jnp.float32(here().replica_id_in_sync_group) + 0 * x.sum(),
    "a maximum": lambda x: jnp.max(x, initial=-np.inf),
    "what all have": lambda x: here().all_reduce("SUM", x.sum()) / 5,
}
"""Results whose mean over the replicas is what it says."""


def masked_mean(x: Any) -> Any:
    return jax.nn.relu(x).sum() / jnp.maximum(positive(x).sum(), np.float32(1))


def weighted(x: Any) -> Any:
    share = jnp.float32(x.shape[0])
    return lax.psum(x.sum(0) * share, AXIS) / lax.psum(share * jnp.maximum(share, 1), AXIS)


RIGHT: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "an array as the count": (
        lambda x: lax.psum(x.sum(0), AXIS) / lax.psum(jnp.float32(x.shape[0]), AXIS),
        ROWS.mean(0),
    ),
    "ones": (lambda x: lax.psum(x.sum(0), AXIS) / lax.psum(jnp.ones_like(x).sum(0), AXIS), ROWS.mean(0)),
    "parts of the batch": (lambda x: lax.psum(x.sum(0) / 5, AXIS), ROWS.mean(0)),
    "a mean of parts": (lambda x: lax.pmean(x.sum(0) / np.float32(5 / 4), AXIS), ROWS.mean(0)),
    "what all have": (lambda x: lax.pmean(jnp.float32(3), AXIS) + 0 * lax.psum(x.sum(), AXIS), 3),
    "a masked mean of parts": (
        lambda x: lax.pmean(masked_mean(x) * positive(x).sum() * np.float32(4), AXIS),
        (ROWS * (ROWS > 0)).sum(),
    ),
    "rows that are scaled by their own": (
        lambda x: lax.pmean((x / jnp.linalg.norm(x, axis=1, keepdims=True)).sum(0) * np.float32(4 / 5), AXIS),
        (ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)).mean(0),
    ),
    "by a count of all": (
        lambda x: lax.pmean(x.sum(0) / here().all_reduce("SUM", jnp.ones_like(x).sum(0)) * np.float32(4), AXIS),
        ROWS.mean(0),
    ),
    "logits of rows": (
        lambda x: lax.pmean(jax.nn.softmax(x.reshape(-1, 3) @ jnp.eye(3)).sum() * np.float32(4 / 5), AXIS),
        1.0,
    ),
    "the hint": (
        lambda x: here().all_reduce("SUM", x.sum(0)) / here().all_reduce("SUM", float(x.shape[0])),
        ROWS.mean(0),
    ),
    "a maximum": (lambda x: lax.pmax(jnp.max(x, initial=-np.inf), AXIS), ROWS.max()),
    "a share of a sum": (lambda x: lax.psum(x.sum(0), AXIS) * (x.shape[0] / 5), None),
    "several sums": (weighted, None),
    "weighted means": (
        lambda x: here().all_reduce("MEAN", x.sum(0) / max(len(x), 1) * len(x) / np.float32(5 / 3)),
        ROWS.mean(0),
    ),
    "the replicas' numbers": (lambda x: here().all_reduce("MEAN", here().replica_id_in_sync_group), 1),
}


def run(fn: Callable[[Any], Any], rows: Any, strategy: jd.Strategy = FOUR) -> Any:
    [x] = strategy.experimental_distribute_dataset([rows])
    return jd.function(lambda x: strategy.run(fn, (x,)))(x)


@pytest.mark.quick_cases(19, whole=True)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name: str) -> None:
    with pytest.warns(RuntimeWarning, match=r"test_uneven_means.py:\d+ .* have 2, 2, 1, 0 rows\. HINT: add up sums"):
        run(WRONG[name], ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(WRONG[name], ROWS[:4])  # as many on each


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not(name: str) -> None:
    fn, wanted = RIGHT[name]
    result = run(fn, ROWS)
    if wanted is not None:
        np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-5)


@pytest.mark.quick_cases(12, whole=True)
@pytest.mark.parametrize("inside", [True, False], ids=["reduced inside", "reduced outside"])
@pytest.mark.parametrize("name", [*MEANS, *PARTS])
def test_means_of_results(name: str, inside: bool) -> None:
    fn = (MEANS | PARTS)[name]

    def reduced(rows: Any) -> Any:
        def mean(values: Any) -> Any:
            return FOUR.reduce("MEAN", values, axis=None)

        [x] = FOUR.experimental_distribute_dataset([rows])
        step = jd.function(lambda x: (mean if inside else lambda x: x)(FOUR.run(fn, (x,))))
        return step(x) if inside else mean(step(x))

    reduced(ROWS[:4])
    if name in PARTS:
        reduced(ROWS)
        return
    told = r"test_uneven_means.py:\d+ takes the mean of the replicas' means\. .* have 2, 2, 1, 0 rows\. HINT: add up"
    with pytest.warns(RuntimeWarning, match=told):
        reduced(ROWS)


def test_a_variable_that_takes_the_mean() -> None:
    average = jd.MirroredStrategy(4)
    with average.scope():
        v = jd.Variable(np.float32(0), aggregation="mean")

    def replica(x: Any) -> None:
        v.assign(x.mean())

    [x] = average.experimental_distribute_dataset([ROWS])
    with pytest.warns(RuntimeWarning, match="takes a mean over the replicas"):  # the user's own line
        jd.function(lambda x: average.run(replica, (x,)))(x)


def squares(x: Any) -> Any:
    return (x**2).mean(1)


def without_size(x: Any) -> Any:
    return jd.nn.compute_average_loss(squares(x))  # global_batch_size is left out


def weighed_and_split(x: Any) -> Any:
    return jd.nn.compute_average_loss(
        squares(x),
        jnp.ones(x.shape[0]),
    )


def options(x: Any) -> Any:
    return {"global_batch_size": x.shape[0] * 4}


LOSSES_OF_PARTS: dict[str, Callable[[Any], Any]] = {
    "the default": without_size,
    "of several lines, with weights": weighed_and_split,
    "of TensorFlow's name": lambda x: tf.nn.compute_average_loss(squares(x)),
    "compiled by itself": jax.jit(lambda x: jd.nn.compute_average_loss(squares(x))),
    "differentiated": jax.grad(lambda x: jd.nn.compute_average_loss(squares(x))),
    "in a loop": lambda x: lax.fori_loop(0, 2, lambda _, total: total + without_size(x), jnp.float32(0)),
}
LOSSES_OF_THE_BATCH: dict[str, Callable[[Any], Any]] = {
    "the number": lambda x: jd.nn.compute_average_loss(squares(x), global_batch_size=5),
    "without its name": lambda x: jd.nn.compute_average_loss(squares(x), None, 5),
    "in a partial": partial(jd.nn.compute_average_loss, global_batch_size=5),
    "what the hint says": lambda x: jd.nn.compute_average_loss(
        squares(x), global_batch_size=here().all_reduce("SUM", x.shape[0])
    ),
    "the user's own": lambda x: jd.nn.compute_average_loss(squares(x), global_batch_size=max(x.shape[0], 1) * 4),
    "the user's own, without its name": lambda x: jd.nn.compute_average_loss(squares(x), None, x.shape[0] * 4),
    "in options": lambda x: jd.nn.compute_average_loss(squares(x), **options(x)),
}


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("name", LOSSES_OF_PARTS)
def test_a_loss_without_the_size_of_an_uneven_batch_is_told(name: str, replicas: int) -> None:
    told = r"test_uneven_means.py:\d+ divides a loss .* without a global_batch_size. .* rows. HINT: write count = "
    strategy, fn = mirrored(replicas), LOSSES_OF_PARTS[name]
    with pytest.warns(RuntimeWarning, match=told) as caught:
        run(fn, ROWS, strategy)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(fn, ROWS[:4], strategy)  # as many on each


@pytest.mark.parametrize("name", LOSSES_OF_THE_BATCH)
def test_a_loss_with_a_size_is_not(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(LOSSES_OF_THE_BATCH[name], ROWS)


def test_a_batch_that_is_not_distributed_is_not_said_to_need_no_size() -> None:
    with pytest.warns(RuntimeWarning, match=r"or give global_batch_size=20\."):
        jd.function(lambda: FOUR.run(lambda x: jd.nn.compute_average_loss(x, global_batch_size=5), (ROWS,)))()


def model_loss(p: Any, x: Any) -> Any:
    """A value for each row and output."""
    return jnp.square(jax.nn.relu(x @ p["w"] + p["b"][None]))


def labelled(p: Any, x: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(jnp.tanh(x @ p["w"]), jnp.zeros(len(x), int))


def penalty(p: Any) -> Any:
    return np.float32(0.1) * jnp.square(p["w"]).sum()


SUMMED: dict[str, Callable[[Any, Any], Any]] = {
    "a mean": lambda p, x: model_loss(p, x).mean(),
    "a sum by the rows": lambda p, x: model_loss(p, x).sum() / np.float32(max(len(x), 1)),
    "a mean of means": lambda p, x: model_loss(p, x).mean(1).mean(),
    "half a mean": lambda p, x: np.float32(0.5) * model_loss(p, x).mean(),
    "cross entropies": lambda p, x: labelled(p, x).mean(),
    "a mean and a penalty": lambda p, x: model_loss(p, x).mean() + jd.nn.scale_regularization_loss(penalty(p)),
    "within a jit": lambda p, x: jax.jit(model_loss)(p, x).mean(),
    "a mean by the replicas": lambda p, x: model_loss(p, x).mean() / 2,
}
PARTS_OF_LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "a sum by the whole batch": lambda p, x: model_loss(p, x).sum() / 5,
    "an average of the whole batch": lambda p, x: jd.nn.compute_average_loss(
        model_loss(p, x).mean(1), global_batch_size=5
    ),
    "by a count of all": lambda p, x: model_loss(p, x).sum() / here().all_reduce("SUM", jnp.float32(len(x))),
    "a mean weighted by rows": lambda p, x: model_loss(p, x).mean() * np.float32(len(x) / 5),
    "cross entropies": lambda p, x: labelled(p, x).sum() / 5,
    "a sum and a penalty": lambda p, x: model_loss(p, x).sum() / 5 + jd.nn.scale_regularization_loss(penalty(p)),
    "a sum": lambda p, x: model_loss(p, x).sum(),
}


def minimized(loss: Callable[[Any, Any], Any], op: Literal["SUM", "MEAN"] = "SUM") -> None:
    """A compiled step of an optimizer on an uneven batch."""
    with TWO.scope():
        values = {"w": jd.Variable(ROWS.T[:, :2]), "b": jd.Variable(np.ones(2, np.float32))}
        optimizer = jd.Optimizer(optax.sgd(0.1), values)

    def replica(x: Any) -> None:
        grads = jd.grad(lambda: loss(values, x), values)()
        optimizer.apply_gradients(grads, op)

    (batch,) = TWO.experimental_distribute_dataset([ROWS])
    jd.function(lambda x: TWO.run(replica, (x,)))(batch)


@pytest.mark.parametrize("name", SUMMED)
def test_gradients_of_means_that_an_optimizer_adds_up_are_told(name: str) -> None:
    with pytest.warns(RuntimeWarning, match=r"which adds them up: .* the sum is 2 times .* have 3, 2 rows"):
        minimized(SUMMED[name])


@pytest.mark.parametrize("name", PARTS_OF_LOSSES)
def test_gradients_of_parts_of_the_loss_are_not(name: str) -> None:
    minimized(PARTS_OF_LOSSES[name])


def test_a_loss_without_the_size_of_the_batch_is_told_once() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        minimized(lambda p, x: jd.nn.compute_average_loss(model_loss(p, x).mean(1)))
    assert ["global_batch_size" in str(one.message) for one in told] == [True]


def test_gradients_of_means_whose_mean_an_optimizer_takes_are_not_said_to_be_added_up() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        minimized(SUMMED["a mean"], "MEAN")
    assert not any("adds them up" in str(one.message) for one in told)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("rows", [8, 5])
@pytest.mark.parametrize("carried", ["a key", "an integer"])
def test_loops_that_carry_integers_and_are_computed_again_in_the_derivative(carried: str, rows: int) -> None:
    batch = np.random.default_rng(1).normal(size=(rows, 3)).astype(np.float32)

    def trained(strategy: jd.Strategy) -> np.ndarray:
        with strategy.scope():
            model = jd.Model({"w": jnp.full((2, 3, 3), 0.1)}, optax.sgd(0.1))

        def forward(x: Any, begin: Any) -> Any:
            def layer(carry: Any, w: Any) -> Any:
                h, count = carry
                return (jnp.tanh(h @ w), jax.random.split(count)[0] if carried == "a key" else count + 1), None

            weights: Any = model.value
            return lax.scan(jax.checkpoint(layer), (x, begin), weights["w"])[0][0]

        def train(x: Any) -> None:
            begins = jnp.arange(len(x))
            begins = jax.vmap(jax.random.key)(begins) if carried == "a key" else begins
            model.minimize(lambda: (jax.vmap(forward)(x, begins) ** 2).sum() / rows)

        step = jd.function(lambda x: strategy.run(train, (x,)))
        for x in strategy.experimental_distribute_dataset([batch] * 2):
            step(x)
        return np.asarray(model.value["w"])  # pyright: ignore[reportIndexIssue]

    for strategy in (FOUR, jd.FullyShardedStrategy([f"CPU:{i}" for i in range(4)], min_bytes=0)):
        np.testing.assert_allclose(trained(strategy), trained(jd.OneDeviceStrategy("CPU:0")), rtol=1e-5)
