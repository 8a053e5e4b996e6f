"""Steps like the one before, which run with next to no Python: all that may have changed between two of them."""

import gc
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.execution.compiled_step import CompiledStep
from jaxtribute._src.core.execution.eager import NotSplittable
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute._src.core.values.stored import Group, Place, arrays_of, release
from replicas import mirrored, one_device, variable


@pytest.fixture(name="repeated")
def count_repeated(monkeypatch: pytest.MonkeyPatch) -> list[CompiledStep]:
    """The programs of the steps that ran so, in order."""
    seen: list[CompiledStep] = []
    again = CompiledStep.again

    def counted(self: CompiledStep, args: Any, kwargs: Any) -> Any:
        result = again(self, args, kwargs)
        seen.append(self)
        return result

    monkeypatch.setattr(CompiledStep, "again", counted)
    return seen


def held(variable: jd.Variable) -> Any:
    """The contents of a variable's slot."""
    return variable._data  # pyright: ignore[reportPrivateUsage]


def test_variables_that_lie_on_several_devices_stop_no_other_steps(repeated: list[CompiledStep]) -> None:
    strategy = mirrored(2)
    spread, apart, own = jd.Variable(1.0), jd.Variable(1.0), variable(strategy, 1.0)
    jd.function(lambda: strategy.run(lambda: own + spread))()
    assert len(spread.stored.devices()) == 2
    step = jd.function(lambda x: (apart.assign_add(x), apart + 0.0)[1])
    assert [float(step(jnp.float32(1))) for _ in range(3)] == [2.0, 3.0, 4.0]
    assert len(repeated) == 2


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_second_step_of_arrays_is_repeated(replicas: int, repeated: list[CompiledStep]) -> None:
    strategy = one_device(0) if replicas == 1 else mirrored(replicas)
    v, w = variable(strategy, 1.0), variable(strategy, 10.0)

    @jd.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        w.assign_sub(x)
        return v + w

    x = jnp.float32(2)
    assert [float(step(x)) for _ in range(4)] == [11.0] * 4
    assert len(repeated) == 3
    assert (float(v.numpy()), float(w.numpy())) == (9.0, 2.0)


def test_what_is_assigned_between_two_steps_counts(repeated: list[CompiledStep]) -> None:
    v, w = jd.Variable(1.0), jd.Variable(5.0)

    @jd.function
    def step(x: Any) -> Any:
        v.assign_add(x * w)
        w.assign_add(0.0)
        return v.read_value()

    x = jnp.float32(1)
    step(x)
    assert float(step(x)) == 11.0
    w.assign(1.0)
    assert float(step(x)) == 12.0
    v.assign(0.0)
    kept = v.read_value()
    assert float(step(x)) == 1.0
    assert float(kept) == 0.0  # the step has not taken the user's array
    assert len(repeated) == 3


def test_programs_with_variables_in_common_take_turns(repeated: list[CompiledStep]) -> None:
    a, b, c = jd.Variable(0.0), jd.Variable(0.0), jd.Variable(0.0)

    @jd.function
    def first(x: Any) -> None:
        a.assign_add(x)
        b.assign_add(10 * x)

    @jd.function
    def second(x: Any) -> None:
        b.assign_add(100 * x)
        c.assign_add(a)

    @jd.function
    def look(x: Any) -> Any:
        return a + b + c + x

    one, none = jnp.float32(1), jnp.float32(0)
    expected = np.zeros(3)
    for turn in range(5):
        first(one)
        expected += (1, 10, 0)
        if turn % 2:
            second(one)
            expected += (0, 100, expected[0])
        assert float(look(none)) == expected.sum()
        a.assign(a + 0.5)
        expected[0] += 0.5
    assert [float(v.numpy()) for v in (a, b, c)] == list(expected)
    assert len(repeated) > 6


def test_an_eager_step_takes_variables_out_of_a_group() -> None:
    strategy = mirrored(2)
    v, w = variable(strategy, 1.0, aggregation=jd.VariableAggregation.MEAN), variable(strategy, 2.0)

    @jd.function
    def step(x: Any) -> None:
        v.assign_add(x)
        w.assign_add(x)

    x = jnp.float32(1)
    step(x)
    step(x)
    strategy.run(lambda: v.assign(7.0))
    assert type(held(v)) is not Place
    assert type(held(w)) is Place
    step(x)
    assert (float(v.numpy()), float(w.numpy())) == (8.0, 5.0)
    assert type(held(v)) is Place


