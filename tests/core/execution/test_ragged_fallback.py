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
