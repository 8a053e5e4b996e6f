# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
import copy
import gc
import math
import pickle
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.execution.function import Function
from jaxtribute.errors import ArgumentTypeError, ContextError, VariableError
from replicas import components, fraction, here, ident, mirrored, one_device, per_replica, variable


def count(fn: Any) -> int:
    return fn.experimental_get_tracing_count()


@jd.function
def top_level(x: Any) -> Any:
    """Adds one."""
    return x + 1


# Signatures.


def test_it_looks_like_the_function() -> None:
    assert top_level.__name__ == "top_level"
    assert top_level.__doc__ == "Adds one."
    assert top_level.python_function(1) == 2
    assert repr(top_level).startswith("<jd.function top_level, traced ")


def test_one_trace_for_each_shape_and_dtype() -> None:
    f: Any = jd.function(lambda x: x * 2)
    for x in (jnp.ones(2), np.ones(2, np.float32), jnp.zeros(2)):
        f(x)
    assert count(f) == 1
    for x in (jnp.ones(3), jnp.ones((2, 1)), jnp.ones(2, jnp.int32), jnp.ones(2, jnp.bfloat16)):
        assert f(x).dtype == x.dtype
    assert count(f) == 5
    for x in (jnp.ones(3), jnp.ones(2, jnp.int32), jnp.ones(2)):
        f(x)
    assert count(f) == 5


def test_one_trace_for_each_structure() -> None:
    f: Any = jd.function(lambda *args, **kwargs: jax.tree.map(lambda x: x + 1, (args, kwargs)))
    one = jnp.float32(1)
    for _ in range(2):
        f(one)
        f(one, one)
        f((one, one))
        f([one, one])
        f(one, key=one)
        f({"a": one})
        f({"b": one})
        f(None)
    assert count(f) == 8


def test_python_values_are_static() -> None:
    seen: list[Any] = []

    def body(x: Any, flag: Any) -> Any:
        seen.append(flag)
        return x if flag else -x

    f: Any = jd.function(body)
    one = jnp.float32(1)
    assert float(f(one, True)) == 1.0
    assert float(f(one, False)) == -1.0
    assert float(f(one, 1)) == 1.0
    assert float(f(one, "text")) == 1.0
    assert float(f(one, flag="text")) == 1.0
    f(one, True)
    f(one, 1)
    assert seen == [True, False, 1, "text", "text"]
    assert [type(flag) for flag in seen[:3]] == [bool, bool, int]
    assert count(f) == 5


def test_numpy_scalars_are_not_static() -> None:
    f: Any = jd.function(lambda x: x + 1)
    assert [float(f(np.float32(i))) for i in range(3)] == [1.0, 2.0, 3.0]
    assert count(f) == 1


def test_variables_are_static_arguments() -> None:
    f: Any = jd.function(lambda v, x: v.assign_add(x).read_value())
    a, b = jd.Variable(1.0), jd.Variable(2.0)
    assert [float(f(v, jnp.float32(1))) for v in (a, b, a)] == [2.0, 3.0, 3.0]
    assert count(f) == 2


def test_an_argument_that_is_neither_array_nor_hashable() -> None:
    class Thing:
        __hash__ = None  # type: ignore[assignment]

    f: Any = jd.function(lambda *args, **kwargs: 1)
    with pytest.raises(
        ArgumentTypeError, match=r"argument \[0\]\[1\]\['a'\] of type Thing is neither.*HINT: pass an array"
    ):
        f(jnp.ones(1), {"a": Thing()})
    with pytest.raises(ArgumentTypeError, match=r"\[1\]\['key'\] of type bytearray"):
        f(key=bytearray(b""))
    assert count(f) == 0


def test_registered_classes_are_nests() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class State:
        x: Any
        y: Any

    f: Any = jd.function(lambda state: State(state.y, state.x + 1))
    result = f(State(jnp.float32(1), jnp.float32(2)))
    assert (float(result.x), float(result.y)) == (2.0, 2.0)
    f(State(jnp.float32(5), jnp.float32(6)))
    assert count(f) == 1


