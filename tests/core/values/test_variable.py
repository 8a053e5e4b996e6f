# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false
# pyright: reportAttributeAccessIssue=false
import gc
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.core.values.stored import lent
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError, StrategyMixError, TraceError, VariableError
from replicas import components, execute, here, ident, mirrored, one_device, variable

ONES = np.ones(3, np.float32)


def placed(where: str, value: Any, **options: Any) -> jd.Variable:
    """A variable of no strategy, of one device, or mirrored on two."""
    if where == "plain":
        return jd.Variable(value, **options)
    return variable(one_device(1) if where == "one" else mirrored(2), value, **options)


everywhere = pytest.mark.parametrize("where", ["plain", "one", "mirrored"])


# Creation.


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.0, None, "float32"),
        (1, None, "int32"),
        (True, None, "bool"),
        (1j, None, "complex64"),
        ([1, 2], None, "int32"),
        ([1.5, 2], None, "float32"),
        (np.ones(2), None, "float32"),
        (np.ones(2, np.int16), None, "int16"),
        (jnp.ones(2, jnp.bfloat16), None, "bfloat16"),
        (1, "float32", "float32"),
        (1, jnp.bfloat16, "bfloat16"),
        (np.ones(2), np.float64, "float32"),
        (jnp.ones(2), jnp.float16, "float16"),
        (lambda: jnp.zeros(2, jnp.int8), None, "int8"),
    ],
)
def test_dtype_of_the_initial_value(value: Any, dtype: Any, expected: str) -> None:
    for where in ("plain", "mirrored"):
        v = placed(where, value, dtype=dtype)
        assert v.dtype == expected
        assert v.numpy().dtype == expected
        assert not v.read_value().weak_type


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1), (1, 0, 2)])
def test_shape_and_size(shape: tuple[int, ...]) -> None:
    v = placed("mirrored", np.zeros(shape, np.float32))
    assert v.shape == shape == v.numpy().shape
    assert v.size == int(np.prod(shape))
    assert v.ndim == len(shape)


def test_a_callable_is_called_once() -> None:
    calls: list[None] = []

    def initial() -> Any:
        calls.append(None)
        return jnp.zeros(2)

    placed("mirrored", initial)
    assert len(calls) == 1


def test_defaults() -> None:
    v = jd.Variable(1.0)
    assert v.trainable
    assert v.name == "Variable:0"
    assert v.aggregation is jd.VariableAggregation.NONE
    assert v.synchronization is jd.VariableSynchronization.AUTO
    assert v.distribute_strategy is jd.get_strategy()
    assert placed("mirrored", 1.0).synchronization is jd.VariableSynchronization.ON_WRITE
    assert placed("one", 1.0, synchronization=jd.VariableSynchronization.ON_READ).trainable is False
    assert placed("one", 1.0, trainable=True, synchronization=jd.VariableSynchronization.ON_READ).trainable is True


def test_mean_of_integers_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"MEAN of dtype int32 would have to round.*HINT"):
        jd.Variable(1, aggregation=jd.VariableAggregation.MEAN)
    assert jd.Variable(jnp.bfloat16(1), aggregation=jd.VariableAggregation.MEAN).dtype == jnp.bfloat16


def test_synchronization_none_needs_one_device() -> None:
    with pytest.raises(ArgumentError, match=r"a copy of each variable on 2 devices.*HINT"):
        placed("mirrored", 1.0, synchronization=jd.VariableSynchronization.NONE)
    assert placed("one", 1.0, synchronization=jd.VariableSynchronization.NONE).numpy() == 1.0


def test_an_initial_value_from_a_trace_is_refused() -> None:
    @jd.function
    def make(x: Any) -> None:
        jd.Variable(x * 2)

    with pytest.raises(VariableError, match=r"inside a trace.*HINT: pass a function"):
        make(jnp.ones(2))


def test_device_names() -> None:
    assert placed("one", 1.0).device == "/job:localhost/replica:0/task:0/device:CPU:1"
    assert placed("mirrored", 1.0).device == "/job:localhost/replica:0/task:0/device:CPU:0"


def test_the_device_in_a_replica_is_the_replicas() -> None:
    v = placed("mirrored", 1.0)
    result = mirrored(2).run(lambda: v.device)
    assert [name[-5:] for name in result.values] == ["CPU:0", "CPU:1"]


