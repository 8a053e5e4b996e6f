"""Batches whose replicas cannot be one program: they run in lockstep, exactly, with one warning."""

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute.errors import ContextError
from ragged import deal, plain, rows
from replicas import here, mirrored, variable

THREE = mirrored(3)
ONE = mirrored(1)
UNEVEN = (2, 1, 0)
X = rows(3, 2)


def total(x: Any) -> Any:
    return here().all_reduce("SUM", x.sum())


def in_scan(x: Any) -> Any:
    return jax.lax.scan(lambda c, _: (c + total(x), None), jnp.float32(0), None, length=2)[0]


def in_while(x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + total(x)), (0, jnp.float32(0)))[1]


def in_cond(x: Any) -> Any:
    return jax.lax.cond(jnp.bool_(True), lambda: 2 * total(x), lambda: jnp.float32(0))


def in_scan_of_gradients(x: Any) -> Any:
    def loss(w: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c + total(x * w), None), jnp.float32(0), None, length=2)[0]

    return here().all_reduce("SUM", jax.grad(loss)(jnp.float32(3))) / 3


def in_gather_in_cond(x: Any) -> Any:
    return 2 * jax.lax.cond(jnp.bool_(True), lambda: here().all_gather(x, 0).sum(), lambda: jnp.float32(0))


def with_a_ref(x: Any) -> Any:
    ref = jax.new_ref(jnp.float32(0))
    ref[...] += total(x)
    return ref[...] + total(x)


FALLBACKS = {
    "inside scan": in_scan,
    "inside while": in_while,
    "inside cond": in_cond,
    "inside  scan": in_scan_of_gradients,
    "inside  cond": in_gather_in_cond,
    "mutable jax.Ref": with_a_ref,
}


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("reason", FALLBACKS)
def test_fallbacks_are_exact_and_warn_once(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    fn = FALLBACKS[reason]
    step = jd.function(lambda x: THREE.run(fn, (x,)))
    with caplog.at_level(logging.WARNING, "jaxtribute"):
        for scale in (1, 3):
            result = step(deal(THREE, scale * X, UNEVEN))
            np.testing.assert_allclose(plain(result), 2 * scale * X.sum(), rtol=1e-5)
    (record,) = caplog.records
    assert reason.replace("  ", " ") in record.getMessage()
    assert "HINT" in record.getMessage()


def of_a_sum(x: Any, solve: Callable[..., Any]) -> Any:
    """What `solve` makes of a product whose factor is a sum over the replicas, and of 3."""
    return solve(lambda v: here().all_reduce("SUM", (x**2).sum()) * v, jnp.float32(3))


def by_root(product: Any, b: Any) -> Any:
    slope = lambda f, y: y / f(jnp.float32(1))  # noqa: E731
    return jax.lax.custom_root(lambda v: product(v) - b, b, lambda f, v: v - f(v) / (f(v + 1) - f(v)), slope)


def by_loop(product: Any, b: Any) -> Any:
    return jax.lax.fori_loop(0, 2, lambda _, v: v + (b - product(v)) / product(jnp.float32(1)), b)


SOLVERS: dict[str, Callable[..., Any]] = {
    "cg": lambda product, b: jax.scipy.sparse.linalg.cg(product, b, maxiter=2)[0],
    "bicgstab": lambda product, b: jax.scipy.sparse.linalg.bicgstab(product, b, maxiter=2)[0],
    "gmres": lambda product, b: jax.scipy.sparse.linalg.gmres(product, b, maxiter=2)[0],
    "custom_root": by_root,
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_that_jax_traces_are_for_rows_that_divide(name: str) -> None:
    step = jd.function(lambda x: THREE.run(of_a_sum, (x, SOLVERS[name])))
    whole = rows(6, 2)
    np.testing.assert_allclose(plain(step(deal(THREE, whole, [2] * 3))), 3 / (whole**2).sum(), rtol=1e-5)
    with pytest.raises(ContextError, match=r"rows that do not divide\. HINT: drop .*loop out with jax\.lax\.fori_loop"):
        step(deal(THREE, X, UNEVEN))
    # As the hint says.
    by_hand = jd.function(lambda x: THREE.run(of_a_sum, (x, by_loop)))
    np.testing.assert_allclose(plain(by_hand(deal(THREE, X, UNEVEN))), 3 / (X**2).sum(), rtol=1e-5)


class Fit:
    """The sum of squares of all replicas' rows as a function of one number, with its whole gradient on each."""

    def __init__(self, x: Any) -> None:
        whole = lambda w: here().all_reduce("SUM", ((x * w - 1) ** 2).sum())  # noqa: E731
        self.value = jax.custom_vjp(whole)
        self.value.defvjp(
            lambda w: (whole(w), w), lambda w, g: (g * here().all_reduce("SUM", (2 * x * (x * w - 1)).sum()),)
        )

    def checkpointed(self, w: Any) -> Any:
        return w - 0.01 * jax.grad(jax.checkpoint(self.value))(w)

    def compiled(self, w: Any) -> Any:
        return w - 0.01 * jax.jit(jax.grad(self.value))(w)

    def mapped(self, w: Any) -> Any:
        return jax.lax.map(self.value, jnp.stack([w, w + 1])).sum()

    def vectorized(self, w: Any) -> Any:
        return jax.vmap(self.value)(jnp.stack([w, w + 1])).sum()

    def backtracking(self, w: Any) -> Any:
        return self._searched(w, optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5)))

    def zoom(self, w: Any) -> Any:
        return self._searched(w, optax.chain(optax.sgd(1.0), optax.scale_by_zoom_linesearch(5)))

    def lbfgs(self, w: Any) -> Any:
        return self._searched(w, optax.lbfgs(linesearch=optax.scale_by_zoom_linesearch(5)))

    def _searched(self, w: Any, transform: Any) -> Any:
        state = transform.init(w)
        for _ in range(2):
            value, grad = jax.value_and_grad(self.value)(w)
            updates, state = transform.update(grad, state, w, value=value, grad=grad, value_fn=self.value)
            w = optax.apply_updates(w, updates)
        return w


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("counts", [UNEVEN, (1, 1, 1)], ids=str)
@pytest.mark.parametrize(
    "way", [Fit.checkpointed, Fit.compiled, Fit.mapped, Fit.vectorized, Fit.backtracking, Fit.zoom, Fit.lbfgs]
)
def test_functions_with_sums_are_transformed_as_on_one_device(way: Any, counts: tuple[int, ...]) -> None:
    found, alone = (
        plain(jd.function(lambda x, run=strategy.run: run(lambda x: way(Fit(x), jnp.float32(0.5)), (x,)))(x))
        for strategy, x in ((THREE, deal(THREE, X, counts)), (ONE, deal(ONE, X, (3,))))
    )
    np.testing.assert_allclose(found, np.broadcast_to(alone, np.shape(found)), rtol=1e-4)