def test_distributed_arguments_and_results() -> None:
    strategy = mirrored(2)
    f: Any = jd.function(lambda x, m: jax.tree.map(lambda y: y * 2, (x, m)))
    each, same = f(per_replica(strategy, [jnp.float32(1), jnp.float32(2)]), strategy.place(3.0))
    assert components(each) == [2.0, 4.0]
    assert components(same) == [6.0, 6.0]
    assert isinstance(each, jd.PerReplica)
    assert isinstance(same, jd.Mirrored)


# Results.


def test_results_of_all_kinds() -> None:
    marker = object()
    f: Any = jd.function(
        lambda x: {"a": [x, 1, 2.5], "b": (True, None, "text", marker, np.ones(2, np.float32)), "c": ()}
    )
    for _ in range(2):
        result = f(jnp.float32(3))
        assert isinstance(result["a"], list)
        assert [float(x) for x in result["a"]] == [3.0, 1.0, 2.5]
        assert bool(result["b"][0]) is True
        assert result["b"][1:3] == (None, "text")
        assert result["b"][3] is marker
        assert result["b"][4].tolist() == [1.0, 1.0]
        assert result["c"] == ()
    assert jd.function(lambda: None)() is None


def test_a_result_that_is_an_argument() -> None:
    x = jnp.ones(3)
    f: Any = jd.function(lambda x: (x, x, x + 0))
    for y in f(x):
        assert y.tolist() == [1.0, 1.0, 1.0]
    assert x.tolist() == [1.0, 1.0, 1.0]


# Variables.


def test_python_runs_once_a_trace() -> None:
    calls: list[None] = []
    v = jd.Variable(0.0)

    @jd.function
    def step() -> None:
        calls.append(None)
        v.assign_add(1.0)

    for _ in range(5):
        step()
    assert len(calls) == 1
    assert v.numpy() == 5.0


def test_variables_may_be_made_on_the_first_call() -> None:
    class Model:
        w: Any = None

        @jd.function
        def __call__(self, x: Any) -> Any:
            if self.w is None:
                self.w = jd.Variable(lambda: jnp.ones(2) * 3, name="w")
            return self.w.assign_add(x).read_value()

    model = Model()
    assert [model(jnp.ones(2)).tolist() for _ in range(2)] == [[4.0, 4.0], [5.0, 5.0]]
    assert model.w.numpy().tolist() == [5.0, 5.0]


def test_variables_may_not_be_made_on_a_later_call() -> None:
    made: list[Any] = []

    @jd.function
    def step(x: Any) -> Any:
        made.append(jd.Variable(lambda: jnp.zeros(()), name="late"))
        return made[-1] + x

    step(jnp.float32(1))
    with pytest.raises(VariableError, match=r"step created variables \(late:0\) when it was traced again.*HINT"):
        step(jnp.ones(2))


def test_a_retrace_may_touch_other_variables() -> None:
    a, b, c = jd.Variable(0.0), jd.Variable(0.0), jd.Variable(5.0)

    @jd.function
    def step(x: Any) -> Any:
        if x.ndim == 0:
            a.assign_add(x)
            return a.read_value()
        if x.shape == (1,):
            b.assign_add(x[0] + a)
            return b + c
        c.assign_add(1.0)
        return c.read_value()

    one, vector, pair = jnp.float32(1), jnp.ones(1), jnp.ones(2)
    assert [float(step(x)) for x in (one, vector, one, vector, pair, vector, one, pair)] == [
        1.0, 7.0, 2.0, 10.0, 6.0, 14.0, 3.0, 7.0,
    ]  # fmt: skip
    assert (a.numpy(), b.numpy(), c.numpy()) == (3.0, 8.0, 7.0)


