from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import jaxtribute as jd
from jaxtribute._src.core.execution.capture import varying_outputs
from jaxtribute._src.core.execution.eager import Parting
from jaxtribute._src.core.values.mesh import AXIS
from replicas import components, execute, fraction, here, ident, mirrored, per_replica, variable


def varies(fn: Callable[..., Any], *flags: bool) -> list[bool]:
    """Whether the outputs of `fn`, given float vectors that vary or not, may differ between replicas."""
    avals = [jax.ShapeDtypeStruct((2,), jnp.float32)] * len(flags)
    return varying_outputs(jax.make_jaxpr(fn, axis_env=[(AXIS, 2), ("other", 2)])(*avals).jaxpr, flags)


def index() -> Any:
    return lax.axis_index(AXIS).astype(jnp.float32)


def total(x: Any) -> Any:
    return lax.psum(x, AXIS)


CASES: dict[str, tuple[Callable[[Any, Any], Any], list[bool]]] = {
    # Functions of x, which varies, and of m, which does not.
    "identity": (lambda x, m: (x, m), [True, False]),
    "constant": (lambda x, m: (jnp.ones(2), 3.0), [False, False]),
    "arithmetic": (lambda x, m: (x + m, m * 2), [True, False]),
    "unused": (lambda x, m: ((x * 0, m)[1],), [False]),
    "psum": (lambda x, m: (total(x), total(m)), [False, False]),
    "mean": (lambda x, m: (lax.pmean(x, AXIS),), [False]),
    "pmax": (lambda x, m: (lax.pmax(x, AXIS), lax.pmin(x, AXIS)), [False, False]),
    "all_gather": (lambda x, m: (lax.all_gather(x, AXIS),), [False]),
    "psum over another axis": (lambda x, m: (lax.psum(x, "other"),), [True]),
    "psum over both axes": (lambda x, m: (lax.psum(x, (AXIS, "other")),), [False]),
    "after a psum": (lambda x, m: (total(x) + m, total(x) + x), [False, True]),
    "axis_index": (lambda x, m: (index() + m,), [True]),
    "ppermute": (lambda x, m: (lax.ppermute(m, AXIS, [(0, 1), (1, 0)]),), [True]),
    "psum_scatter": (lambda x, m: (lax.psum_scatter(m, AXIS),), [True]),
    "jit": (lambda x, m: (jax.jit(lambda y: y + 1)(m), jax.jit(lambda y: y + 1)(x)), [False, True]),
    "psum in jit": (lambda x, m: (jax.jit(total)(x),), [False]),
    "index in jit": (lambda x, m: (jax.jit(lambda y: y + index())(m), jax.jit(lambda y: y)(m)), [True, False]),
    "mixed jit": (jax.jit(lambda a, b: (a, b)), [True, False]),
    "vmap": (lambda x, m: (jax.vmap(lambda y: y * 2)(m), jax.vmap(total)(x)), [False, False]),
    "remat": (lambda x, m: (jax.checkpoint(jnp.sin)(m), jax.checkpoint(total)(x)), [False, False]),
    "index in remat": (lambda x, m: (jax.checkpoint(lambda y: y * index())(m),), [True]),
    "custom_jvp": (lambda x, m: (jax.nn.relu(m), jax.nn.relu(x), jax.nn.relu(total(x))), [False, True, False]),
    "grad": (lambda x, m: (jax.grad(lambda y: (y * y).sum())(m), jax.grad(lambda y: (y * x).sum())(m)), [False, True]),
    "grad through psum": (lambda x, m: (jax.grad(lambda y: total(y * x).sum())(m),), [True]),
    "psum of grad": (lambda x, m: (total(jax.grad(lambda y: (y * x).sum())(m)),), [False]),
    "cond on mirrored": (lambda x, m: (lax.cond(m[0] > 0, lambda: m, lambda: m + 1),), [False]),
    "cond on varying": (lambda x, m: (lax.cond(x[0] > 0, lambda: m, lambda: m + 1),), [True]),
    "cond to varying": (lambda x, m: lax.cond(m[0] > 0, lambda: (x, m), lambda: (m, m)), [True, False]),
    "index in a branch": (lambda x, m: (lax.cond(m[0] > 0, lambda: m * index(), lambda: m),), [True]),
    "switch": (lambda x, m: (lax.switch(m[0].astype(int), [lambda: m, lambda: x, lambda: m]),), [True]),
    "where": (lambda x, m: (jnp.where(x > 0, m, m + 1), jnp.where(m > 0, m, m + 1)), [True, False]),
    "top_k": (lambda x, m: lax.top_k(m, 1), [False, False]),
    "sort": (lambda x, m: (jnp.sort(m), jnp.sort(x)), [False, True]),
    "random": (lambda x, m: (jax.random.normal(jax.random.key(0), (2,)),), [False]),
    "random by replica": (
        lambda x, m: (jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index(AXIS))),),
        [True],
    ),
    "callback": (lambda x, m: (jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((2,), jnp.float32), m),), [True]),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_straight_line(name: str) -> None:
    fn, expected = CASES[name]
    assert varies(fn, True, False) == expected