def test_repr() -> None:
    assert repr(jd.Variable([1.0, 2.0], name="w")) == "<jd.Variable 'w:0' shape=(2,) dtype=float32, numpy=[1., 2.]>"
    assert repr(placed("mirrored", 1.0)) == (
        "MirroredVariable:{\n"
        "  0: <jd.Variable 'Variable:0' shape=() dtype=float32, numpy=1.>,\n"
        "  1: <jd.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.>\n}"
    )


def test_repr_in_a_trace_reads_nothing() -> None:
    v = placed("mirrored", 1.0, name="w")
    shown = jd.function(lambda: repr(v))()
    assert shown == "<jd.Variable 'w:0' shape=() dtype=float32>"
    assert set(mirrored(2).run(lambda: repr(v)).values) == {shown}


# Assignment.


@everywhere
def test_assignments(where: str) -> None:
    v = placed(where, [1.0, 2.0])
    assert v.assign([3.0, 4.0]) is v
    assert v.numpy().tolist() == [3.0, 4.0]
    assert v.assign_add(np.array([1.0, 1.0])).numpy().tolist() == [4.0, 5.0]
    assert v.assign_sub(jnp.array([2.0, 0.5])).numpy().tolist() == [2.0, 4.5]
    assert v.assign(v * 2).numpy().tolist() == [4.0, 9.0]
    assert v.assign(jd.Variable([7.0, 8.0])).numpy().tolist() == [7.0, 8.0]


@everywhere
@pytest.mark.parametrize("value", [1.0, ONES[:2], ONES[None], []])
def test_a_wrong_shape_is_refused_and_loses_nothing(where: str, value: Any) -> None:
    v = placed(where, ONES, name="w")
    for write in (v.assign, v.assign_add, v.assign_sub, jd.function(v.assign_add)):
        with pytest.raises(ShapeError, match=r"w:0 has shape \(3,\), the assigned value \(.*HINT"):
            write(value if isinstance(value, float) else np.asarray(value, np.float32))
    assert v.numpy().tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("value", ["text", None, object(), np.int32(3), 1j, np.array(["a"])])
def test_a_value_that_is_no_number_is_refused(value: Any) -> None:
    v = jd.Variable(1, dtype="int8", name="w")
    if isinstance(value, np.generic):
        assert v.assign(value).numpy() == 3  # within its kind
    else:
        with pytest.raises(ArgumentTypeError, match=r"to w:0 of dtype int8.*HINT"):
            v.assign(value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int32", 1.5), ("float32", 1j), ("bool", 2), ("int32", jnp.float32(1)), ("float32", jnp.int32(1))],
)
def test_a_dtype_of_another_kind_is_refused(dtype: str, value: Any) -> None:
    v = jd.Variable(np.zeros((), dtype))
    with pytest.raises(ArgumentTypeError, match=r"HINT"):
        v.assign(value)
    assert v.numpy() == 0


def test_weak_and_python_values_take_the_variables_dtype() -> None:
    v = jd.Variable(jnp.zeros(2, jnp.bfloat16))
    v.assign(jnp.asarray(2.0) * jnp.ones(2, jnp.bfloat16))
    v.assign_add([1.0, 2.0])
    assert v.dtype == v.read_value().dtype == jnp.bfloat16
    assert v.numpy().astype(np.float32).tolist() == [3.0, 4.0]


def test_a_per_replica_value_has_no_one_value_to_assign() -> None:
    v = placed("mirrored", 0.0)
    each = mirrored(2).run(lambda: ident().astype(float))
    with pytest.raises(VariableError, match=r"PerReplica with 2 was assigned.*HINT: reduce it first"):
        v.assign(each)


def test_another_strategys_scope_may_not_write() -> None:
    v = placed("mirrored", 0.0, name="w")
    with one_device(1).scope(), pytest.raises(StrategyMixError, match=r"w:0 was created.*MirroredStrategy.*HINT"):
        v.assign(1.0)
    assert v.numpy() == 0.0


@everywhere
def test_reading_and_writing_need_no_scope(where: str) -> None:
    v = placed(where, 1.0)
    v.assign_add(1.0)
    jd.function(lambda: v.assign_add(1.0))()
    assert v.numpy() == 3.0
    assert components(v) == [3.0] * (2 if where == "mirrored" else 1)


# Memory: who may hold what, when a step gives its input away.


def bump(*variables: jd.Variable) -> None:
    """Two donating steps."""

    @jd.function
    def step() -> None:
        for v in variables:
            v.assign_add(np.ones(v.shape, np.float32))

    step()
    step()