def test_a_replica_without_rows_is_not_told_of_loops(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced_reads, "uncompiled", False)
    found: list[Any] = []
    # The table is looked up again after its update: to look up no rows nobody gathers it.
    for strategy, counts in (
        (jd.FullyShardedStrategy(THREE.extended.worker_devices, min_bytes=0), UNEVEN),
        (ONE, (3,)),
    ):
        with strategy.scope():
            table = jd.Variable(np.ones((3, 4), np.float32))
        optimizer = jd.Optimizer(optax.sgd(0.1), [table])

        def replica(x: Any, table: Any = table, optimizer: Any = optimizer) -> None:
            for _ in range(2):
                loss = lambda: jnp.sum(jnp.tanh(table.read_value()[x[:, 0].astype(int)]) ** 2)  # noqa: E731
                optimizer.apply_gradients(jd.grad(loss, [table])())

        with caplog.at_level(logging.WARNING, "jaxtribute"):
            jd.function(lambda x, run=strategy.run, fn=replica: run(fn, (x,)))(deal(strategy, X * 0 + 1, counts))
        found.append(np.asarray(table))
    np.testing.assert_allclose(*found, rtol=1e-6)
    (record,) = caplog.records
    assert "replicas with no rows make different collectives" in record.getMessage()
    assert "loops" not in record.getMessage()
    assert traced_reads.uncompiled