def test_an_exception_in_a_trace_changes_nothing() -> None:
    v = jd.Variable(1.0)

    @jd.function
    def step(x: Any) -> Any:
        v.assign_add(1.0)
        if x.ndim:
            raise KeyError("half-way")
        return v.read_value()

    with pytest.raises(KeyError):
        step(jnp.ones(2))
    assert v.numpy() == 1.0
    assert float(step(jnp.float32(1))) == 2.0
    with pytest.raises(KeyError):
        step(jnp.ones(2))
    assert v.numpy() == 2.0
    assert jd.get_strategy() is here().strategy


def test_nested_functions_are_one_program() -> None:
    v = jd.Variable(1.0)
    inner = jd.function(lambda x: v.assign_add(x).read_value())

    @jd.function
    def outer(x: Any) -> Any:
        return inner(x) + inner(x * 2)

    assert float(outer(jnp.float32(1))) == 2.0 + 4.0
    assert float(outer(jnp.float32(1))) == 5.0 + 7.0
    assert count(inner) == 0
    assert float(inner(jnp.float32(1))) == 8.0


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap", "scan", "eval_shape", "checkpoint"])
def test_inside_jax_transformations_it_is_inlined(transform: str) -> None:
    v = jd.Variable([1.0, 2.0])
    f: Any = jd.function(lambda x: (v * x).sum())
    f(jnp.ones(2))
    x = jnp.asarray([3.0, 4.0])
    if transform == "jit":
        assert float(jax.jit(f)(x)) == 11.0
    elif transform == "grad":
        assert jax.grad(f)(x).tolist() == [1.0, 2.0]
    elif transform == "vmap":
        assert jax.vmap(f)(x[None]).tolist() == [11.0]
    elif transform == "scan":
        assert jax.lax.scan(lambda c, y: (c + f(y), y), 0.0, x[None])[0].tolist() == 11.0
    elif transform == "eval_shape":
        assert jax.eval_shape(f, x).shape == ()
    else:
        assert float(jax.checkpoint(f)(x)) == 11.0
    assert count(f) == 1


# Methods.


class Counter:
    def __init__(self, start: float, strategy: Any = None) -> None:
        self.v = jd.Variable(start) if strategy is None else variable(strategy, start)

    @jd.function
    def add(self, x: Any) -> Any:
        return self.v.assign_add(x).read_value()

    @staticmethod
    @jd.function
    def plain(x: Any) -> Any:
        return x + 1

    @classmethod
    @jd.function
    def of_class(cls, x: Any) -> Any:
        return x + len(cls.__name__)


def test_each_instance_has_its_own_programs() -> None:
    a, b = Counter(1.0), Counter(10.0)
    one = jnp.float32(1)
    assert [float(x) for x in (a.add(one), b.add(one), a.add(one))] == [2.0, 11.0, 3.0]
    assert count(a.add) == count(b.add) == 1
    assert count(Counter.add) == 0
    assert a.add is a.add
    assert a.add.__name__ == "add"


def test_static_and_class_methods() -> None:
    one = jnp.float32(1)
    assert float(Counter.plain(one)) == float(Counter(0.0).plain(one)) == 2.0
    assert float(Counter.of_class(one)) == float(Counter(0.0).of_class(one)) == 8.0


def test_instances_with_slots() -> None:
    class Slots:
        __slots__ = ("v",)

        def __init__(self) -> None:
            self.v = jd.Variable(1.0)

        @jd.function
        def add(self, x: Any) -> Any:
            return self.v.assign_add(x).read_value()

    a, b = Slots(), Slots()
    assert [float(x.add(jnp.float32(1))) for x in (a, b, a)] == [2.0, 2.0, 3.0]


