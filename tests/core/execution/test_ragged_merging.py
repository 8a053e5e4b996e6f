"""Programs of two shapes that look alike and are not: what differs must never be computed once for both."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.execution.capture import Capture
from jaxtribute._src.core.execution.cutting import inlined, makes_collectives
from jaxtribute._src.core.execution.eager import NotSplittable
from jaxtribute._src.core.execution.ragged import ReplicaClass, prepare
from ragged import agree, deal, rows
from replicas import execute, here, ident, mirrored, variable

PAIR = mirrored(2)
W = jnp.asarray(rows(3, seed=5))
CASES: dict[str, Callable[[Any], Any]] = {}


def case(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES[fn.__name__] = fn
    return fn


def size(x: Any) -> float:
    """What the traces differ in: 2.0 on the first replica, 1.0 on the second."""
    return float(x.shape[0])


@case
def arrays_around_a_jit(x: Any) -> Any:
    constant = np.arange(3, dtype=np.float32) * np.float32(size(x))
    return jax.jit(lambda w: w + constant)(W)


@case
def long_arrays_around_a_scan(x: Any) -> Any:
    table = np.zeros(3000, np.float32)
    table[1500] = size(x)
    return jax.lax.scan(lambda c, _: (c + jnp.asarray(table).sum(), None), W, None, length=2)[0]


@case
def numbers_in_a_branch(x: Any) -> Any:
    n = size(x)
    return jax.lax.cond(W[0] > -100, lambda: W * n, lambda: W)


@case
def numbers_in_a_loop(x: Any) -> Any:
    n = x.shape[0]
    return jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, W))[1]


@case
def callbacks(x: Any) -> Any:
    n = np.float32(size(x))
    return jax.jit(lambda w: jax.pure_callback(lambda v: np.asarray(v) * n, W, w))(W)


@case
def random_keys(x: Any) -> Any:
    own, common = jax.random.key(x.shape[0]), jax.random.key(7)
    keys = jax.random.split(common, x.shape[0])
    total = here().all_reduce("SUM", x.sum())  # the keys are carried over it
    return jax.random.normal(own, (2,)) * total, jax.random.normal(keys[-1], (2,)), jax.random.normal(common, (2,))


@case
def raw_keys(x: Any) -> Any:
    key = jax.random.PRNGKey(x.shape[0])
    total = here().all_reduce("SUM", x.sum())
    return jax.random.uniform(key, (2,)) + total


@case
def functions_of_a_shape(x: Any) -> Any:
    def activation(w: Any) -> Any:
        return jax.nn.relu(w * size(x))

    return jax.vmap(activation)(W), jax.checkpoint(activation)(W), jax.grad(lambda w: activation(w).sum())(W)


@case
def rules(x: Any) -> Any:
    n = size(x)

    @jax.custom_vjp
    def same(w: Any) -> Any:
        return w * 1

    same.defvjp(lambda w: (w * 1, None), lambda _, ct: (ct * n,))
    return same(W), jax.grad(lambda w: same(w).sum())(W)


@case
def literals(x: Any) -> Any:
    return (
        jnp.float32(size(x)),
        jnp.float32(1),
        jnp.zeros(2),
        jnp.full((2,), size(x)),
        here().all_reduce("SUM", size(x) * W),
    )


@case
def equal_arithmetic_on_own_data(x: Any) -> Any:
    y = x[:1]  # the same shape in both
    first = here().all_reduce("SUM", y * 2)
    second = here().all_reduce("SUM", (y * 2 + first) * jnp.float32(1))
    return first, second, y * 2, ident()


@case
def carried_over_several_collectives(x: Any) -> Any:
    y = x * 2
    a = here().all_reduce("SUM", x.sum())
    b = here().all_reduce("SUM", x.sum() * a)
    c = here().all_reduce("MEAN", x.mean() * b)
    return y * c + a, x.sum() + a


@case
def debugging(x: Any) -> Any:
    jax.debug.callback(lambda n: seen.append(float(n)), x.sum())
    return here().all_reduce("SUM", x.sum()) * 0


seen: list[float] = []


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", CASES)
def test_executors_agree(name: str) -> None:
    x = rows(3, 2)
    seen.clear()
    agree(PAIR, CASES[name], deal(PAIR, x, [2, 1]), atol=1e-5)
    if name == "debugging":
        jax.effects_barrier()
        np.testing.assert_allclose(sorted(seen), sorted([x[:2].sum(), x[2:].sum()] * 2), rtol=1e-6)


def test_values_around_the_replica_function() -> None:
    """Captured arrays, those of the outer program too, are constants that all shapes share."""
    split = deal(PAIR, rows(3, 2), [2, 1])
    mirrored_value = PAIR.place(np.float32(10))

    @jd.function
    def step(split: Any, scale: Any) -> Any:
        doubled = scale * 2

        def fn(x: Any) -> Any:
            own = jnp.float32(x.shape[0]) * doubled
            return own, W.sum() * doubled, mirrored_value + doubled, here().all_reduce("SUM", own)

        return PAIR.run(fn, (split,))

    own, shared, placed, total = step(split, jnp.float32(3))
    assert [float(one) for one in own.values] == [12, 6]
    assert isinstance(shared, jd.Mirrored)
    np.testing.assert_allclose(shared.data, W.sum() * 6, rtol=1e-6)
    assert float(placed) == 16
    assert float(total) == 18


def test_gradients_of_the_whole_step_use_each_shapes_rules() -> None:
    split = deal(PAIR, rows(3, 2), [2, 1])
    v = variable(PAIR, np.float32(1))

    def fn(x: Any) -> Any:
        n = size(x)
        scaled = jax.custom_jvp(lambda w: w * 1)

        @scaled.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            return primals[0] * 1, tangents[0] * n

        return scaled(v.read_value()) + jax.nn.relu(v.read_value()), x.sum()

    @jd.function
    def step(split: Any) -> Any:
        return jd.grad(lambda: PAIR.reduce("SUM", PAIR.run(fn, (split,))[0], axis=None), v)()

    assert float(step(split)) == 2 + 1 + 2


def text_of(fn: Callable[[Any], Any], *counts: int) -> str:
    """The program of two replicas that get rows by `counts`."""
    split = deal(PAIR, rows(sum(counts), 2), counts)
    return str(Capture.of(lambda leaves: PAIR.run(fn, leaves), contexts.current(), [split]).closed)


def test_what_all_shapes_share_is_computed_once() -> None:
    def fn(x: Any) -> Any:
        return jnp.cos(x.sum()), jnp.sin(W) * here().all_reduce("SUM", x.sum())

    text = text_of(fn, 2, 1)
    assert text.count(" sin ") == 1
    assert text.count(" cos ") == 2
    assert text.count(" psum") == 1


def test_replicas_of_one_shape_need_no_switch() -> None:
    assert " cond[" not in text_of(lambda x: x.sum(), 2, 2)
    assert " cond[" in text_of(lambda x: x.sum(), 2, 1)


def test_collectives_of_jax() -> None:
    x = rows(3, 2)

    def fn(x: Any) -> Any:
        y = x[:1]
        return jax.lax.pmax(y, "replica"), jax.lax.psum((y, x.sum()), "replica"), jax.lax.all_gather(y, "replica")

    most, (total, everything), gathered = execute("compiled", PAIR, fn, deal(PAIR, x, [2, 1]))
    np.testing.assert_array_equal(most.data, np.maximum(x[:1], x[2:]))
    np.testing.assert_allclose(total.data, x[:1] + x[2:], rtol=1e-6)
    np.testing.assert_allclose(everything.data, x.sum(), rtol=1e-5)
    np.testing.assert_array_equal(gathered.data[:, 0], x[[0, 2]])


def programs(*fns: Callable[..., Any]) -> list[ReplicaClass]:
    """Each function of a vector as the program of one class; their lengths are 2, 3, ..."""
    made: list[ReplicaClass] = []
    for place, fn in enumerate(fns):
        aval = jax.ShapeDtypeStruct((place + 2,), jnp.float32)
        closed = jax.make_jaxpr(fn, axis_env=[("replica", 2)])(aval)
        made.append(ReplicaClass(inlined(closed, mirrored(2).extended.mesh), [0], {0: aval.shape}))
    return made


def psum(x: Any) -> Any:
    return jax.lax.psum(x, "replica")


def test_different_collectives_are_refused() -> None:
    for other in (
        lambda x: x.sum(),
        lambda x: psum(psum(x.sum())),
        lambda x: jax.lax.pmax(x.sum(), "replica"),
        lambda x: psum(x.sum(keepdims=True)).sum(),
        lambda x: psum(x.sum().astype(jnp.int32)).astype(jnp.float32),
        lambda x: jax.lax.all_gather(x, "replica").sum(),
    ):
        with pytest.raises(NotSplittable, match="different collectives"):
            prepare(programs(lambda x: psum(x.sum()), other))


def test_classes_meet_in_loops_that_go_round_alike() -> None:
    """As often as a number says that they have in common, with operands of the same shapes."""

    def turned(times: Callable[[Any], Any], start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jax.lax.fori_loop(0, times(x), lambda _, c: psum(c), start(x))

    for times in (lambda x: 2, lambda x: psum(jnp.int32(x.sum()))):
        classes = programs(*[turned(times, jnp.sum)] * 2)
        common = prepare(classes)
        assert all(one.number(one.jaxpr.outvars[0]) in common for one in classes)
    for times, start, why in (
        (lambda x: 2, lambda x: x, "inside scan"),
        (lambda x: jnp.int32(x.sum()), jnp.sum, "inside while, on a condition"),
    ):
        with pytest.raises(NotSplittable, match=f"a collective {why}"):
            prepare(programs(*[turned(times, start)] * 2))


def test_collectives_in_calls_are_written_out() -> None:
    (one,) = programs(jax.jit(jax.checkpoint(psum)))
    prepare([one])
    assert len(one.collectives) == 1
    assert len(one.segments) == 2
    assert {eqn.primitive.name for eqn in one.jaxpr.eqns} <= {"psum"}
    assert makes_collectives(one.collectives[0])


def test_numbers_of_shared_and_own_values() -> None:
    classes = programs(
        lambda x: (x.sum(), psum(x.sum()), jnp.float32(1)), lambda x: (x.sum(), psum(x.sum()), jnp.float32(1))
    )
    common = prepare(classes)
    (own, total, literal), (other, total2, literal2) = ([one.number(a) for a in one.jaxpr.outvars] for one in classes)
    assert own != other
    assert total == total2
    assert literal == literal2
    assert {total, literal} <= common
    assert own not in common
