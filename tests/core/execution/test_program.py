from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.execution.capture import Capture, Constant
from jaxtribute._src.core.execution.program_variables import ProgramVariables
from jaxtribute._src.core.execution.traced import TracedFunction
from jaxtribute.errors import StrategyMixError
from replicas import components, fraction, here, mirrored, one_device, variable


def captured(fn: Any, *leaves: Any) -> Any:
    return Capture.of(lambda leaves: fn(*leaves), contexts.current(), leaves)


def test_constants_are_structure() -> None:
    leaves, tree = jax.tree.flatten([Constant("a"), 1])
    assert leaves == [1]
    again = tree.unflatten([2])
    assert again[0].value == "a"
    assert jax.tree.structure([Constant("a"), 1]) == tree != jax.tree.structure([Constant("b"), 1])


def test_a_capture_lists_what_is_read_and_written() -> None:
    a, b, c = jd.Variable(1.0), jd.Variable(2.0), jd.Variable(3.0)

    def fn(x: Any) -> Any:
        b.assign_add(a * x)
        return c + 1.0, "text"

    result = captured(fn, jnp.float32(2))
    assert result.executor.inputs == [b, a, c] or set(result.executor.inputs) == {a, b, c}
    assert list(result.executor.written) == [b]
    assert result.constants
    assert result.tree.num_leaves == 1
    assert len(result.closed.in_avals) == 4
    assert len(result.closed.out_avals) == 2
    assert (a.numpy(), b.numpy()) == (1.0, 2.0)


def test_results_are_copies_of_variables() -> None:
    v = jd.Variable(1.0)
    assert str(captured(lambda: (v.read_value(), v.read_value())).closed).count("copy") == 2
    assert "copy" not in str(captured(lambda: v * 2).closed)


def test_a_frame_has_one_set_of_devices() -> None:
    frames: list[TracedFunction] = []
    jax.make_jaxpr(lambda: frames.append(TracedFunction(contexts.current())))()
    executor = frames[0]
    executor.running(print, mirrored(2).extended.mesh)
    executor.running(print, jd.MirroredStrategy(["CPU:0", "CPU:1"]).extended.mesh)
    assert executor.mesh == mirrored(2).extended.mesh
    with pytest.raises(StrategyMixError, match=r"HINT: make one jd.function for each strategy"):
        executor.running(print, one_device(3).extended.mesh)


def test_only_written_variables_are_donated() -> None:
    v, w = jd.Variable([1.0, 2.0]), jd.Variable([1.0, 2.0])
    step = jd.function(lambda: (v.assign_add(w), None)[1])
    step()
    old, kept = v.stored, w.stored
    step()
    assert old.is_deleted()
    assert not kept.is_deleted()
    assert w.stored is kept


def test_state_stays_where_it_is() -> None:
    for strategy in (mirrored(3), one_device(2)):
        v = variable(strategy, jnp.ones(4))
        on_read = variable(strategy, jnp.ones(4), synchronization=jd.VariableSynchronization.ON_READ)
        before = v.stored.sharding, on_read.stored.sharding

        @jd.function
        def step(strategy: jd.Strategy = strategy, v: Any = v, on_read: Any = on_read) -> None:
            strategy.run(lambda: (on_read.assign_add(jnp.ones(4)), None)[1])
            v.assign_add(jnp.ones(4))

        for _ in range(3):
            step()
        assert (v.stored.sharding, on_read.stored.sharding) == before
        assert components(v)[0] == components(on_read)[0] == [4.0] * 4


def test_cross_replica_code_around_run() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0)

    @jd.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        own = strategy.run(lambda y: y * (fraction() + 1) + v, (x,))
        total = strategy.reduce("SUM", own, axis=None)
        v.assign_add(total)
        again = strategy.run(lambda: here().all_reduce("SUM", v + 0.0))
        return total, again, strategy.experimental_local_results(own)

    total, again, local = step(jnp.float32(1))
    assert float(total) == (1 + 2) + (2 + 2)
    assert components(again) == [18.0, 18.0]
    assert [float(x) for x in local] == [3.0, 4.0]
    assert v.numpy() == 9.0


def test_many_steps_in_a_python_loop_of_one_program() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 0.0, aggregation=jd.VariableAggregation.SUM)

    @jd.function
    def steps() -> None:
        for _ in range(5):
            strategy.run(lambda: (v.assign_add(fraction() + 1), None)[1])

    steps()
    steps()
    assert v.numpy() == 30.0


def test_loops_that_wait_for_nothing() -> None:
    strategy = mirrored(4)
    v = variable(strategy, 0.0)
    step = jd.function(lambda: (strategy.run(lambda: here().all_reduce("SUM", fraction())), v.assign_add(1.0))[0])
    for _ in range(200):
        step()
    assert v.numpy() == 200.0


def test_a_program_can_be_looked_at() -> None:
    strategy = mirrored(2)
    v = variable(strategy, jnp.ones(3))
    step = jd.function(lambda x: (v.assign_add(x), None)[1])
    step(jnp.ones(3))
    programs: Any = step._signatures.programs  # pyright: ignore[reportPrivateUsage]
    (program,) = programs.values()
    text = program.lower([jnp.ones(3)]).as_text()
    assert "jax.buffer_donor" in text or "tf.aliasing_output" in text
    assert v.numpy().tolist() == [2.0, 2.0, 2.0]


def test_a_second_shape_may_be_the_first_to_use_the_replicas() -> None:
    strategy = mirrored(2)
    shared = jd.Variable(1.0)

    @jd.function
    def step(x: Any) -> Any:
        shared.assign_add(1.0)
        if x.ndim:
            return strategy.run(lambda y: y + shared + fraction(), (x,))
        return x + shared

    assert float(step(jnp.float32(1))) == 3.0
    assert components(step(jnp.ones(1))) == [[4.0], [5.0]]
    assert float(step(jnp.float32(1))) == 5.0
    assert shared.numpy() == 4.0


def test_compiling_looks_a_fixed_number_of_times_for_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look may go through all variables: one for each of them would take the square of their number."""
    looks: list[int] = []
    target: Any = ProgramVariables.target

    def counted(variables: ProgramVariables) -> Any:
        looks.append(1)
        return target(variables)

    monkeypatch.setattr(ProgramVariables, "target", counted)
    variables = [jd.Variable(np.float32(0)) for _ in range(30)]

    @jd.function
    def step() -> None:
        for one in variables:
            one.assign_add(1.0)

    step()
    assert [float(one.read_value()) for one in variables] == [1.0] * 30
    assert len(looks) < 10