def test_copies_of_an_instance_are_themselves() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        @jd.function
        def __call__(self, x: Any) -> Any:
            return x * self.by

    original = Scale(2.0)
    assert float(original(jnp.float32(1))) == 2.0
    shallow, deep = copy.copy(original), copy.deepcopy(original)
    shallow.by, deep.by = 3.0, 4.0
    assert [float(x(jnp.float32(1))) for x in (original, shallow, deep)] == [2.0, 3.0, 4.0]


def test_pickles() -> None:
    top_level(jnp.float32(1))
    scale = Pickled(2.0)
    assert float(scale.times(jnp.float32(3))) == 6.0
    again = pickle.loads(pickle.dumps(scale))
    again.by = 5.0
    assert float(again.times(jnp.float32(3))) == 15.0


class Pickled:
    def __init__(self, by: float) -> None:
        self.by = by

    @jd.function
    def times(self, x: Any) -> Any:
        return x * self.by


def test_a_used_instance_can_be_collected() -> None:
    counter = Counter(1.0)
    counter.add(jnp.float32(1))
    alive = weakref.ref(counter)
    del counter
    gc.collect()
    assert alive() is None


# Strategies.


def test_it_is_a_replica_function() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0, aggregation=jd.VariableAggregation.SUM)

    @jd.function
    def replica_fn(x: Any) -> Any:
        v.assign_add(x)
        return x * 2 + fraction(), here().all_reduce("SUM", x)

    each = per_replica(strategy, [jnp.float32(1), jnp.float32(2)])
    for total in (4.0, 7.0):
        own, same = strategy.run(replica_fn, (each,))
        assert components(own) == [2.0, 5.0]
        assert components(same) == [3.0, 3.0]
        assert isinstance(same, jd.Mirrored)
        assert components(v) == [total] * 2


def test_one_function_under_several_strategies() -> None:
    calls: list[int] = []

    @jd.function
    def fn() -> Any:
        calls.append(1)
        return ident() + 0

    for _ in range(2):
        assert components(mirrored(2).run(fn)) == [0, 1]
        assert components(mirrored(3).run(fn)) == [0, 1, 2]
        assert components(one_device(1).run(fn)) == [0]
    assert len(calls) == 3


def test_the_strategy_in_scope_is_part_of_the_signature() -> None:
    f: Any = jd.function(lambda: jd.get_strategy().num_replicas_in_sync)
    assert int(f()) == 1
    with mirrored(3).scope():
        assert int(f()) == 3
    assert int(f()) == 1


def test_a_scope_that_is_entered_anew_is_the_same_context(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = mirrored(2)
    count = variable(strategy, 0.0)

    @jd.function
    def step(x: Any) -> None:
        count.assign_add(x * jd.get_strategy().num_replicas_in_sync)

    looked: list[int] = []
    look = Function._call_looking  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Function, "_call_looking", lambda *given: looked.append(1) or look(*given))
    for looks in (1, 1, 1):
        with strategy.scope():
            step(jnp.float32(1))
        assert len(looked) == looks
    step(jnp.float32(1))  # outside the scope there is one replica
    assert len(looked) == 2
    assert float(count) == 7


def test_it_runs_on_its_strategys_device() -> None:
    for strategy, device in ((one_device(3), 3), (mirrored(1), 0)):
        inside = jd.function(lambda s=strategy: s.run(lambda: jnp.ones(2)))()
        with strategy.scope():
            scoped = jd.function(lambda: jnp.ones(2))()
        direct = strategy.run(jd.function(lambda: jnp.ones(2)))
        eager = strategy.run(lambda: jnp.ones(2))
        assert [x.devices().pop().id for x in (inside, scoped, direct, eager)] == [device] * 4


def test_arguments_on_other_devices_are_brought_over() -> None:
    far = jax.device_put(jnp.ones(2), jax.devices()[5])
    for strategy in (mirrored(2), one_device(1)):
        v = variable(strategy, [1.0, 2.0])

        @jd.function
        def step(x: Any, v: jd.Variable = v, strategy: jd.Strategy = strategy) -> Any:
            v.assign_add(x)
            return strategy.run(lambda y: y + v, (x,))

        step(far)
        result = step(far)
        assert components(v)[0] == [3.0, 4.0]
        assert components(result)[0] == [4.0, 5.0]
    assert far.devices() == {jax.devices()[5]}