@everywhere
def test_the_old_array_is_given_up(where: str) -> None:
    v = placed(where, ONES)
    bump(v)
    old = v.stored
    bump(v)
    assert old.is_deleted()
    assert v.numpy().tolist() == [5.0, 5.0, 5.0]


@everywhere
def test_arrays_read_from_a_variable_stay(where: str) -> None:
    v = placed(where, ONES)
    held = [v.read_value(), v.numpy(), np.asarray(v.read_value()), jnp.asarray(v), *v.values, np.asarray(v)]
    bump(v)
    for array in held:
        assert array.tolist() == [1.0, 1.0, 1.0]
    assert v.numpy().tolist() == [3.0, 3.0, 3.0]


@everywhere
def test_the_initial_value_stays_the_users(where: str) -> None:
    given_array, host = jnp.ones(3), np.ones(300_000, np.float32)
    v, w = placed(where, given_array), placed(where, host)
    u = placed(where, v)
    host[:] = -1
    bump(v, w)
    assert given_array.tolist() == u.numpy().tolist() == [1.0, 1.0, 1.0]
    assert v.numpy().tolist() == [3.0, 3.0, 3.0]
    assert set(w.numpy().tolist()) == {3.0}


@everywhere
def test_an_assigned_value_stays_the_users(where: str) -> None:
    v, w, u = (placed(where, np.zeros(n, np.float32)) for n in (3, 3, 300_000))
    array, host = jnp.ones(3), np.ones(300_000, np.float32)
    v.assign(array)
    w.assign(v)
    u.assign(host)
    host[:] = -1
    bump(v, u)
    assert array.tolist() == w.numpy().tolist() == [1.0, 1.0, 1.0]
    assert set(u.numpy().tolist()) == {3.0}


@everywhere
def test_an_argument_that_is_assigned_stays_the_users(where: str) -> None:
    v, u = placed(where, np.zeros(3, np.float32)), placed(where, np.zeros(300_000, np.float32))

    @jd.function
    def store(x: Any, y: Any) -> None:
        v.assign(x)
        u.assign(y)

    array, host = jnp.ones(3), np.ones(300_000, np.float32)
    store(array, host)
    u.stored.block_until_ready()  # a program reads host arrays while it runs, as in plain JAX
    host[:] = -1
    bump(v, u)
    assert array.tolist() == [1.0, 1.0, 1.0]
    assert set(u.numpy().tolist()) == {3.0}


@everywhere
def test_variables_assigned_to_each_other_share_nothing(where: str) -> None:
    a, b = placed(where, np.zeros(3, np.float32)), placed(where, ONES)

    @jd.function
    def copy() -> None:
        a.assign(b)

    @jd.function
    def swap() -> None:
        x, y = a.read_value(), b.read_value()
        a.assign(y)
        b.assign(x)

    @jd.function
    def both() -> None:
        total = a + b
        a.assign(total)
        b.assign(total)

    copy()
    bump(a)
    assert (a.numpy()[0], b.numpy()[0]) == (3.0, 1.0)
    swap()
    swap()
    swap()
    assert (a.numpy()[0], b.numpy()[0]) == (1.0, 3.0)
    both()
    bump(a)
    assert (a.numpy()[0], b.numpy()[0]) == (6.0, 4.0)


@everywhere
def test_results_that_are_variables_values_stay(where: str) -> None:
    v, w = placed(where, ONES), placed(where, ONES)

    @jd.function
    def step() -> Any:
        before = v.read_value()
        v.assign_add(ONES)
        after = v.read_value()
        return before, after, [after, v + 0.0], {"w": w.read_value(), "again": w.read_value()}, v  # its value, as read

    results = [step() for _ in range(3)]
    bump(v, w)
    for index, (before, after, (again, summed), kept, same) in enumerate(results):
        assert before.tolist() == [1.0 + index] * 3
        assert after.tolist() == again.tolist() == summed.tolist() == same.tolist() == [2.0 + index] * 3
        assert kept["w"].tolist() == kept["again"].tolist() == [1.0] * 3


@everywhere
def test_views_of_results_in_numpy_stay(where: str) -> None:
    v = placed(where, np.zeros(100_000, np.float32))

    @jd.function
    def step() -> Any:
        return v.assign_add(np.ones(100_000, np.float32)).read_value()

    views = [np.asarray(step()) for _ in range(4)]
    assert [set(view.tolist()) for view in views] == [{1.0}, {2.0}, {3.0}, {4.0}]


