"""Variables read in functions that JAX traces once and keeps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.execution.program import Program
from jaxtribute._src.core.traced_reads import traced_reads
from replicas import EXECUTORS, components, execute, here, ident, mirrored, one_device, variable

X = np.float32(1)


def wrapped(how: str, body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that JAX keeps what it has traced of, by the identity of `body`."""

    def carried(c: Any, _: Any) -> tuple[Any, None]:
        return body(c), None

    def counted(_: Any, c: Any) -> Any:
        return body(c)

    custom = jax.custom_vjp(body)
    custom.defvjp(lambda x: (body(x), None), lambda _, g: (g,))
    ways: dict[str, Callable[[Any], Any]] = {
        "scan": lambda x: jax.lax.scan(carried, x, None, length=1)[0],
        "fori_loop": lambda x: jax.lax.fori_loop(0, 1, counted, x),
        "while_loop": lambda x: jax.lax.while_loop(lambda c: c[0], lambda c: (c[0] & False, body(c[1])), (True, x))[1],
        "cond": lambda x: jax.lax.cond(x < 1e9, body, body, x),
        "switch": lambda x: jax.lax.switch(0, [body, body], x),
        "map": lambda x: jax.lax.map(body, x[None])[0],
        "vmap": lambda x: jax.vmap(body)(x[None])[0],
        "checkpoint": jax.checkpoint(body),
        "jit": jax.jit(body),
        "custom_vjp": custom,
        "jit of grad": jax.jit(lambda x: jax.grad(lambda y: y * body(x))(x)),
    }
    return ways[how]


WAYS = (
    "scan",
    "fori_loop",
    "while_loop",
    "cond",
    "switch",
    "map",
    "vmap",
    "checkpoint",
    "jit",
    "custom_vjp",
    "jit of grad",
)
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "default": jd.get_strategy,
    "one device": lambda: one_device(1),
    "mirrored": lambda: mirrored(2),
    "fully sharded": lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"]),
}
each_strategy = pytest.mark.parametrize("name", STRATEGIES)


@pytest.mark.parametrize("how", WAYS)
def test_a_read_outside_every_scope_follows_writes(how: str) -> None:
    v = jd.Variable(2.0)
    call = wrapped(how, lambda x: x * v.read_value())
    assert float(call(X)) == 2
    v.assign(5.0)
    assert float(call(X)) == 5
    step = jd.function(lambda: v.assign_add(1.0))
    step()
    assert float(call(X)) == 6


@pytest.mark.parametrize("how", WAYS)
def test_a_read_in_one_compiled_step_follows_its_writes(how: str) -> None:
    v = jd.Variable(2.0)
    call = wrapped(how, lambda x: x * v.read_value())

    @jd.function
    def step(x: Any) -> Any:
        first = call(x)
        v.assign(10.0)
        return first, call(x)

    assert [float(y) for y in step(X)] == [2, 10]
    assert float(call(X)) == 10
    assert [float(y) for y in step(X)] == [10, 10]


@pytest.mark.quick_cases(5)
@each_strategy
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("how", ["scan", "checkpoint", "jit"])
def test_replicas_read_what_is_written(how: str, executor: str, name: str) -> None:
    strategy = STRATEGIES[name]()
    v = variable(strategy, np.full(4, 2, np.float32), aggregation=jd.VariableAggregation.MEAN)
    call = wrapped(how, lambda x: x * v.read_value())

    def replica(x: Any) -> Any:
        first = call(x)
        v.assign(first + np.float32(1))
        return call(x)

    for start in (2, 7):
        v.assign(np.full(4, start, np.float32))
        result = execute(executor, strategy, replica, jnp.ones(4))
        assert all(part == [start + 1.0] * 4 for part in components(result))
        with strategy.scope():
            np.testing.assert_array_equal(call(jnp.ones(4)), np.full(4, start + 1, np.float32))


@pytest.mark.parametrize("how", ["scan", "checkpoint", "jit", "cond"])
def test_steps_share_a_block(how: str) -> None:
    v = jd.Variable(2.0)
    block = wrapped(how, lambda x: x * v.read_value())
    both = jd.value_and_grad(lambda: block(X) * block(X), v)

    @jd.function
    def train() -> Any:
        loss, gradient = both()
        v.assign_sub(np.float32(0.25) * gradient)
        return loss

    evaluate = jd.function(lambda: block(X))
    assert [float(f()) for f in (train, evaluate, train, evaluate)] == [4, 1, 1, 0.5]
    assert float(block(X)) == 0.5


@pytest.mark.parametrize("how", ["scan", "checkpoint", "jit", "cond"])
def test_an_eager_loop_of_gradients(how: str) -> None:
    v = jd.Variable(1.0)
    block = wrapped(how, lambda x: x * v.read_value())
    for _ in range(3):
        now = float(v)
        value, gradient = jd.value_and_grad(lambda: block(X) * block(X), v)()
        assert (float(value), float(gradient)) == (now * now, 2 * now)
        v.assign_add(1.0)