def test_one_program_has_one_set_of_devices() -> None:
    @jd.function
    def both() -> Any:
        return mirrored(2).run(ident), mirrored(3).run(ident)

    with pytest.raises(
        jd.errors.StrategyMixError, match=r"cpu:1'\]\) and on ReplicaMesh.*cpu:2.*HINT: make one jd.function"
    ):
        both()


def test_calls_from_several_threads() -> None:
    v = [jd.Variable(0.0) for _ in range(4)]
    f: Any = jd.function(lambda v, x: (v.assign_add(x.sum()), x * 2)[1])
    errors: list[BaseException] = []
    barrier = threading.Barrier(4, timeout=30)

    def work(index: int) -> None:
        try:
            barrier.wait()
            for step in range(20):
                x = jnp.ones(1 + (step + index) % 3)
                assert f(v[index], x).shape == x.shape
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert errors == []
    assert [float(x.numpy()) for x in v] == [sum(1.0 + (step + i) % 3 for step in range(20)) for i in range(4)]


def test_threads_that_share_a_variable_lose_no_step() -> None:
    v = jd.Variable(jnp.zeros(1000))
    f: Any = jd.function(lambda x: (v.assign_add(jnp.ones(1000) * x.sum()), x * 2)[1])
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for step in range(40):
                x = jnp.ones(1 + (step + index) % 3)
                assert f(x).shape == x.shape
                assert v.numpy().shape == (1000,)
                v.assign_add(jnp.ones(1000))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert errors == []
    assert float(v[0]) == sum(2.0 + (step + i) % 3 for step in range(40) for i in range(4))


def test_threads_run_different_strategies_at_once() -> None:
    results: dict[int, Any] = {}
    barrier = threading.Barrier(3, timeout=30)

    def work(index: int) -> None:
        strategy = [mirrored(2), jd.MirroredStrategy(["CPU:4", "CPU:5"]), one_device(7)][index]
        v = variable(strategy, float(index), aggregation=jd.VariableAggregation.MEAN)

        def fn() -> Any:
            v.assign_add(here().all_reduce("MEAN", fraction() + 1))
            return here().merge_call(lambda s: s.num_replicas_in_sync)

        step = jd.function(lambda: strategy.run(fn))
        barrier.wait()
        for _ in range(5):
            step()
            strategy.run(fn)
        results[index] = (float(v.numpy()), v.device[-5:])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert results == {0: (15.0, "CPU:0"), 1: (16.0, "CPU:4"), 2: (12.0, "CPU:7")}


def test_inside_a_lockstep_replica_it_is_plain_python() -> None:
    seen: list[Any] = []
    f: Any = jd.function(lambda x: (seen.append(int(x)), x + 1)[1])
    assert components(mirrored(2).run(lambda: f(ident()))) == [1, 2]
    assert seen == [0, 1]


def test_a_context_from_outside_is_not_the_replicas() -> None:
    strategy = mirrored(2)
    with pytest.raises(ContextError):
        jd.function(lambda: strategy.run(lambda: strategy.run(ident)))()


def test_branching_on_an_array_says_what_to_write_instead() -> None:
    function = jd.function(lambda x: 1 if x > 0 else 2)
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        function(jnp.float32(1))
    assert any("HINT" in note and "jax.lax.cond" in note for note in caught.value.__notes__)


def test_numbers_that_change_with_every_call_are_noticed_once(caplog: pytest.LogCaptureFixture) -> None:
    function = jd.function(lambda x, rate: x * rate)
    for step in range(12):
        function(jnp.float32(2), step * 0.5)
    assert caplog.text.count("HINT: pass what changes from call to call as an array") == 1
    caplog.clear()
    for step in range(12):
        function(jnp.float32(2), jnp.float32(step))
    assert not caplog.text