@pytest.mark.parametrize("aggregation", ["MEAN", "ONLY_FIRST_REPLICA"])
def test_what_lockstep_replicas_hold_stays(aggregation: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, ONES, aggregation=jd.VariableAggregation[aggregation])
    held: list[Any] = []

    def fn() -> None:
        given_array = jnp.ones(3) * 5
        v.assign(given_array)
        held.extend([given_array, v.read_value()])

    strategy.run(fn)
    bump(v)
    assert [array.tolist() for array in held] == [[5.0] * 3] * 4
    assert v.numpy().tolist() == [7.0] * 3


def test_what_lockstep_replicas_hold_of_an_on_read_variable_stays() -> None:
    strategy = mirrored(2)
    v = variable(strategy, ONES, synchronization=jd.VariableSynchronization.ON_READ)
    held: list[Any] = []

    def fn() -> None:
        v.assign_add(ONES)
        held.append(v.read_value())

    strategy.run(fn)
    execute("compiled", strategy, lambda: (v.assign_add(ONES), None)[1])
    assert [array.tolist() for array in held] == [[2.0] * 3] * 2
    assert components(v) == [[3.0] * 3] * 2


def test_a_failing_step_loses_nothing() -> None:
    v, w = placed("mirrored", ONES), placed("plain", ONES)

    @jd.function
    def step() -> None:
        v.assign_add(ONES)
        w.assign_add(ONES)
        raise KeyError("half-way")

    for _ in range(2):
        with pytest.raises(KeyError):
            step()
    assert v.numpy().tolist() == w.numpy().tolist() == [1.0] * 3


def test_lending_ends_with_the_variable() -> None:
    v = jd.Variable(1.0)
    v.peek()
    key = id(v)
    assert key in lent
    del v
    gc.collect()
    assert key not in lent


def test_peak_memory_of_a_step_is_one_state() -> None:
    v = placed("plain", np.zeros(1000, np.float32))
    bump(v)
    before = v.stored.unsafe_buffer_pointer()
    jd.function(lambda: (v.assign_add(np.ones(1000, np.float32)), None)[1])()
    assert v.stored.unsafe_buffer_pointer() == before, "the new value takes the old one's memory"


# Variables in other transformations.


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap", "scan", "cond", "while"])
@pytest.mark.parametrize("executor", ["eager", "function", "lockstep", "compiled"])
def test_a_write_inside_a_transformation_teaches(executor: str, transform: str) -> None:
    v = jd.Variable(1.0, name="w")

    def write(x: Any) -> Any:
        v.assign_add(x)
        return x

    def body() -> Any:
        one = jnp.float32(1)
        if transform == "scan":
            return jax.lax.scan(lambda c, x: (c, write(x)), one, jnp.ones(2))
        if transform == "cond":
            return jax.lax.cond(one > 0, write, lambda x: x, one)
        if transform == "while":
            return jax.lax.while_loop(lambda x: x < 2, write, one)
        apply = {"jit": jax.jit, "grad": jax.grad, "vmap": jax.vmap}[transform](write)
        return apply(jnp.ones(2) if transform == "vmap" else one)

    def act() -> None:
        if executor in ("lockstep", "compiled"):
            execute(executor, mirrored(2), body)
        else:
            (jd.function(body) if executor == "function" else body)()

    with pytest.raises(jd.errors.TraceError, match=r"w:0 is assigned inside a JAX transf.*HINT: use jd.function"):
        act()
    assert v.numpy() == 1.0


def test_a_function_that_writes_inside_jit_without_traced_arguments_teaches() -> None:
    v = jd.Variable(1.0, name="w")
    step = jd.function(lambda: (v.assign_add(1.0), None)[1])
    with pytest.raises(jd.errors.TraceError, match=r"w:0 is assigned inside a JAX transformation"):
        jax.jit(lambda: (step(), 1)[1])()
    assert v.numpy() == 1.0
    step()
    assert v.numpy() == 2.0


def test_plain_variables_are_shared_by_the_replicas() -> None:
    strategy = mirrored(2)
    v = jd.Variable(1.0)
    for executor, total in (("lockstep", 4.0), ("compiled", 7.0)):
        execute(executor, strategy, lambda v=v: (v.assign_add(ident().astype(float) + 1), None)[1])
        assert v.numpy() == total
        execute(executor, strategy, lambda v=v: (v.assign_add(0.0), None)[1])
    execute("lockstep", strategy, lambda: (v.assign(ident().astype(float) + 1), None)[1])
    assert v.numpy() == 2.0
    execute("compiled", strategy, lambda: (v.assign(ident().astype(float) + 5), None)[1])
    assert v.numpy() == 6.0
    v.assign_add(1.0)
    jd.function(lambda: v.assign_add(1.0))()
    assert v.numpy() == 8.0


