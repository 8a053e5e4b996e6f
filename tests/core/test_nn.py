"""`jd.nn` against formulas and against what TensorFlow 2.21 does; `oracle/record.py` made the table."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ContextError, ShapeError
from ragged import cut, deal, rows
from replicas import components, each_executor, execute, mirrored

Row = list[Any]
ROWS: list[Row] = json.loads((Path(__file__).parents[1] / "oracle" / "losses.json").read_text())
FOUR = mirrored(4)


def difference(row: Row) -> str | None:
    """Why a row of the table does not hold here, if it does not."""
    _, _, loss, weight, _, _ = row
    if weight is not None and np.ndim(loss) == 1 and len(loss) <= 1 < len(weight if np.ndim(weight) else []):
        return "TensorFlow repeats the one loss, or none at all, for each weight; here that is an error"
    if weight is not None and np.ndim(loss) == 3 and np.ndim(weight) == 1:
        return "TensorFlow lines up the last axes if the ranks differ by two; here weights belong to the examples"
    return None


def compute(row: Row) -> float:
    name, replicas, loss, weight, size, _ = row
    array = jnp.asarray(loss, jnp.float32)
    strategy = mirrored(replicas)
    if name == "regularization":
        result = strategy.run(lambda: jd.nn.scale_regularization_loss(array))
    else:
        given = None if weight is None else jnp.asarray(weight, jnp.float32)
        result = strategy.run(lambda: jd.nn.compute_average_loss(array, given, size))
    return components(result)[0]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_tensorflows_table(replicas: int) -> None:
    rows = [row for row in ROWS if row[1] == replicas and difference(row) is None]
    assert len(rows) > 80
    for row in rows if replicas == 1 else rows[::8]:
        if isinstance(row[-1], dict):
            with pytest.raises(ArgumentError, match="HINT"):
                compute(row)
        else:
            assert compute(row) == pytest.approx(row[-1]), row


REPEATED = [row for row in ROWS if row[1] == 1 and np.ndim(row[2]) == 1 and difference(row) is not None]


@pytest.mark.parametrize("row", REPEATED[::3], ids=str)
def test_where_tensorflow_repeats_losses(row: Row) -> None:
    with pytest.raises(ArgumentError, match=r"sample_weight of shape .* does not fit losses of shape .*HINT"):
        compute(row)


@settings(max_examples=5, derandomize=True)
@given(st.integers(1, 12), st.booleans())
def test_the_parts_add_up_to_the_mean_of_any_batch(batch: int, weighted: bool) -> None:
    losses, weights = rows(batch, 2), np.abs(rows(batch, seed=1))

    def fn(losses: Any, weights: Any) -> Any:
        return jd.nn.compute_average_loss(losses, weights if weighted else None, global_batch_size=batch)

    counts = cut(batch, 4)
    parts = jd.function(lambda *args: FOUR.run(fn, args))(deal(FOUR, losses, counts), deal(FOUR, weights, counts))
    expected = (losses * (weights[:, None] if weighted else 1)).sum() / batch
    np.testing.assert_allclose(FOUR.reduce("SUM", parts, axis=None), expected, rtol=1e-5, atol=1e-6)


@each_executor
def test_replicas_without_examples_have_no_loss(executor: str) -> None:
    losses = rows(5)
    parts = execute(executor, FOUR, jd.nn.compute_average_loss, deal(FOUR, losses, cut(5, 4)))
    assert components(parts)[3] == 0
    np.testing.assert_allclose(components(parts)[2], losses[4] / 4, rtol=1e-6)


def test_a_global_batch_size_that_is_known_may_come_from_around_a_traced_function() -> None:
    count, negative = jnp.int32(4), jnp.int32(-4)
    assert float(jax.jit(lambda x: jd.nn.compute_average_loss(x, global_batch_size=count))(jnp.ones(2))) == 0.5
    with pytest.raises(ArgumentError, match="global_batch_size is"):
        jax.make_jaxpr(lambda x: jd.nn.compute_average_loss(x, global_batch_size=negative))(jnp.ones(2))


@each_executor
def test_the_global_batch_size_may_be_computed(executor: str) -> None:
    losses = rows(5)

    def fn(losses: Any) -> Any:
        context = jd.get_replica_context()
        assert context is not None
        size = context.all_reduce("SUM", jnp.int32(losses.shape[0]))
        return jd.nn.compute_average_loss(losses, global_batch_size=size)

    parts = execute(executor, FOUR, fn, deal(FOUR, losses, cut(5, 4)))
    np.testing.assert_allclose(FOUR.reduce("SUM", parts, axis=None), losses.mean(), rtol=1e-6)


def test_gradients() -> None:
    losses = jnp.asarray(rows(3))
    grad = jax.grad(lambda x: jd.nn.compute_average_loss(x**2, global_batch_size=6))(losses)
    np.testing.assert_allclose(grad, 2 * losses / 6, rtol=1e-6)
    known = jnp.int32(6)  # an array from around a traced function
    assert jax.jit(lambda x: jd.nn.compute_average_loss(x, global_batch_size=known))(jnp.ones(3)) == 0.5
    nothing = jax.grad(lambda x: jd.nn.compute_average_loss(x, global_batch_size=0))(losses)
    np.testing.assert_array_equal(nothing, np.zeros(3))


def test_regularization_losses_add_up() -> None:
    weights = jnp.asarray(rows(3, 2))
    parts = FOUR.run(lambda: jd.nn.scale_regularization_loss(weights**2) * jnp.ones(()))
    np.testing.assert_allclose(sum(components(parts)), (weights**2).sum(), rtol=1e-6)


def test_dtypes_are_kept() -> None:
    losses = jnp.ones(4, jnp.bfloat16)
    assert jd.nn.compute_average_loss(losses, jnp.ones(4)).dtype == jnp.bfloat16
    assert jd.nn.scale_regularization_loss(losses).dtype == jnp.bfloat16
    v = jd.Variable(np.ones(3, np.float32))
    assert float(jd.nn.compute_average_loss(v)) == 1
    assert float(jd.nn.scale_regularization_loss(v)) == 3


def test_without_a_strategy_there_is_one_replica() -> None:
    assert float(jd.nn.compute_average_loss(jnp.asarray([1.0, 2.0]))) == 1.5
    assert float(jd.nn.scale_regularization_loss(jnp.asarray([1.0, 2.0]))) == 3


@pytest.mark.parametrize("compiled", [False, True])
def test_of_a_batch_that_every_replica_got_whole(compiled: bool) -> None:
    """Four times three examples, for a count of which a replica's part is two or three."""

    def mean(size: int, *batch: Any) -> Any:
        step = lambda *batch: FOUR.run(lambda x: jd.nn.compute_average_loss(x, global_batch_size=size), batch)  # noqa: E731
        return (jd.function(step) if compiled else step)(*batch)

    whole, part = np.ones(3, np.float32), deal(FOUR, np.ones((12, 1), np.float32)[:, 0], cut(12, 4))
    with pytest.warns(RuntimeWarning, match=r"batch of 3 whole.* its examples count 12, .* divided by 8\. HINT"):
        mean(8, whole)
    for size, batch in ((9, whole), (8, part), (8, np.ones(0, np.float32))):
        mean(size, batch)  # a warning is an error