def test_a_new_shape_dtype_or_structure_finds_its_own_program(repeated: list[CompiledStep]) -> None:
    total = jd.Variable(0.0)

    @jd.function
    def step(x: Any, *rest: Any, **named: Any) -> Any:
        total.assign_add(jnp.float32(x.sum()))
        return len(rest), sorted(named), x.dtype.name

    for _ in range(2):
        assert step(jnp.ones(3)) == (0, [], "float32")
        assert step(jnp.ones(4)) == (0, [], "float32")
        assert step(jnp.ones(3, jnp.int32)) == (0, [], "int32")
        assert step(jnp.ones(3), jnp.ones(1)) == (1, [], "float32")
        assert step(jnp.ones(3), y=jnp.ones(1)) == (0, ["y"], "float32")
        assert step(jnp.ones(3), {"y": jnp.ones(1)}) == (1, [], "float32")
    assert total.numpy() == 38.0


def test_shapes_in_turn_are_repeated(repeated: list[CompiledStep]) -> None:
    total = jd.Variable(0.0)

    @jd.function
    def step(x: Any) -> Any:
        total.assign_add(x.sum())
        return x.shape[0]

    for size in (3, 4, 3, 4, 5, 3, 4, 5):
        assert step(jnp.ones(size)) == size
    assert len(repeated) == 7
    (program,) = set(repeated)
    assert program.jitted._cache_size() == 3  # none of them through JAX's Python
    assert step.experimental_get_tracing_count() == 3


def test_a_new_shape_may_need_more_variables(repeated: list[CompiledStep]) -> None:
    v, w = jd.Variable(0.0), jd.Variable(0.0)

    @jd.function
    def step(x: Any) -> None:
        (v if x.shape == (1,) else w).assign_add(x.sum())

    for size in (1, 1, 2, 2, 1, 2):
        step(jnp.ones(size))
    assert (float(v.numpy()), float(w.numpy())) == (3.0, 6.0)
    assert repeated
    assert step.experimental_get_tracing_count() == 3  # the program of both variables has no trace of the first shape


def test_a_new_shape_that_cannot_be_compiled_runs_uncompiled() -> None:
    v = jd.Variable(0.0)

    @jd.function
    def step(x: Any) -> Any:
        if x.shape == (4,) and isinstance(x, Tracer):
            raise NotSplittable("replicas of four")
        v.assign_add(x.sum())
        return v.read_value()

    assert [float(step(jnp.ones(size))) for size in (3, 3, 3, 4, 3)] == [3.0, 6.0, 9.0, 13.0, 16.0]


def test_an_error_in_a_new_trace_is_the_users(repeated: list[CompiledStep]) -> None:
    v = jd.Variable(0.0)
    traced: list[int] = []

    @jd.function
    def step(x: Any) -> Any:
        traced.append(x.shape[0])
        if x.shape == (2,):
            raise ValueError("no two")
        return v.assign_add(x.sum()) + 0.0

    step(jnp.ones(1))
    step(jnp.ones(1))
    with pytest.raises(ValueError, match="no two"):
        step(jnp.ones(2))
    assert traced == [1, 2]
    assert float(step(jnp.ones(1))) == 3.0
    assert float(step(jnp.ones(3))) == 6.0
    assert float(step(jnp.ones(3))) == 9.0
    assert len(repeated) == 4