@pytest.mark.parametrize("devices", [1, 4])
def test_functional_state_can_be_donated(devices: int) -> None:
    strategy = jd.MirroredStrategy([f"cpu:{i}" for i in range(devices)])
    state = strategy.place({"w": np.arange(6, dtype=np.float32), "n": np.int32(0)})

    @jd.function(donate_argnums=0)
    def step(state: Any, flag: bool, scale: Any) -> Any:
        def replica(state: Any) -> Any:
            return {"w": state["w"] * scale, "n": state["n"] + 1}

        return strategy.run(replica, (state,)), scale

    scale = jnp.float32(2)
    first = jax.tree.leaves(state)
    state, kept = step(state, True, scale)
    state, kept = step(state, True, scale)
    assert all(leaf.is_deleted() for leaf in first)
    assert float(kept) == float(scale) == 2  # what was not donated is still there
    np.testing.assert_array_equal(np.asarray(state["w"]), 4 * np.arange(6))
    assert int(state["n"]) == 2
    assert step.experimental_get_tracing_count() == 1


def test_a_methods_donated_argument_is_counted_with_self() -> None:
    class Model:
        @jd.function(donate_argnums=1)
        def double(self, x: Any) -> Any:
            return x * jnp.float32(2)

    x = jnp.ones(3)
    np.testing.assert_array_equal(Model().double(x), 2 * np.ones(3))
    assert x.is_deleted()


ALIKE = (0.0, -0.0, 0, False, complex(0, 0), complex(0, -0.0), complex(-0.0, 0), 1, True, 1.0, 1 + 0j)


def test_numbers_that_python_calls_equal_have_programs_of_their_own() -> None:
    seen: list[Any] = []

    @jd.function
    def step(x: Any, number: Any) -> Any:
        seen.append(number)
        return x if isinstance(number, complex) else x / jnp.asarray(number, x.dtype)

    one = jnp.float32(1)
    for number in ALIKE:
        step(one, number)
        step(one, number)
    assert list(map(repr, seen)) == list(map(repr, ALIKE))
    assert [float(step(one, number)) for number in (0.0, -0.0, 1)] == [math.inf, -math.inf, 1]


@dataclass(frozen=True)
class Options:
    """Settings, as programs pass them; what is not compared is a list, which has no hash."""

    number: Any
    inner: Any = None
    notes: list[str] = field(default_factory=list[str], compare=False)


@dataclass(frozen=True)
class Loose:
    """Settings of which one is never given, and one is left out of the hash."""

    number: int
    notes: list[str] = field(default_factory=list[str], hash=False)
    never: int = field(init=False, compare=False)


@dataclass(eq=False)
class Ring:
    """An object that leads to itself, and is no other one's equal."""

    number: int
    next: Any = None


@pytest.mark.parametrize("made", [lambda number: Options((number,)), lambda number: Options(frozenset([number]))])
def test_numbers_within_containers_of_dataclasses(made: Callable[[Any], Options]) -> None:
    step = jd.function(lambda options: jnp.asarray(next(iter(options.number)), complex) / 1)
    assert [complex(step(made(number))) for number in ALIKE] == list(map(complex, ALIKE))
    assert step.experimental_get_tracing_count() == len(ALIKE)


def test_objects_of_dataclasses_of_any_kind_are_arguments() -> None:
    ring = Ring(2)
    ring.next = Ring(3, ring)
    step = jd.function(lambda x, given: x * given.number)
    assert [float(step(jnp.float32(2), given)) for given in (ring, ring.next, Loose(5), Loose(5))] == [4, 6, 10, 10]