def test_gradients_in_replicas_of_a_block_shared_with_other_code() -> None:
    strategy = mirrored(2)
    w = variable(strategy, 1.0)
    block = jax.checkpoint(lambda x: x * w.read_value())

    def replica(x: Any) -> Any:
        value, gradient = jd.value_and_grad(lambda: block(x) ** 2, w)()
        return value, here().all_reduce("SUM", gradient)

    for executor in ("lockstep", "compiled", "lockstep", "compiled"):
        now = float(w)
        value, gradient = execute(executor, strategy, replica, np.float32(3))
        assert components(value) == [9 * now * now] * len(components(value))
        assert components(gradient)[0] == 2 * 2 * 9 * now
        assert float(block(2.0)) == 2 * now
        w.assign_add(1.0)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_replica_in_force_is_no_constant(executor: str) -> None:
    strategy = mirrored(2)

    def body(c: Any, _: Any) -> Any:
        return c + jnp.asarray(ident(), jnp.int32), None

    def replica() -> Any:
        return jax.lax.scan(body, jnp.int32(0), None, length=2)[0]

    for _ in range(2):
        assert components(execute(executor, strategy, replica)) == [0, 2]


def test_the_strategy_in_force_is_no_constant() -> None:
    count = jax.jit(lambda x: x * np.float32(jd.get_strategy().num_replicas_in_sync))
    for strategy in (mirrored(2), mirrored(3), mirrored(2)):
        with strategy.scope():
            assert float(count(X)) == strategy.num_replicas_in_sync
        assert float(count(X)) == 1


def test_nothing_is_traced_again_where_nothing_read_was_written() -> None:
    v, other = jd.Variable(2.0), jd.Variable(0.0)
    traces: list[None] = []

    def body(x: Any) -> Any:
        traces.append(None)
        return x * v.read_value()

    call = jax.jit(body)
    call(X)
    generation = traced_reads.generation
    for _ in range(3):
        call(X)
        other.assign_add(1.0)
        jd.value_and_grad(lambda: other * other, other)()
        jax.vmap(lambda x: x * other.read_value())(jnp.ones(2))
        other.assign_add(1.0)
    assert len(traces) == 1
    assert traced_reads.generation == generation


def test_compiled_steps_stay_compiled() -> None:
    v = jd.Variable(2.0)
    call = jax.jit(lambda x: x * v.read_value())
    step = jd.function(lambda x: v.assign_add(x).read_value())
    step(X)
    for _ in range(3):
        before = traced_reads.generation
        assert float(call(X)) == float(v)
        step(X)
        assert traced_reads.generation > before
    assert step.experimental_get_tracing_count() == 1
    (program,) = step._signatures.programs.values()  # pyright: ignore[reportPrivateUsage]
    assert isinstance(program, Program)
    assert program.jitted._cache_size() == 1


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("uncompiled", [True, False])
def test_many_new_traces_are_explained_once(
    uncompiled: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced_reads, "uncompiled", uncompiled)
    v = jd.Variable(2.0, name="temperature")
    call = jax.jit(lambda x: x * v.read_value())
    monkeypatch.setattr(traced_reads, "_told", False)

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "traced eager code anew" in record.getMessage()]

    for _ in range(40):  # one model after the other, each of which is made once
        w = jd.Variable(2.0)
        jax.jit(lambda x, w=w: x * w.read_value())(X)
        w.assign_add(1.0)
    assert not told()
    for _ in range(20):
        call(X)
        v.assign_add(1.0)
    assert len(told()) == 1
    assert "temperature" in told()[0]
    assert ("that runs uncompiled" in told()[0]) == uncompiled
    assert ("call the step as a jd.function" in told()[0]) != uncompiled


@pytest.mark.quick_cases(3)
@each_strategy
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_gradient_around_run_is_that_of_all_replicas(how: str, name: str) -> None:
    strategy = STRATEGIES[name]()
    replicas = strategy.num_replicas_in_sync
    v = variable(strategy, np.full(4, 3, np.float32))
    count = variable(strategy, 0.0, aggregation=jd.VariableAggregation.SUM)

    def replica(x: Any) -> Any:
        count.assign_add(x[0])
        shared = here().all_reduce("SUM", (v * v).sum())
        return (v * v * x).sum() + shared

    def loss(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)

    step: Any = jd.value_and_grad(loss, v)
    call: Any = jd.function(step) if how == "compiled" else step
    value, gradient = call(jnp.full(4, 2.0))
    factor = 2 * replicas + replicas * replicas
    assert float(value) == 36 * factor
    np.testing.assert_array_equal(gradient, np.full(4, 6 * factor, np.float32))
    assert float(count) == 2 * replicas
    value, gradient = step(jnp.full(4, 2.0))
    np.testing.assert_array_equal(gradient, np.full(4, 6 * factor, np.float32))


@each_strategy
def test_jaxs_own_gradient_around_run(name: str) -> None:
    strategy = STRATEGIES[name]()
    v = variable(strategy, 3.0)

    def loss(x: Any) -> Any:
        captured = strategy.run(lambda: x * x * v)
        given = strategy.run(lambda x: x * x * v, (x,))
        return strategy.reduce("SUM", captured, axis=None) + strategy.reduce("SUM", given, axis=None)

    assert float(jax.grad(loss)(np.float32(2))) == 2 * 4 * 3 * strategy.num_replicas_in_sync


def test_a_gradient_around_what_cannot_be_one_program_teaches() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 3.0)
    parts = [jnp.ones(2), jnp.ones(3)]
    x = strategy.experimental_distribute_values_from_function(lambda c: parts[c.replica_id_in_sync_group])

    def replica(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            return c + here().all_reduce("SUM", (v * x).sum()), None

        return jax.lax.scan(body, jnp.float32(0), None, length=2)[0]

    with pytest.raises(jd.errors.TraceError, match=r"differentiated[\s\S]*HINT"):
        jd.grad(lambda: strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None), v)()