@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
def test_a_variable_made_in_a_replica_is_one_for_all(executor: str) -> None:
    strategy = mirrored(2)

    class Layer:
        w: Any = None
        calls = 0

        def __call__(self) -> Any:
            def initial() -> Any:
                self.calls += 1
                return jnp.full(2, 3.0)

            if self.w is None:
                self.w = jd.Variable(initial, name="w")
            return self.w + ident().astype(float)

    layer = Layer()
    result = execute(executor, strategy, layer)
    assert components(result) == [[3.0, 3.0], [4.0, 4.0]]
    assert layer.calls == 1
    assert components(layer.w) == [[3.0, 3.0]] * 2
    assert layer.w.distribute_strategy is strategy
    assert components(execute(executor, strategy, layer)) == [[3.0, 3.0], [4.0, 4.0]]


def test_a_variable_made_in_lockstep_takes_replica_0s_value() -> None:
    made: list[Any] = []

    def fn() -> None:
        made.append(jd.Variable(ident().astype(float) + 3))

    mirrored(2).run(fn)
    assert made[0] is made[1]
    assert components(made[0]) == [3.0, 3.0]


def test_variables_are_read_by_other_threads() -> None:
    v = placed("mirrored", 2.0)
    seen: list[Any] = []

    def read() -> None:
        v.assign_add(1.0)
        seen.append(v.numpy())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert seen == [3.0]
    assert here().num_replicas_in_sync == 1


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "make", [lambda: jd.OneDeviceStrategy("cpu:1"), lambda: jd.MirroredStrategy(["cpu:0", "cpu:1"])]
)
def test_a_variable_is_its_value_to_every_array_function(make: Any) -> None:
    strategy = make()
    with strategy.scope():
        variable = jd.Variable(np.arange(6, dtype=np.float32).reshape(2, 3))
    value = variable.numpy()

    def uses() -> list[Any]:
        return [
            jnp.sum(variable),
            jnp.sin(variable),
            jnp.dot(jnp.ones(2), variable),
            jax.nn.relu(variable),
            jnp.where(variable > 2, variable, jnp.float32(0)),
            optax.tree.norm([variable]),
            variable.T,
            variable.reshape(3, 2),
            variable.mean(axis=0),
            *jax.tree.leaves({"w": variable}),
        ]

    expected = [
        value.sum(),
        np.sin(value),
        np.ones(2) @ value,
        value,
        np.where(value > 2, value, 0),
        np.linalg.norm(value),
        value.T,
        value.reshape(3, 2),
        value.mean(0),
        value,
    ]
    for results in (uses(), jd.function(uses)()):
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-6)


def test_a_variable_is_itself_as_argument_of_a_function_and_its_value_as_a_result() -> None:
    strategy = jd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        counter, other = jd.Variable(0.0), jd.Variable(10.0)

    @jd.function
    def add(variables: dict[str, jd.Variable], amount: Any) -> Any:
        variables["it"].assign_add(amount)
        return variables["it"], amount

    results = [add({"it": counter}, jnp.float32(1))[0] for _ in range(3)]
    assert list(map(float, results)) == [1, 2, 3]  # as TensorFlow's, whatever becomes of the variable
    assert float(add({"it": other}, jnp.float32(1))[0]) == 11
    assert (float(counter), float(other)) == (3, 11)
    assert add.experimental_get_tracing_count() == 2


def test_an_unknown_attribute_is_an_error_that_helps() -> None:
    variable = jd.Variable(1.0)
    with pytest.raises(AttributeError, match=r"HINT: use read_value\(\).sharding"):
        variable.sharding  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        variable.nonsense  # noqa: B018


def test_a_write_of_a_constant_does_not_leak_into_a_transformation() -> None:
    variable = jd.Variable(1.0)
    for transformed in (
        jax.jit(lambda: (variable.assign(5.0), None)[1]),
        lambda: jax.grad(lambda x: (variable.assign(5.0), x)[1])(1.0),
    ):
        with pytest.raises(TraceError, match=r"assigned inside a JAX transformation"):
            transformed()
    assert float(variable) == 1