@pytest.mark.parametrize("made", [Options, lambda number: Options(0, Options(number))], ids=["plain", "nested"])
def test_numbers_in_dataclasses_have_programs_of_their_own(made: Callable[[Any], Options]) -> None:
    step = jd.function(lambda options: jnp.asarray((options.inner or options).number, complex) / 1)
    results = [complex(step(made(number))) for number in ALIKE for _ in range(2)]
    assert results == [complex(number) for number in ALIKE for _ in range(2)]
    assert step.experimental_get_tracing_count() == len(ALIKE)


def test_nan_is_one_number_in_a_signature() -> None:
    step = jd.function(lambda x, number: x + number)
    for number in (float("nan"), math.nan, float("nan")):
        assert math.isnan(step(jnp.float32(1), number))
    for number in (complex(math.nan, 1), complex(float("nan"), 1)):
        step(jnp.complex64(1), number)
    assert step.experimental_get_tracing_count() == 2


@pytest.mark.parametrize("replicas", [1, 2])
def test_numbers_of_numpy_are_arrays_of_the_program(replicas: int) -> None:
    strategy = mirrored(replicas)
    step = jd.function(lambda x: strategy.run(lambda x: 1 / x, (x,)))
    for number in (np.float32(0.0), np.float32(-0.0), np.float32(2)):
        assert components(step(number)) == [1 / number if number else math.copysign(math.inf, number)] * replicas
    assert step.experimental_get_tracing_count() == 1


def test_a_nest_is_donated_in_every_call() -> None:
    count = jd.Variable(0.0)

    @jd.function(donate_argnums=(1,))
    def step(kept: Any, state: Any, x: Any) -> Any:
        count.assign_add(1.0)
        return {"a": state["a"] + x, "b": (state["b"][0] * kept["k"],)}, state["a"] - 1

    for rows in (3, 3, 5):
        state: Any = {"a": jnp.ones(rows), "b": (jnp.full(rows, 2.0),)}
        for turn in range(3):
            given, (state, before) = state, step({"k": jnp.float32(2)}, state, jnp.ones(rows))
            np.testing.assert_array_equal(state["a"], np.full(rows, 2.0 + turn))
            np.testing.assert_array_equal(state["b"][0], np.full(rows, 2.0 ** (turn + 2)))
            np.testing.assert_array_equal(before, np.full(rows, turn))
            assert given["a"].is_deleted()
            assert given["b"][0].is_deleted()
    assert count.numpy() == 9


@pytest.mark.parametrize("strategy", [mirrored(2), jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=1)])
@pytest.mark.parametrize("rows", [4, 3, 1])
def test_a_compiled_replica_function_returns_what_each_replica_sees_of_a_variable(
    strategy: jd.Strategy, rows: int
) -> None:
    with strategy.scope():
        total = jd.Variable(np.float32(1), synchronization="on_read", aggregation="sum")
        weights = jd.Variable(np.zeros(2, np.float32), aggregation="mean")

    def replica(x: Any) -> Any:
        return {
            "total": total.assign_add(x.sum()),
            "weights": weights.assign(x.max(initial=0) + np.ones(2, np.float32)),
        }

    data = np.arange(rows, dtype=np.float32)
    [x] = strategy.experimental_distribute_dataset([data])
    before = [float(part) for part in total.values]
    seen = strategy.run(jd.function(replica), (x,))
    parts = np.array_split(data, 2) if rows != 1 else [data, data[:0]]
    wanted = [start + part.sum() for start, part in zip(before, parts, strict=True)]
    assert [float(part) for part in strategy.experimental_local_results(seen["total"])] == wanted
    kept = np.asarray(weights)
    total.assign(np.float32(0))
    weights.assign(np.zeros(2, np.float32))  # what was returned stays
    assert [float(part) for part in strategy.experimental_local_results(seen["total"])] == wanted
    for part in strategy.experimental_local_results(seen["weights"]):
        np.testing.assert_array_equal(part, kept)