def test_in_cross_replica_context() -> None:
    with FOUR.scope():
        with pytest.raises(ContextError, match=r"compute_average_loss was called in cross-replica context .*HINT"):
            jd.nn.compute_average_loss(jnp.ones(2))
        with pytest.raises(ContextError, match=r"scale_regularization_loss was called in cross-replica.*HINT"):
            jd.nn.scale_regularization_loss(jnp.ones(2))
        assert float(jd.nn.compute_average_loss(jnp.ones(2), global_batch_size=4)) == 0.5


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (jnp.float32(2), {}, r"per_example_loss is the scalar 2\.0\. HINT: pass one loss an example"),
        (jnp.ones(2, jnp.int32), {}, r"per_example_loss has dtype int32\. HINT"),
        (jnp.ones(2), {"sample_weight": jnp.ones(3)}, r"shape \(3,\) does not fit losses of shape \(2,\)\. HINT"),
        (jnp.ones(2), {"sample_weight": jnp.ones((2, 2))}, r"shape \(2, 2\) does not fit losses"),
        (jnp.ones(2), {"global_batch_size": -1}, r"global_batch_size is -1\. HINT: pass the number of examples"),
        (jnp.ones(2), {"global_batch_size": 2.5}, r"global_batch_size is 2\.5\. HINT"),
        (jnp.ones(2), {"global_batch_size": jnp.ones(1, jnp.int32)}, "global_batch_size is .* HINT"),
    ],
)
def test_errors(loss: Any, options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        jd.nn.compute_average_loss(loss, **options)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (1, 3), (5,), (0, 2)])
@pytest.mark.parametrize("kind", [jnp.asarray, jd.Variable])
def test_a_table_in_parts_is_one_table(sizes: tuple[int, ...], kind: Any) -> None:
    whole = rows(sum(sizes), 3)
    parts = [kind(part) for part in np.split(whole, np.cumsum(sizes)[:-1])]
    ids = np.arange(sum(sizes))[::-1]
    np.testing.assert_array_equal(jd.nn.embedding_lookup(parts, ids), whole[ids])
    np.testing.assert_array_equal(jd.function(lambda ids: jd.nn.embedding_lookup(tuple(parts), ids))(ids), whole[ids])


def test_parts_of_no_table() -> None:
    with pytest.raises(ArgumentError, match=r"an empty list\. HINT"):
        jd.nn.embedding_lookup([], np.arange(1))
    with pytest.raises(ShapeError, match=r"parts of shapes \[\(2, 3\), \(2, 4\)\]. HINT"):
        jd.nn.embedding_lookup([jnp.ones((2, 3)), jnp.ones((2, 4))], np.arange(1))