def test_even_batches_of_the_same_function_stay_compiled(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def fn(x: Any) -> Any:
        calls.append(x.shape[0])
        return in_scan(x)

    step = jd.function(lambda x: THREE.run(fn, (x,)))
    whole = rows(6, 2)
    with caplog.at_level(logging.WARNING, "jaxtribute"):
        for _ in range(3):
            np.testing.assert_allclose(plain(step(deal(THREE, whole, [2] * 3))), 2 * whole.sum(), rtol=1e-5)
        assert set(calls) == {2}
        assert not caplog.records
        step(deal(THREE, X, UNEVEN))
        assert len(caplog.records) == 1
        np.testing.assert_allclose(plain(step(deal(THREE, whole, [2] * 3))), 2 * whole.sum(), rtol=1e-5)


@pytest.mark.parametrize("sizes", [UNEVEN, (2, 1, 1)])
def test_results_of_different_structure_run_in_lockstep(sizes: tuple[int, ...]) -> None:
    def fn(x: Any) -> Any:
        return [x] * x.shape[0]

    with pytest.raises(ContextError, match=r"replica 0 returned .*HINT: the function must return the same structure"):
        jd.function(lambda x: THREE.run(fn, (x,)))(deal(THREE, rows(sum(sizes), 2), sizes))


V = [variable(THREE, float(place)) for place in range(3)]
DIFFERENT: dict[str, Callable[[Any], Any]] = {
    "rank": lambda x: x if x.shape[0] > 1 else x.sum(),
    "dtype": lambda x: x.sum().astype(jnp.int32 if x.shape[0] > 1 else jnp.float32),
    "dtype of arrays": lambda x: x.astype(jnp.complex64) if x.shape[0] == 1 else x,
    "variables": lambda x: (V[x.shape[0]], x),
    "a name": lambda x: (f"{x.shape[0]} rows", x),
    "random keys": lambda x: jax.random.split(jax.random.key(1), x.shape[0] + 1),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_results_that_differ_by_the_replicas_rows_are_those_of_lockstep(name: str) -> None:
    def run(x: Any) -> Any:
        return THREE.run(DIFFERENT[name], (x,))

    x = deal(THREE, X, UNEVEN)
    eager, compiled = (list(map(str, THREE.experimental_local_results(step(x)))) for step in (run, jd.function(run)))
    assert compiled == eager
    assert len(set(eager)) == 3
    if name != "variables":
        assert eager == [str(DIFFERENT[name](jnp.asarray(rows))) for rows in (X[:2], X[2:], X[:0])]


def test_variables_written_by_some_replicas_only_are_found_out() -> None:
    v = variable(THREE, 0.0, aggregation=jd.VariableAggregation.SUM)

    def fn(x: Any) -> None:
        if x.shape[0]:
            v.assign_add(x.sum())

    with pytest.raises(ContextError, match=r"do not meet(.|\n)*replica 2 has ended(.|\n)*HINT"):
        jd.function(lambda x: THREE.run(fn, (x,)))(deal(THREE, X, UNEVEN))
    assert float(v) == 0


def test_variables_that_differ_by_the_replicas_rows(caplog: pytest.LogCaptureFixture) -> None:
    ones, twos = (variable(THREE, 0.0, synchronization="on_read", aggregation="sum") for _ in range(2))

    def fn(x: Any) -> None:
        (ones if x.shape[0] == 1 else twos).assign_add(x.sum())

    x = rows(4, 2)
    for turn, step in enumerate((lambda x: THREE.run(fn, (x,)), jd.function(lambda x: THREE.run(fn, (x,)))), 1):
        step(deal(THREE, x, (2, 1, 1)))
        np.testing.assert_allclose((float(twos), float(ones)), (turn * x[:2].sum(), turn * x[2:].sum()), rtol=1e-5)
    assert "the replicas write different variables" in caplog.text


def test_the_rest_of_the_function_runs_as_python(caplog: pytest.LogCaptureFixture) -> None:
    v = variable(THREE, 0.0, aggregation=jd.VariableAggregation.SUM)

    @jd.function
    def inner(x: Any) -> Any:
        return THREE.run(in_scan, (x,))

    @jd.function
    def outer(x: Any) -> Any:
        result = inner(x)
        v.assign_add(THREE.reduce("MEAN", result, axis=None))
        return result

    outer(deal(THREE, X, UNEVEN))
    outer(deal(THREE, X, UNEVEN))
    np.testing.assert_allclose(float(v), 4 * X.sum(), rtol=1e-5)
    assert len(caplog.records) == 1


def test_errors_of_the_function_itself_come_out() -> None:
    def fn(x: Any) -> Any:
        here().all_gather(x, 0)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        jd.function(lambda x: THREE.run(fn, (x,)))(deal(THREE, X, UNEVEN))
