"""Replicas of different shapes: both executors agree with each other and with one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute.errors import ShapeError, TraceError, VariableError
from ragged import UNEVEN, agree, cut, deal, plain, rows
from replicas import components, each_executor, execute, fraction, here, ident, mirrored, variable

FOUR, THREE = mirrored(4), mirrored(3)
W = rows(2, 2, seed=9)

# Means of each replica's mean, asked for on purpose: they count replicas, and a warning says so.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*takes the mean of the replicas' means:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*takes a mean over the replicas:RuntimeWarning"),
]


def five() -> tuple[np.ndarray[Any, Any], jd.PerReplica]:
    """Five examples, and the same on four replicas."""
    x = rows(5, 2)
    return x, deal(FOUR, x, UNEVEN)


def three() -> tuple[np.ndarray[Any, Any], jd.PerReplica]:
    """Three examples, and the same on three replicas, the last of which has none."""
    x = rows(3, 2)
    return x, deal(THREE, x, (2, 1, 0))


@pytest.mark.slow
@settings(max_examples=3, derandomize=True)
@given(st.sampled_from([2, 3, 4, 8]).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, 3 * n))))
@example((4, 1)).via("one example in all")
@example((8, 9)).via("three replicas with nothing")
def test_any_batch_on_any_replicas(case: tuple[int, int]) -> None:
    replicas, batch = case
    strategy, counts = mirrored(replicas), cut(batch, replicas)
    x, y = rows(batch, 3), rows(batch, seed=1)

    def fn(x: Any, y: Any) -> dict[str, Any]:
        ctx = here()
        count, total = ctx.all_reduce("SUM", (jnp.int32(x.shape[0]), x.sum(0)))
        mean = total / count.astype(jnp.float32)
        centred = x - mean[None]  # shaped as the replica's share, carried over the next collective
        variance = ctx.all_reduce("SUM", (centred**2).sum(0)) / count.astype(jnp.float32)
        scaled = centred / jnp.sqrt(variance + 1)[None]
        weight = ctx.all_reduce("SUM", jnp.vdot(scaled[:, 0], y))
        own = {"rows": scaled * weight, "positive": scaled > 0, "many": jnp.int32(x.shape[0]), "mean": x.mean()}
        return {"count": count, "mean": mean, "variance": variance, "weight": weight, "own": own}

    split = deal(strategy, x, counts), deal(strategy, y, counts)
    result = agree(strategy, fn, *split, atol=1e-5) if replicas < 4 else execute("compiled", strategy, fn, *split)
    scaled = (x - x.mean(0)) / np.sqrt(x.var(0) + 1)
    weight = scaled[:, 0] @ y
    own = result.pop("own")
    assert int(result["count"]) == batch
    np.testing.assert_allclose(result["mean"].data, x.mean(0), atol=1e-6)
    np.testing.assert_allclose(result["variance"].data, x.var(0), atol=1e-5)
    np.testing.assert_allclose(result["weight"].data, weight, atol=1e-5)
    np.testing.assert_allclose(strategy.gather(own["rows"], 0), scaled * weight, atol=1e-5)
    np.testing.assert_array_equal(np.concatenate(plain(own["positive"])), scaled > 0)
    assert components(own["many"]) == counts
    np.testing.assert_allclose(strategy.reduce("MEAN", own["rows"], 0), (scaled * weight).mean(0), atol=1e-5)
    means = [x[start : start + n].mean() for start, n in zip(np.cumsum([0, *counts]), counts, strict=False) if n]
    np.testing.assert_allclose(strategy.reduce("MEAN", own["mean"], None), np.mean(means), atol=1e-6)


def test_a_training_step_is_one_devices() -> None:
    x, split = five()
    v = [variable(FOUR, W, aggregation=jd.VariableAggregation.SUM)]

    def loss(w: Any, x: Any) -> Any:
        return (jnp.tanh(x @ w) ** 2).sum() / 5

    def fn(x: Any) -> Any:
        value, (grad,) = jd.value_and_grad(lambda: loss(v[0].read_value(), x), v)()
        return value, here().all_reduce("SUM", grad)

    value, grad = agree(FOUR, fn, split)
    expected, expected_grad = jax.value_and_grad(loss)(jnp.asarray(W), x)
    np.testing.assert_allclose(FOUR.reduce("SUM", value, None), expected, rtol=1e-6)
    np.testing.assert_allclose(grad.data, expected_grad, atol=1e-6)
    assert isinstance(grad, jd.Mirrored)


@pytest.mark.slow
def test_several_ragged_inputs_make_one_class_for_each_combination() -> None:
    x, y = rows(6, 2), rows(4, 3, seed=2)

    def fn(a: Any, b: Any, c: Any, d: Any) -> Any:
        both = here().all_reduce("SUM", (a.sum() + d, b.sum() * c))
        return both, a.sum(0), b[:, :1] * c, (a.shape[0] * 10 + b.shape[0]) * jnp.ones((1,), jnp.int32)

    per = FOUR.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group))
    a, b = deal(FOUR, x, [2, 2, 1, 1]), deal(FOUR, y, [1, 2, 1, 0])
    sums, _, cuts, kinds = agree(FOUR, fn, a, b, jnp.float32(3), per)
    assert components(kinds) == [[21], [22], [11], [10]]
    np.testing.assert_allclose(sums[0].data, x.sum() + 0 + 1 + 2 + 3, rtol=1e-5)
    np.testing.assert_allclose(sums[1].data, 3 * y.sum(), rtol=1e-5)
    assert [part.shape for part in cuts.values] == [(1, 1), (2, 1), (1, 1), (0, 1)]


@pytest.mark.slow
def test_results_that_do_not_depend_on_the_shapes_are_mirrored() -> None:
    _, split = three()
    w = jnp.asarray(W)

    def fn(x: Any) -> Any:
        total = here().all_reduce("SUM", x.sum())
        literal, param = jnp.float32(3), jax.nn.softmax(jax.nn.relu(w))
        return total * 2, literal, param, jnp.float32(x.shape[0]), ident()

    result = execute("compiled", THREE, fn, split)
    assert [type(one).__name__ for one in result] == ["Mirrored"] * 3 + ["PerReplica"] * 2
    agree(THREE, fn, split)


@pytest.mark.slow
def test_results_of_differing_shapes() -> None:
    _, split = three()

    def fn(x: Any) -> Any:
        return x.T, x[:, None], x[:0], x[1:], jnp.zeros((3, x.shape[0] + 1)), x.astype(jnp.int32), x > 0, x.reshape(-1)

    result = agree(THREE, fn, split)
    assert [part.shape for part in result[0].values] == [(2, 2), (2, 1), (2, 0)]
    assert [part.shape for part in result[3].values] == [(1, 2), (0, 2), (0, 2)]
    assert not result[2].is_ragged
    assert result[5].values[0].dtype == jnp.int32
    assert result[6].values[0].dtype == jnp.bool_


def test_python_results_of_each_shape() -> None:
    _, split = five()

    def fn(x: Any) -> Any:
        return "same", x.shape[0], None, "some" if x.shape[0] else "none"

    @jd.function
    def compiled(split: Any) -> Any:
        result = FOUR.run(fn, (split,))
        kept.append(result)
        return jnp.zeros(())

    kept: list[Any] = []
    compiled(split)
    for same, count, nothing, word in (kept[0], FOUR.run(fn, (split,))):
        assert same == "same"
        assert nothing is None
        assert count.values == (2, 2, 1, 0)  # pyright: ignore[reportAttributeAccessIssue]
        assert word.values == ("some", "some", "some", "none")  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.quick_cases(1)
@each_executor
def test_reductions_of_ragged_results_inside_and_outside(executor: str) -> None:
    x, split = five()

    def fn(x: Any) -> Any:
        return x * 2, x.sum(1), x.mean(), jnp.int32(x.shape[0]), x[:, 0] > 0

    def reductions(result: Any) -> Any:
        double, each, mean, count, flags = result
        return {
            "rows": FOUR.reduce("SUM", double, axis=0),
            "all": FOUR.reduce("MEAN", double, axis=(0, 1)),
            "each": FOUR.reduce("MEAN", each, axis=0),
            "mean": FOUR.reduce("MEAN", mean, axis=None),
            "sum": FOUR.reduce("SUM", mean, axis=None),
            "count": FOUR.reduce("SUM", count, axis=None),
            "counts": FOUR.reduce("MEAN", count, axis=None),
            "flags": FOUR.reduce("SUM", flags, axis=0),
            "gathered": FOUR.gather(double, axis=0),
            "bits": FOUR.gather(flags, axis=0),
        }

    means = [x[:2].mean(), x[2:4].mean(), x[4:].mean()]
    expected = {
        "rows": 2 * x.sum(0), "all": 2 * x.mean(), "each": x.sum(1).mean(),
        "mean": np.mean(means), "sum": np.sum(means),
        "count": 5, "counts": 5 / 3, "flags": (x[:, 0] > 0).sum(), "gathered": 2 * x, "bits": x[:, 0] > 0,
    }  # fmt: skip
    outside = reductions(execute(executor, FOUR, fn, split))
    inside = jd.function(lambda split: reductions(FOUR.run(fn, (split,))))(split)
    for results in (outside, inside):
        for name, value in expected.items():
            np.testing.assert_allclose(results[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@each_executor
def test_shapes_that_cannot_be_added_up(executor: str) -> None:
    result = execute(executor, FOUR, lambda x: x * 2, five()[1])
    with pytest.raises(ShapeError, match=r"\(0, 2\).*HINT: reduce along the axis"):
        FOUR.reduce("SUM", result, axis=None)
    with pytest.raises(ShapeError, match="HINT: reduce along the axis"):
        FOUR.reduce("MEAN", result, axis=1)
    with pytest.raises(ShapeError, match="HINT: gather along the axis"):
        FOUR.gather(result, axis=1)


@each_executor
def test_a_mean_leaves_idle_replicas_out_and_a_sum_takes_zero_for_their_nan(executor: str) -> None:
    x, split = five()

    def fn(x: Any) -> Any:
        nan = x.mean()  # NaN where there is nothing
        return here().all_reduce("MEAN", (nan, fraction() + 1)), here().all_reduce("SUM", (nan, fraction() + 1))

    (mean, ids), (total, sums) = execute(executor, FOUR, fn, split)
    means = [x[:2].mean(), x[2:4].mean(), x[4:].mean()]
    np.testing.assert_allclose(mean.data, np.mean(means), rtol=1e-6)
    np.testing.assert_allclose(ids.data, np.mean([1, 2, 3]))
    np.testing.assert_allclose(total.data, np.sum(means), rtol=1e-6)
    np.testing.assert_allclose(sums.data, 1 + 2 + 3 + 4)  # numbers count, whoever has them


@each_executor
def test_the_nan_of_a_replica_with_data_stays(executor: str) -> None:
    x = rows(5, 2)
    x[0, 0] = np.nan
    result = execute(executor, FOUR, lambda x: here().all_reduce("SUM", x.sum(0)), deal(FOUR, x, UNEVEN))
    assert np.isnan(result.data[0])
    np.testing.assert_allclose(result.data[1], x[:, 1].sum(), rtol=1e-6)


@each_executor
def test_idle_replicas_stay_idle_in_the_next_run(executor: str) -> None:
    x, split = five()
    mean = execute(executor, FOUR, lambda x: x.mean(), split)
    assert mean.idle == (3,)
    again = execute(executor, FOUR, lambda m: here().all_reduce("MEAN", m * 2), mean)
    np.testing.assert_allclose(again.data, 2 * np.mean([x[:2].mean(), x[2:4].mean(), x[4:].mean()]), rtol=1e-6)


@pytest.mark.slow
def test_gradients_through_collectives() -> None:
    x, split = three()
    w = jnp.asarray(W)

    def through_mean(x: Any, w: Any) -> Any:
        mean = here().all_reduce("MEAN", (x @ w).mean(0))
        return ((x @ w - mean[None]) ** 2).mean()

    def through_sum(x: Any, w: Any) -> Any:
        totals = here().all_reduce("SUM", {"sum": (x @ w).sum(0), "count": jnp.int32(x.shape[0])})
        return ((x @ w - totals["sum"][None] / totals["count"].astype(jnp.float32)) ** 2).sum()

    def fn(x: Any) -> Any:
        return [jax.grad(f, argnums=(0, 1))(x, w) for f in (through_mean, through_sum)]

    (mean_x, _), (sum_x, sum_w) = agree(THREE, fn, split, atol=1e-5)
    assert np.isfinite(np.concatenate(plain(mean_x))).all()
    # The replicas' losses add up to that of one device, and so do their gradients.
    grad_x, grad_w = jax.grad(lambda x, w: ((x @ w - (x @ w).mean(0, keepdims=True)) ** 2).sum(), argnums=(0, 1))(
        jnp.asarray(x), w
    )
    np.testing.assert_allclose(THREE.gather(sum_x, 0), grad_x, atol=1e-5)
    np.testing.assert_allclose(THREE.reduce("SUM", sum_w, None), grad_w, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("around", ["run", "jd.function"])
def test_a_rule_that_the_program_is_cut_through_is_not_lost_in_silence(around: str) -> None:
    @jax.custom_vjp
    def total(x: Any) -> Any:
        return here().all_reduce("SUM", x.sum())

    total.defvjp(lambda x: (total(x), x), lambda x, cotangent: (7 * cotangent * jnp.ones_like(x),))
    _, batch = three()

    def whole(h: Any, batch: Any) -> Any:
        return THREE.reduce("MEAN", THREE.run(lambda h, x: total(h * x), (h, batch)), axis=None)

    step = jd.function(jax.grad(whole)) if around == "run" else jax.grad(jd.function(whole))
    with pytest.raises(TraceError, match="the rule is lost there"):
        step(jnp.float32(1.0), batch)


def test_gradients_leave_idle_replicas_out() -> None:
    _, split = three()
    w = jnp.asarray(W)

    def fn(x: Any) -> Any:
        def loss(w: Any) -> Any:
            mean, total = (here().all_reduce(op, w.sum() * (fraction() + 1)) for op in ("MEAN", "SUM"))
            return mean * (fraction() + 1) + 10 * total * (fraction() + 1)

        return jax.grad(loss)(w)[0, 0]

    grad = agree(THREE, fn, split)
    # Replica i's part: (i + 1) (3 / 2 + 10 * 6), idle ones without the first.
    np.testing.assert_allclose(components(grad), [61.5, 123, 180])


@pytest.mark.slow
def test_nested_jit_and_transformations() -> None:
    _, split = three()

    @jax.jit
    def inner(x: Any) -> Any:
        return jax.vmap(jnp.sin)(x).sum(0) + jnp.float32(x.shape[0])

    def fn(x: Any) -> Any:
        scanned = jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros(2), x)
        looped = jax.lax.fori_loop(0, x.shape[0], lambda i, c: c + i, jnp.int32(0))
        chosen = jax.lax.cond(ident() > 0, x.sum, lambda: jnp.float32(0))
        return here().all_reduce("SUM", inner(x)), inner(x), scanned, looped, chosen, jax.checkpoint(jnp.tanh)(x)

    agree(THREE, fn, split)


def test_a_collective_in_a_nested_jit() -> None:
    x, split = five()

    def fn(x: Any) -> Any:
        @jax.jit
        def inner(x: Any) -> Any:
            return here().all_reduce("SUM", x.sum()) * jnp.float32(x.shape[0])

        return inner(x) + jax.lax.psum(x.sum(), "replica")

    result = execute("compiled", FOUR, fn, split)
    np.testing.assert_allclose(components(result), [x.sum() * (n + 1) for n in UNEVEN], rtol=1e-5)


def test_merge_call_reduces_what_replicas_of_all_shapes_give() -> None:
    x, split = three()

    def fn(x: Any) -> Any:
        def merged(strategy: jd.Strategy, x: Any, mean: Any, count: Any) -> Any:
            return (
                strategy.reduce("MEAN", x, axis=0),
                strategy.reduce("SUM", x, axis=0),
                strategy.reduce("MEAN", x, axis=(0, 1)),
                strategy.reduce("MEAN", mean, axis=None),
                strategy.reduce("SUM", mean, axis=None),
                strategy.reduce("MEAN", count, axis=None),
            )

        return here().merge_call(merged, (x, x.mean(), jnp.float32(x.shape[0])))

    result = agree(THREE, fn, split)
    means = [x[:2].mean(), x[2:].mean()]
    expected = [x.mean(0), x.sum(0), x.mean(), np.mean(means), np.sum(means), 3 / 2]
    for one, value in zip(result, expected, strict=True):
        np.testing.assert_allclose(np.asarray(plain(one))[0], value, rtol=1e-5, atol=1e-6)


@each_executor
def test_variables(executor: str) -> None:
    x, split = three()
    aggregation = jd.VariableAggregation
    total = variable(THREE, 0.0, aggregation=aggregation.SUM)
    mean = variable(THREE, 0.0, aggregation=aggregation.MEAN)
    first = variable(THREE, 0.0, aggregation=aggregation.ONLY_FIRST_REPLICA)
    on_read = variable(THREE, 0.0, aggregation=aggregation.SUM, synchronization=jd.VariableSynchronization.ON_READ)

    def fn(x: Any) -> None:
        total.assign_add(x.sum())
        mean.assign(x.mean())
        first.assign(x.sum())
        on_read.assign_add(x.sum())

    execute(executor, THREE, fn, split)
    np.testing.assert_allclose(total.numpy(), x.sum(), rtol=1e-6)
    np.testing.assert_allclose(mean.numpy(), np.mean([x[:2].mean(), x[2:].mean()]), rtol=1e-6)
    np.testing.assert_allclose(first.numpy(), x[:2].sum(), rtol=1e-6)
    np.testing.assert_allclose(on_read.numpy(), x.sum(), rtol=1e-6)
    np.testing.assert_allclose(components(on_read)[2], 0.0)


@each_executor
def test_variables_stay_when_the_step_raises(executor: str) -> None:
    _, split = three()
    v = variable(THREE, 1.0, aggregation=jd.VariableAggregation.SUM)
    plain_v = variable(THREE, 1.0)

    def unaggregated(x: Any) -> None:
        plain_v.assign(x.sum())

    def shape_dependent(x: Any) -> None:
        if not x.shape[0]:
            raise LookupError("nothing to do")
        v.assign_add(x.sum())

    with pytest.raises(VariableError, match="HINT"):
        execute(executor, THREE, unaggregated, split)
    with pytest.raises(LookupError, match="nothing to do"):
        execute(executor, THREE, shape_dependent, split)
    assert float(v) == float(plain_v) == 1.0


def test_one_trace_for_each_way_to_cut_a_batch() -> None:
    seen: list[int] = []

    def fn(x: Any) -> Any:
        seen.append(x.shape[0])
        return here().all_reduce("SUM", x.sum())

    @jd.function
    def step(x: Any) -> Any:
        return FOUR.run(fn, (x,))

    batches = [rows(n, 2, seed=i) for i, n in enumerate([8, 8, 5, 8, 5, 7, 5, 8, 7])]
    for x in batches:
        np.testing.assert_allclose(step(deal(FOUR, x, cut(len(x), 4))).data, x.sum(), rtol=1e-5, atol=1e-6)
    assert step.experimental_get_tracing_count() == 3
    assert seen == [2, 2, 1, 0, 2, 1]  # one a distinct shape


def test_an_epoch_over_a_dataset_is_exact() -> None:
    x = rows(19, 2)
    data = FOUR.experimental_distribute_dataset([x[i : i + 8] for i in range(0, 19, 8)])
    total = variable(FOUR, np.zeros(2, np.float32), aggregation=jd.VariableAggregation.SUM)
    count = variable(FOUR, 0, aggregation=jd.VariableAggregation.SUM)

    def fn(x: Any) -> None:
        total.assign_add((x**2).sum(0))
        count.assign_add(jnp.int32(x.shape[0]))

    @jd.function
    def step(x: Any) -> None:
        FOUR.run(fn, (x,))

    for _ in range(2):
        for batch in data:
            step(batch)
    assert int(count) == 38
    np.testing.assert_allclose(total.numpy(), 2 * (x**2).sum(0), rtol=1e-6)
    assert step.experimental_get_tracing_count() == 2
