"""What no row of the batch reaches: a bound, a NaN, a vote that another replica would lose."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing

ROWS = 12
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = X @ np.array([1, 2, 3], np.float32)
BOUNDS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda value: jax.nn.relu(value - 30),
    "maximum": lambda value: jnp.maximum(value, 30),
    "minimum": lambda value: jnp.minimum(value, -30),
    "clip": lambda value: jnp.clip(value, -30, 30),
    "where": lambda value: jnp.where(value > 30, 2.0, 1.0) * value,
    "round": lambda value: jnp.round(value / 100),
    "floor": lambda value: jnp.floor(jnp.abs(value) / 100),
}
"""Of which a mean is on one side for this batch."""
FLAGS: dict[str, Callable[[Any], Any]] = {
    "nan rows": lambda x: jnp.isnan(x).any(1).sum(),
    "infinite": lambda x: (~jnp.isfinite(x)).sum(),
    "any": lambda x: (x > 1e6).any().astype(jnp.int32),
    "vote": lambda x: jnp.argmax((x + jnp.array([100.0, 0, 0])).sum(0)),
    "outliers": lambda x: (jnp.abs(x) > 1e9).sum(),
}
"""Numbers of a replica's rows that are alike for this batch."""


def context() -> Any:
    return jd.get_replica_context()


def verdict(of: Callable[[Any, Any], Any], *, shared: bool = True, **variable: Any) -> testing.Verdict:
    """Verifies a step that trains rightly with a term that is added to its loss, or gives a value to a variable."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = jd.Variable(np.ones(3, np.float32), name="w")
        optimizer = jd.Optimizer(optax.sgd(0.1), [w])
        seen = jd.Variable(0, name="seen", trainable=False, **variable) if variable else None

    def replica(x: Any, y: Any) -> None:
        def loss() -> Any:
            more = 0.0 if variable else of(x @ w.read_value(), y)
            return ((x @ w.read_value() - y) ** 2).sum() / ROWS + (
                more / context().num_replicas_in_sync if shared else more
            )

        optimizer.apply_gradients(jd.grad(loss, [w])())
        if seen is not None:
            seen.assign(of(x, y))

    step = jd.function(lambda x, y: strategy.run(replica, (x, y)))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return testing.verify(step, X, Y, strategy=strategy, raises=False)


def reduced(value: Any) -> Any:
    return context().all_reduce("SUM", value.sum()) / ROWS


@pytest.mark.parametrize("bound", [name for name in BOUNDS if name not in ("round", "floor")])
def test_a_bound_of_the_mean_of_a_replicas_rows_is_found(bound: str) -> None:
    found = verdict(lambda values, _: BOUNDS[bound](values.sum() / ROWS * 2))
    assert not found.right, str(found)
    assert "test_bounds.py" in str(found.findings[0].culprit.place), str(found)


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_of_the_mean_of_all_rows_raises_no_alarm(bound: str) -> None:
    found = verdict(lambda values, _: BOUNDS[bound](reduced(values)))
    assert not found.findings, str(found)


@pytest.mark.parametrize("flag", FLAGS)
def test_what_one_replica_counts_of_its_rows_is_found(flag: str) -> None:
    found = verdict(lambda x, _: FLAGS[flag](x), aggregation="only_first_replica")
    assert not found.right, str(found)
    assert [one.culprit.pattern.name for one in found.findings] == ["one-replica"], str(found)
    lines = [place.line for place in found.findings[0].culprit.places]
    assert FLAGS[flag].__code__.co_firstlineno in lines, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("flag", FLAGS)
def test_what_is_counted_of_all_rows_raises_no_alarm(flag: str) -> None:
    found = verdict(lambda x, _: FLAGS[flag](context().all_gather(x, axis=0)), aggregation="only_first_replica")
    assert not found.findings, str(found)


DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "of the loss": lambda key, values: jax.random.normal(key, ()) * values.sum() / ROWS,
    "of a layer": lambda key, values: jnp.where(jax.random.bernoulli(key), values, 0).sum() / ROWS,
    "of features": lambda key, values: (values[:, None] * jax.random.bernoulli(key, 0.5, (1, 4))).sum() / ROWS,
}


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize("draw", DRAWS)
def test_one_draw_for_the_whole_batch_by_a_key_of_each_replica_is_noted(draw: str) -> None:
    def own(values: Any, _: Any) -> Any:
        return DRAWS[draw](context().fold_in(jax.random.key(0)), values)

    def shared(values: Any, _: Any) -> Any:
        return DRAWS[draw](jax.random.key(0), values)

    def of_rows(values: Any, _: Any) -> Any:
        noise = jax.random.normal(context().fold_in(jax.random.key(0)), values.shape)
        return (noise * values).sum() / ROWS

    found = verdict(own, shared=False)
    assert [one.file.rpartition("/")[2] for one in found.estimates] == ["test_bounds.py"], str(found)
    assert "note: " in str(found)
    for right in (shared, of_rows):
        assert not verdict(right, shared=False).estimates + verdict(right, shared=False).findings