SCANS: dict[str, tuple[Callable[[Any, Any], Any], list[bool]]] = {
    "all mirrored": (lambda x, m: lax.scan(lambda c, y: (c + y, c), m[0], m), [False, False]),
    "varying input": (lambda x, m: lax.scan(lambda c, y: (c + y, c * 2), m[0], x), [True, True]),
    "varying start": (lambda x, m: lax.scan(lambda c, y: (c + y, y), x[0], m), [True, False]),
    "varying constant": (lambda x, m: lax.scan(lambda c, y: (c, y * x), m[0], m), [False, True]),
    "varying later": (
        # The second carry starts equal, and takes the first one's value a turn later.
        lambda x, m: lax.scan(lambda c, y: ((c[0] + x[0], c[0], c[1]), c[2]), (m[0], m[0], m[0]), m),
        [True, True, True, True],
    ),
    "psum in the body": (lambda x, m: lax.scan(lambda c, y: (c + total(y), c), m[0], x), [False, False]),
    "index in the body": (lambda x, m: lax.scan(lambda c, y: (c + index(), y), m[0], m), [True, False]),
    "nested": (
        lambda x, m: lax.scan(lambda c, y: (lax.scan(lambda d, z: (d + z, d), c, m)[0], y), m[0], m),
        [False, False],
    ),
    "reversed": (lambda x, m: lax.scan(lambda c, y: (c, y), m[0], x, reverse=True), [False, True]),
}


@pytest.mark.parametrize("name", sorted(SCANS))
def test_scan(name: str) -> None:
    fn, expected = SCANS[name]
    assert varies(fn, True, False) == expected


WHILES: dict[str, tuple[Callable[[Any, Any], Any], list[bool]]] = {
    "all mirrored": (lambda x, m: lax.while_loop(lambda c: c[0] < 9, lambda c: c + m, m), [False]),
    "varying body": (
        lambda x, m: lax.while_loop(lambda c: c[0][0] < 9, lambda c: (c[0] + m, c[1] + x), (m, m)),
        [False, True],
    ),
    "varying test": (lambda x, m: lax.while_loop(lambda c: c[0] < x[0], lambda c: c + 1, m), [True]),
    "test on a varying carry": (
        lambda x, m: lax.while_loop(lambda c: c[1][0] < 9, lambda c: (c[0] + 1, c[1] + x), (m, m)),
        [True, True],
    ),
    "index in the test": (lambda x, m: lax.while_loop(lambda c: c[0] < index(), lambda c: c + 1, m), [True]),
    "fori": (lambda x, m: lax.fori_loop(0, 3, lambda i, c: c + m, m), [False]),
    "psum in the body": (lambda x, m: lax.while_loop(lambda c: c[0] < 9, lambda c: c + total(x), m), [False]),
}


@pytest.mark.parametrize("name", sorted(WHILES))
def test_while(name: str) -> None:
    fn, expected = WHILES[name]
    assert varies(fn, True, False) == expected


def solved(product: Callable[[Any], Any], b: Any, way: str) -> Any:
    """The solution of `product(v) = b` by one of JAX's solvers."""
    if way == "custom_root":
        return lax.custom_root(
            lambda v: product(v) - b,
            jnp.zeros_like(b),
            lambda f, v: lax.fori_loop(0, 100, lambda _, w: w - 0.2 * f(w), v),
            lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y),
        )
    if way == "custom_linear_solve":

        def by_hand(product: Any, y: Any) -> Any:
            return lax.fori_loop(0, 100, lambda _, v: v - 0.2 * (product(v) - y), y)

        return lax.custom_linear_solve(product, b, by_hand, by_hand, symmetric=True)
    return getattr(jax.scipy.sparse.linalg, way)(product, b)[0]


SOLVERS = ["cg", "bicgstab", "gmres", "custom_linear_solve", "custom_root"]