def test_arrays_of_other_devices_are_moved() -> None:
    strategy = one_device(0)
    v = variable(strategy, 0.0)

    @jd.function
    def step(x: Any) -> Any:
        return v.assign_add(x) + 0.0

    near, far = (jax.device_put(jnp.float32(1), device) for device in jax.devices()[:2])
    assert [float(step(x)) for x in (near, near, far, far, near, near)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_arguments_by_name_are_not_taken_for_those_by_place(repeated: list[CompiledStep]) -> None:
    @jd.function
    def step(*args: Any, **kwargs: Any) -> Any:
        return [(type(arg).__name__, arg) for arg in args if isinstance(arg, dict)], sorted(kwargs)

    x = jnp.float32(1)
    for _ in range(2):
        assert step(x, y=x)[1] == ["y"]
        assert step((x,), {"y": x})[1] == []
        assert step({"": (x,), "y": x})[1] == []
    step(x, y=x)
    step(x, y=x)
    assert repeated


def test_memory_of_the_callers_is_copied_all_the_same(repeated: list[CompiledStep]) -> None:
    v = jd.Variable(np.zeros(64, np.float32))

    @jd.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        return x * 1

    host = np.ones(64, np.float32)
    results = [step(jnp.ones(64)), step(jnp.ones(64)), step(host)]
    host[:] = 5
    assert [float(result[0]) for result in results] == [1.0, 1.0, 1.0]
    assert len(repeated) == 1
    assert float(step(3 * jnp.ones(64))[0]) == 3.0


def test_numbers_stay_constants() -> None:
    @jd.function
    def step(x: Any) -> Any:
        return type(x).__name__ == "int", x + 1

    assert [bool(step(x)[0]) for x in (jnp.int32(1), jnp.int32(1), 1, jnp.int32(1))] == [False, False, True, False]


def test_steps_that_are_never_alike_are_not_tried_for_ever(repeated: list[CompiledStep], monkeypatch: Any) -> None:
    monkeypatch.setattr("jaxtribute._src.core.execution.signatures._PATIENCE", 2)
    tried: list[int] = []
    counted = CompiledStep.again

    def again(self: CompiledStep, args: Any, kwargs: Any) -> Any:
        tried.append(1)
        return counted(self, args, kwargs)

    monkeypatch.setattr(CompiledStep, "again", again)

    @jd.function
    def step(x: Any) -> Any:
        return x[0] + 1

    for size in range(1, 6):
        step((jnp.ones(1),) * size)
    assert len(tried) == 2
    assert not repeated


def test_structures_in_turn_are_repeated(repeated: list[CompiledStep]) -> None:
    total = jd.Variable(0.0)

    @jd.function
    def step(*args: Any, **named: Any) -> Any:
        total.assign_add(sum(jax.tree.leaves((args, named))))
        return len(args), sorted(named)

    one = jnp.float32(1)
    for _ in range(6):
        assert step(one) == (1, [])
        assert step(one, one) == (2, [])
        assert step(one, named=one) == (1, ["named"])
    assert total.numpy() == 30.0
    assert len(set(repeated)) == 3
    assert [len(repeated), step.experimental_get_tracing_count()] == [18 - 5, 3]


def test_structures_in_turn_belong_to_their_strategy(repeated: list[CompiledStep]) -> None:
    strategies = [one_device(0), one_device(1)]
    scales: dict[Any, Any] = {one: variable(one, float(place)) for place, one in enumerate(strategies)}

    @jd.function
    def scaled(*args: Any) -> Any:
        return len(args) * args[0] * scales[jd.get_strategy()]

    one = jnp.float32(1)
    for place, strategy in [*enumerate(strategies)] * 2:
        with strategy.scope():
            for _ in range(4):
                assert [float(scaled(one)), float(scaled(one, one))] == [place, 2 * place]
    assert len(repeated) > 16


def test_arrays_of_the_host_and_of_devices_share_a_program(repeated: list[CompiledStep]) -> None:
    v = variable(one_device(0), 0.0)
    step = jd.function(lambda x, *, y: v.assign_add(x + y) + 0.0)
    one = jnp.float32(1)
    away = jax.device_put(one, jax.devices()[1])
    given = [(one, one), (np.float32(1), one), (away, away), (one, np.ones((), np.float32)), (one, one), (one, one)]
    assert [float(step(x, y=y)) for x, y in given] == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    assert step.experimental_get_tracing_count() == 1
    assert len(repeated) == 1


def test_a_kept_function_that_reads_a_variable_stops_no_steps(repeated: list[CompiledStep]) -> None:
    v, w = jd.Variable(1.0), jd.Variable(10.0)
    kept = jax.jit(lambda x: x * v.read_value())
    x = jnp.float32(1)
    step = jd.function(lambda x: v.assign_add(x) + 0.0)
    other = jd.function(lambda x: w.assign_add(x) + 0.0)
    for turn in range(1, 4):
        assert float(kept(x)) == turn
        assert [float(step(x)), float(other(x))] == [turn + 1, turn + 10]
    assert traced_reads.active
    assert len(repeated) == 4
    assert [one.experimental_get_tracing_count() for one in (step, other)] == [1, 1]
    assert {program.jitted._cache_size() for program in repeated} == {1}


def test_a_scope_and_the_default_strategy_do_not_share_a_step(repeated: list[CompiledStep]) -> None:
    strategy = mirrored(2)

    @jd.function
    def count(x: Any) -> Any:
        return x * jd.get_strategy().num_replicas_in_sync

    x = jnp.float32(1)
    assert [float(count(x)) for _ in range(3)] == [1.0] * 3
    with strategy.scope():
        assert [float(count(x)) for _ in range(3)] == [2.0] * 3
    assert float(count(x)) == 1.0
    in_thread: list[float] = []
    with strategy.scope():
        count(x)
        thread = threading.Thread(target=lambda: in_thread.append(float(count(x))))
        thread.start()
        thread.join()
    assert in_thread == [1.0]
    assert len(repeated) >= 4


def test_results_that_jax_cannot_make_are_made(repeated: list[CompiledStep]) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0)

    @jd.function
    def step(x: Any) -> Any:
        v.assign_add(1.0)
        return strategy.run(lambda x: x + v, (x,)), "text"

    for turn in range(3):
        value, text = step(jnp.float32(0))
        assert text == "text"
        assert [float(part) for part in strategy.experimental_local_results(value)] == [turn + 2.0] * 2
    assert len(repeated) == 2


