from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.core import Tracer, eval_jaxpr

import jaxtribute as jd
from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.execution.eager import Eager
from jaxtribute._src.core.execution.overlay import Overlay
from jaxtribute._src.core.execution.traced import TracedFunction, lift
from jaxtribute._src.core.jaxprs.core import current_trace
from jaxtribute._src.core.values.creating import Making
from jaxtribute.errors import TraceError
from replicas import mirrored, one_device, variable


def traced(body: Any, *, local: bool = False) -> tuple[Any, TracedFunction]:
    """Runs `body(executor)` in a trace; gives the lifted program and the executor."""
    frames: list[TracedFunction] = []

    def program() -> Any:
        now = contexts.current()
        executor = TracedFunction(now)
        executor.local = local
        frames.append(executor)
        with contexts.entered(contexts.Context(now.strategy, now.replica, executor)):
            return body(executor)

    closed = jax.make_jaxpr(program)()
    return lift(closed), frames[0]


def test_reads_become_inputs_in_the_order_of_first_reads() -> None:
    a, b, c = (jd.Variable(jnp.zeros(n)) for n in (1, 2, 3))
    closed, executor = traced(lambda _: (b.read_value() * 2, a + 1.0, b - 1.0, c.read_value()))
    assert executor.inputs == [b, a, c]
    assert [aval.shape for aval in closed.in_avals] == [(2,), (1,), (3,)]
    assert "jd_variable" not in str(closed)


def test_a_read_in_an_inner_trace_is_an_input_of_the_outer_one() -> None:
    v = jd.Variable(2.0)

    def body(_: TracedFunction) -> Any:
        one = jax.jit(lambda x: x * v)(1.0)
        two = jax.lax.scan(lambda c, x: (c + v, x), 0.0, jnp.ones(3))[0]  # pyright: ignore[reportArgumentType]
        three = jax.grad(lambda x: x * v.read_value())(1.0)
        four = jax.vmap(lambda x: x * v)(jnp.ones(2))
        five = jax.lax.cond(v > 0, lambda: v * 2, lambda: v + 1)
        return one, two, three, four, five

    closed, executor = traced(body)
    assert executor.inputs == [v]
    results = eval_jaxpr(closed.jaxpr, closed.consts, jnp.float32(3))
    assert [jnp.asarray(x).tolist() for x in results] == [3.0, 9.0, 3.0, [3.0, 3.0], 6.0]


def test_writes_stay_in_the_frame() -> None:
    v = jd.Variable(2.0)

    def body(executor: TracedFunction) -> Any:
        v.assign(v * 3)
        v.assign_add(1.0)
        assert list(executor.written) == [v]
        return v.read_value()

    closed, _ = traced(body)
    assert v.numpy() == 2.0
    assert eval_jaxpr(closed.jaxpr, closed.consts, jnp.float32(5)) == [16.0]


def test_a_local_frame_sees_one_replicas_piece() -> None:
    on_read = variable(mirrored(2), [1.0, 2.0], synchronization=jd.VariableSynchronization.ON_READ)
    same = variable(mirrored(2), [1.0, 2.0])
    closed, _ = traced(lambda executor: (executor.get(on_read), executor.get(same)), local=True)
    assert [aval.shape for aval in closed.in_avals] == [(1, 2), (2,)]
    closed, _ = traced(lambda executor: (executor.get(on_read), executor.get(same)))
    assert [aval.shape for aval in closed.in_avals] == [(2, 2), (2,)]


def test_variables_made_in_a_trace_are_made_outside_it() -> None:
    def body(executor: TracedFunction) -> Any:
        v = jd.Variable(lambda: jnp.ones(2) * 3)
        assert executor.created == [v]
        assert not isinstance(v.stored, Tracer)
        return v + 1.0

    closed, executor = traced(body)
    assert executor.inputs == executor.created
    assert executor.created[0].numpy().tolist() == [3.0, 3.0]
    assert len(closed.in_avals) == 1


def test_another_strategys_variable_is_refused_at_its_first_read() -> None:
    v = variable(mirrored(2), 1.0, name="w")

    def body(_: TracedFunction) -> Any:
        with one_device(1).scope():
            return v.read_value()

    with pytest.raises(jd.errors.StrategyMixError, match=r"w:0 was created in the scope of <MirroredStrategy.*HINT"):
        traced(body)


def test_a_write_in_an_inner_trace_is_refused() -> None:
    v = jd.Variable(1.0, name="w")
    with pytest.raises(
        TraceError, match=r"w:0 is assigned inside a JAX transformation.*HINT: use jd.function.*run_steps"
    ):
        traced(lambda _: jax.jit(v.assign_add)(1.0))


def test_the_eager_frame_refuses_traced_values_and_copies_others() -> None:
    executor, v, x = Eager(), jd.Variable([1.0]), jnp.ones(1)
    with pytest.raises(TraceError, match="inside a JAX transformation"):
        jax.jit(lambda y: executor.set(v, y))(x)
    executor.set(v, x)
    assert executor.get(v).unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
    assert executor.create(Making(type(v), (2.0,), {})).numpy() == 2.0
    assert not executor.local
    assert not executor.traced


def test_an_overlay_hides_the_values_below() -> None:
    v, w, below = jd.Variable(1.0), jd.Variable(2.0), Eager()
    executor = Overlay(below, {v: (jnp.float32(5), None)})
    assert float(executor.get(v)) == 5.0
    assert float(executor.get(w)) == 2.0
    executor.set(w, jnp.float32(7))
    assert float(executor.get(w)) == 7.0
    assert list(executor.written) == [w]
    assert w.numpy() == 2.0
    assert (executor.local, executor.traced) == (below.local, below.traced)
    made = executor.create(Making(jd.Variable, (3.0,), {}))
    assert made.numpy() == 3.0
    with pytest.raises(TraceError):
        jax.jit(lambda x: executor.set(w, x))(1.0)


def test_current_trace_tells_traces_apart() -> None:
    outside = current_trace()
    inside: list[Any] = []
    jax.jit(lambda: inside.append(current_trace()))()
    assert inside[0] is not outside
    assert current_trace() is outside