@pytest.mark.parametrize("way", SOLVERS)
def test_a_solver_tells_by_the_program_that_it_runs(way: str) -> None:
    def fn(x: Any, m: Any) -> Any:
        reduced, own = lambda v: v + total(x * v), lambda v: v + x * v
        return (
            solved(reduced, m, way),
            solved(own, m, way),
            solved(lambda v: v * m, m, way),
            solved(lambda v: v * (2 + index()), m, way),
            jax.grad(lambda m: solved(lambda v: v * x, m, way).sum())(m),
            jax.jvp(lambda m: solved(own, m, way), (m,), (m,))[1],
        )

    assert varies(fn, True, False) == [False, True, False, True, True, True]
    own_side = lambda x, m: solved(lambda v: v + total(x * v), x, way)  # noqa: E731
    if way in {"cg", "bicgstab", "gmres"}:  # each replica takes as many turns as its own right-hand side needs
        with pytest.raises(Parting):
            varies(own_side, True, False)
    else:
        assert varies(own_side, True, False) == [True]


def test_derivatives_of_a_linear_solve_are_known() -> None:
    def fn(x: Any, m: Any) -> Any:
        gram = total(x)

        def solution(b: Any) -> Any:
            return jax.scipy.sparse.linalg.cg(lambda v: v * (1 + gram), b)[0]

        return jax.grad(lambda b: solution(b).sum())(m), jax.jvp(solution, (m,), (m,))[1], jax.vmap(solution)(m[None])

    assert varies(fn, True, False) == [False] * 3


@pytest.mark.parametrize("way", SOLVERS)
@pytest.mark.parametrize("kind", ["two", "four", "sharded"])
def test_what_a_solver_of_all_rows_finds_updates_parameters(kind: str, way: str) -> None:
    devices = [f"CPU:{i}" for i in range(4)]
    strategy = mirrored(2 if kind == "two" else 4)
    if kind == "sharded":
        strategy = jd.FullyShardedStrategy(devices, min_bytes=0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    with strategy.scope():
        w = jd.Variable(np.zeros(4, np.float32))
        optimizer = jd.Optimizer(optax.sgd(1.0), [w])

    def whole(value: Any) -> Any:
        return here().all_reduce("SUM", value) / 8

    def newton(batch: Any) -> Any:
        x, y = batch
        step = solved(lambda v: whole(x.T @ (x @ v)) + v, whole(x.T @ y), way)
        optimizer.apply_gradients([-step], reduce_op=None)
        return step

    (batch,) = strategy.experimental_distribute_dataset([(x, y)])
    assert isinstance(jd.function(lambda: strategy.run(newton, (batch,)))(), jd.Mirrored)
    np.testing.assert_allclose(w.numpy(), np.linalg.solve(x.T @ x / 8 + np.eye(4), x.T @ y / 8), atol=1e-5)


def test_what_a_solver_of_own_rows_finds_is_refused() -> None:
    strategy = mirrored(2)
    v = variable(strategy, np.ones(1, np.float32))
    with strategy.scope():
        optimizer = jd.Optimizer(optax.sgd(1.0), [v])

    def own(x: Any) -> None:
        found = jax.scipy.sparse.linalg.cg(lambda y: y * x[:1], v.read_value())[0]
        optimizer.apply_gradients([found], reduce_op=None)

    with pytest.raises(jd.errors.VariableError, match="different value on each of 2 replicas"):
        execute("compiled", strategy, own, per_replica(strategy, [jnp.ones(2), jnp.full(2, 3.0)]))


def test_groups_of_replicas_stay_different() -> None:
    assert varies(lambda x: (lax.psum(x, AXIS, axis_index_groups=[[0], [1]]),), True) == [True]


def test_results_of_run_are_typed_by_it() -> None:
    strategy = mirrored(2)
    v = variable(strategy, [1.0, 2.0])
    each = per_replica(strategy, [jnp.ones(2), jnp.zeros(2)])

    def fn(x: Any, m: Any) -> Any:
        reduced = here().all_reduce("SUM", x)
        return {
            "same": (v + 1, reduced * v, m * 2, lax.scan(lambda c, y: (c + y, c), 0.0, m)[0], jnp.zeros(3)),
            "own": (x, ident(), v * fraction(), reduced + x, jax.jit(lambda y: y * ident().astype(float))(m)),
        }

    result = execute("compiled", strategy, fn, each, jnp.ones(2))
    assert {type(leaf) for leaf in result["same"]} == {jd.Mirrored}
    assert {type(leaf) for leaf in result["own"]} == {jd.PerReplica}
    eager = execute("lockstep", strategy, fn, each, jnp.ones(2))
    for one, two in zip(result["same"] + result["own"], eager["same"] + eager["own"], strict=True):
        np.testing.assert_allclose(components(one), components(two), rtol=1e-6)


def test_a_mirrored_result_is_equal_on_all_devices() -> None:
    strategy = mirrored(4)
    result = execute(
        "compiled",
        strategy,
        lambda: jax.lax.fori_loop(0, 3, lambda i, c: c + here().all_reduce("SUM", fraction()), 0.0),
    )
    assert isinstance(result, jd.Mirrored)
    assert components(result) == [18.0] * 4