def test_an_array_that_the_user_has_deleted_is_told_of() -> None:
    @jd.function
    def step(x: Any) -> Any:
        return x + 1

    x, y = jnp.ones(3), jnp.ones(3)
    step(x)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        step(x)
    assert float(step(y)[0]) == 2.0


def test_a_variable_that_dies_gives_its_memory_back() -> None:
    v, w = jd.Variable(np.zeros(8, np.float32)), jd.Variable(np.zeros(8, np.float32))

    def make(w: jd.Variable) -> Any:
        @jd.function
        def step(x: Any) -> None:
            v.assign_add(x)
            w.assign_add(x)

        return step

    step = make(w)
    step(jnp.ones(8))
    step(jnp.ones(8))
    array = weakref.ref(w.stored)
    del step, w
    gc.collect()
    assert array() is None
    assert float(v.numpy()[0]) == 2.0


def test_arguments_are_not_kept() -> None:
    v = jd.Variable(0.0)

    @jd.function
    def step(x: Any) -> None:
        v.assign_add(x.sum())

    def one() -> Any:
        batch = jnp.ones(8)
        step(batch)
        return weakref.ref(batch)

    left = [one() for _ in range(3)]
    gc.collect()
    assert [ref() for ref in left] == [None] * 3


def test_without_jit_it_runs_as_python() -> None:
    v = jd.Variable(0.0)

    @jd.function
    def step(x: Any) -> Any:
        v.assign_add(x)
        return v.read_value()

    x = jnp.float32(1)
    step(x)
    step(x)
    with jax.disable_jit():
        assert float(step(x)) == 3.0
    assert float(step(x)) == 4.0


def test_threads_that_step_the_same_variables_add_up(repeated: list[CompiledStep]) -> None:
    v, w = jd.Variable(0.0), jd.Variable(0.0)

    @jd.function
    def both(x: Any) -> None:
        v.assign_add(x)
        w.assign_add(x)

    @jd.function
    def one(x: Any) -> None:
        w.assign_add(x)

    x = jnp.float32(1)
    both(x)
    one(x)

    def work() -> None:
        for _ in range(50):
            both(x)
            one(x)
            assert float(v.numpy()) >= 0.0

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (float(v.numpy()), float(w.numpy())) == (151.0, 302.0)
    assert repeated


def test_a_group_holds_what_its_variables_do() -> None:
    variables = [jd.Variable(float(i)) for i in range(3)]
    group, other = Group(), Group()
    arrays = arrays_of(variables)
    group.gather(variables)
    assert group.whole
    assert group.arrays == arrays
    assert [v.stored for v in variables] == arrays
    other.gather(variables[1:])
    assert not group.whole
    assert [array is None for array in group.arrays] == [False, True, True]
    assert arrays_of(variables) == arrays
    release(variables)
    assert [held(v) for v in variables] == arrays
    assert not other.whole


def test_numpy_arrays_of_a_caller_who_writes_to_none_are_given_to_jax_as_they_are(repeated: list[CompiledStep]) -> None:
    strategy = one_device(2)
    v = variable(strategy, np.float32(1))

    def added(x: Any) -> Any:
        return (v.assign_add(x.sum()), x * v.read_value())[1]

    step = jd.function(lambda x: strategy.run(added, (x,))).owning_arguments()
    batches = [np.full(4, value, np.float32) for value in (1, 2, 3)] + [np.ones(2, np.float32), np.ones(2, np.float64)]
    expected = 1.0
    for batch in [*batches, jnp.ones(2)]:
        expected += batch.sum()
        found = step(batch)
        np.testing.assert_array_equal(found, batch * expected)
        assert found.devices() == v.read_value().devices()
    # One trace a shape; float64 is float32 to JAX.
    assert step.experimental_get_tracing_count() == 2
    assert len(repeated) == len(batches)


def test_numpy_arrays_of_others_are_copied(repeated: list[CompiledStep]) -> None:
    v = variable(one_device(0), np.float32(1))
    step = jd.function(lambda x: (v.assign_add(x.sum()), v + 0.0)[1])
    assert [float(step(np.ones(4, np.float32))) for _ in range(3)] == [5.0, 9.0, 13.0]
    assert not repeated
