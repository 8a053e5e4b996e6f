"""`==` and `!=` by value, searches and keys by identity, for all that stands for arrays."""

import operator
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.values.operators import operand
from replicas import components, each_executor, execute, fraction, mirrored, one_device, per_replica, variable

STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "default": jd.get_strategy,
    "one device": lambda: one_device(1),
    "mirrored": lambda: mirrored(2),
    "sharded": lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"]),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
}
each_strategy = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())


@pytest.mark.quick_cases(4)
@each_strategy
@pytest.mark.parametrize("function", [operator.eq, operator.ne])
def test_equality_is_by_value_from_both_sides(make: Callable[[], jd.Strategy], function: Any) -> None:
    left, right = np.array([1.0, 2.0, 3.0], np.float32), np.array([1.0, 5.0, 3.0], np.float32)
    strategy, expected = make(), function(left, right)
    one, two = variable(strategy, left), variable(strategy, right)
    mirrored_value = strategy.place(right)
    for other in (right, jnp.asarray(right), two, mirrored_value):
        np.testing.assert_array_equal(np.asarray(function(one, other)), expected)
        np.testing.assert_array_equal(np.asarray(function(other, one)), expected)
    np.testing.assert_array_equal(one == two, left == right)
    np.testing.assert_array_equal(one != two, left != right)
    np.testing.assert_array_equal(function(one, 3.0), function(left, 3.0))
    np.testing.assert_array_equal(function(1, one), function(1, left))


@each_strategy
def test_a_number_of_steps_can_be_asked_for(make: Callable[[], jd.Strategy]) -> None:
    step, limit = variable(make(), 0), variable(make(), 1000)
    assert not step == 1000  # noqa: SIM201 (the operator is what is tested)
    assert step != 1000
    assert step != limit
    step.assign(1000)
    assert step == 1000
    assert not step != 1000  # noqa: SIM202
    assert step == limit
    assert operator.eq(step, limit)
    assert step in (10, 1000)
    assert step not in (10, 20)


@each_strategy
@each_executor
def test_equality_in_replica_functions(make: Callable[[], jd.Strategy], executor: str) -> None:
    strategy = make()
    v = variable(strategy, [1.0, 2.0])
    w = variable(strategy, [1.0, 3.0])
    result = execute(executor, strategy, lambda: ((v == w), (w != 3.0), v in [w, v], [w, v].index(v)))
    equal, unequal, found, place = (components(part) for part in result)
    assert all(part == [True, False] for part in equal)
    assert all(part == [True, False] for part in unequal)
    assert all(found)
    assert set(place) == {1}


def test_what_is_no_array_is_not_equal() -> None:
    v = jd.Variable([1.0, 2.0])
    for other in (None, "x", object(), {}, jd):
        assert (v == other) is False
        assert (v != other) is True
        assert (other == v) is False
    with pytest.raises(TypeError):
        _ = v == [1.0, 2.0]  # as arrays do
    with pytest.raises(ValueError, match="ambiguous"):
        bool(v == jd.Variable([1.0, 2.0]))


def holders() -> list[list[Any]]:
    """Pairs of distinct objects that hold the same."""
    strategy = mirrored(2)
    scalar, vector = np.float32(0), np.zeros(3, np.float32)
    on_read = {"synchronization": jd.VariableSynchronization.ON_READ}  # without aggregation it cannot be read here
    return [
        *([variable(strategy, value) for _ in range(2)] for value in (scalar, vector)),
        [variable(strategy, vector, **on_read) for _ in range(2)],
        [jd.Variable(vector), jd.Variable(vector)],
        [jd.Variable(vector), jd.Variable(np.zeros(5))],
        [strategy.place(vector), strategy.place(vector)],
        [per_replica(strategy, [vector, vector]), per_replica(strategy, [vector, vector])],
        [variable(strategy, vector), strategy.place(vector)],
    ]


@pytest.mark.parametrize("pair", holders(), ids=lambda pair: type(pair[0]).__name__)
def test_containers_search_by_identity(pair: list[Any]) -> None:
    a, b = pair
    for several in ([a, b], (a, b), deque([a, b])):
        assert b in several
        assert several.index(b) == 1
        assert several.count(b) == 1
    assert b not in [a]
    assert b not in (a, None)
    assert a in [None, "x", b, a]
    with pytest.raises(ValueError):  # noqa: PT011 (list's own)
        [a].index(b)
    rest = [a, b]
    rest.remove(b)
    assert len(rest) == 1
    assert rest[0] is a
    assert {a: 1, b: 2}[b] == 2
    assert len({a, b, a}) == 2
    assert dict.fromkeys([a, b, a]).keys() == {a, b}


class _SameHash(jd.Variable):
    """Variables that a dictionary cannot tell apart by their hashes."""

    __hash__ = lambda self: 7  # type: ignore[assignment] # noqa: E731


def test_keys_whose_hashes_collide() -> None:
    a, b = _SameHash([0.0, 0.0]), _SameHash([0.0, 0.0])
    known = {a: "a", b: "b"}
    assert (known[a], known[b]) == ("a", "b")
    assert known.get(b) == "b"
    assert known.pop(a) == "a"
    assert a not in known
    assert b in known
    assert (a, 1) not in {(b, 1): None}
    assert (b, 1) in {(b, 1): None}


def test_weak_references() -> None:
    a, b = jd.Variable(jnp.zeros(3)), jd.Variable(jnp.zeros(3))
    known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary({a: "a"})
    seen = weakref.WeakSet([a])
    known[b] = "b"
    assert (known[a], known[b], known.get(b)) == ("a", "b", "b")
    assert a in known
    assert a in seen
    assert b not in seen
    seen.discard(a)
    assert a not in seen
    del known[a]
    assert list(known.values()) == ["b"]


@jax.tree_util.register_dataclass
@dataclass
class Held:
    x: Any
    variable: Any = field(metadata={"static": True})


def test_a_variable_as_static_part_of_a_nest() -> None:
    a, b = jd.Variable(0.0), jd.Variable(0.0)
    vectors = jd.Variable([0.0, 0.0]), jd.Variable([0.0, 0.0])
    traced: list[Any] = []

    @jax.jit
    def compiled(held: Any) -> Any:
        traced.append(held.variable)
        return held.x + 1

    @jd.function
    def step(held: Any) -> Any:
        held.variable.assign_add(jnp.ones_like(held.variable))
        return held.x

    for one in (a, b, *vectors):
        compiled(Held(jnp.zeros(2), one))
        compiled(Held(jnp.zeros(2), one))
        step(Held(jnp.zeros(2), one))
    assert [traced.index(one) for one in (a, b, *vectors)] == [0, 1, 2, 3]  # none took the program of another
    assert [one.numpy().tolist() for one in (a, b, *vectors)] == [1.0, 1.0, [1.0, 1.0], [1.0, 1.0]]
    assert jax.tree.structure(Held(1, a)) in [jax.tree.structure(Held(2, a))]
    for one, other in ((a, b), vectors):
        assert jax.tree.structure(Held(1, one)) not in [jax.tree.structure(Held(2, other))]


@dataclass(frozen=True)
class Settings:
    rate: Any
    layers: int = 1


def test_a_compiled_function_that_returns_a_variable() -> None:
    strategy = mirrored(2)
    for value in ([0.0, 0.0], [0.0, 0.0], 0.0, 0.0):
        v = variable(strategy, value)
        returned = jd.function(v.assign_add)(jnp.ones_like(v))
        np.testing.assert_array_equal(returned, v.numpy())
        assert float(v.sum()) == v.size


def test_variables_in_settings_are_compared_by_identity() -> None:
    a, b = jd.Variable(0.0), jd.Variable(0.0)
    assert Settings(a) == Settings(a)
    assert Settings(a) != Settings(b)
    traced: list[Any] = []

    @jax.jit
    def compiled(held: Any) -> Any:
        traced.append(held.variable)
        return held.x

    for one in (Settings(a), Settings(b), Settings(a)):
        compiled(Held(jnp.zeros(2), one))
    assert [held.rate for held in traced].index(b) == 1


def test_variables_as_static_arguments() -> None:
    traced = []

    @jd.function
    def read(v: Any) -> Any:
        traced.append(v)
        return v * 2

    a, b = jd.Variable(1.0), jd.Variable(1.0)
    assert [float(read(v)) for v in (a, b, a, b)] == [2.0, 2.0, 2.0, 2.0]
    b.assign(5.0)
    assert [float(read(v)) for v in (a, b)] == [2.0, 10.0]


def test_comparison_functions_give_arrays() -> None:
    a, b = jd.Variable([1.0, 2.0]), jd.Variable([1.0, 3.0])
    same = operator.eq(a, b)
    assert same.shape == (2,)
    assert same.dtype == bool
    assert not same.all()
    assert same.any()
    np.testing.assert_array_equal(jax.jit(jnp.logical_not)(same), [False, True])
    np.testing.assert_array_equal(next(operator.eq(x, y) for x, y in zip([a], [b], strict=True)), [True, False])
    assert repr(same) == repr(a.read_value() == b.read_value())
    with pytest.raises(ValueError, match="ambiguous"):
        assert operator.eq(a, b)


def test_per_replica_values_compare_component_by_component() -> None:
    strategy = mirrored(2)
    vectors = per_replica(strategy, [np.array([1.0, 2.0]), np.array([3.0, 2.0])])
    others = per_replica(strategy, [np.array([1.0, 0.0]), np.array([3.0, 0.0])])
    assert components(vectors == others) == [[True, False], [True, False]]
    assert components(vectors != others) == [[False, True], [False, True]]
    assert components(vectors == 2.0) == [[False, True], [False, True]]
    assert components(np.float32(1) == vectors) == [[True, False], [False, False]]
    assert components(vectors == np.array([1.0, 2.0])) == [[True, True], [False, True]]
    assert components(vectors == variable(strategy, [3.0, 2.0])) == [[False, True], [True, True]]
    scalars = per_replica(strategy, [np.float32(1), np.float32(2)])
    assert components(scalars == 2) == [False, True]
    uneven = per_replica(strategy, [np.ones(2), np.zeros(1)])
    assert components(uneven == 1.0) == [[True, True], [False]]
    assert components(uneven != uneven) == [[False, False], [False]]
    assert components(per_replica(strategy, ["a", "b"]) == "a") == [True, False]
    assert (vectors == None) is False  # noqa: E711 (the operator is what is tested)
    with pytest.raises(jd.errors.ArgumentTypeError, match="HINT"):
        assert vectors == 1.0


def test_per_replica_values_compare_in_compiled_code() -> None:
    strategy = mirrored(2)

    @jd.function
    def step() -> Any:
        each = strategy.run(fraction)
        return each == 1.0, each != each

    equal, unequal = step()
    assert components(equal) == [False, True]
    assert components(unequal) == [False, False]


@pytest.mark.quick_cases(35)
@pytest.mark.parametrize("left", [np.array([3.0, 3.0], np.float32), np.float32(2), np.ones(2)])
@pytest.mark.parametrize(
    "function", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.lt, operator.eq]
)
@each_strategy
def test_numpy_on_the_left_leaves_it_to_jax(make: Callable[[], jd.Strategy], left: Any, function: Any) -> None:
    strategy = make()
    w = variable(strategy, np.array([2.0, 3.0], np.float32))
    for value in (w, strategy.place(w.numpy())):
        result = operand(function(left, value))
        assert isinstance(result, jax.Array)
        np.testing.assert_allclose(result, function(left, w.numpy()))


@pytest.mark.quick_cases(3)
@each_strategy
@each_executor
def test_numpy_on_the_left_in_gradients_and_replicas(make: Callable[[], jd.Strategy], executor: str) -> None:
    strategy = make()
    rows = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    w = variable(strategy, np.array([2.0, 3.0], np.float32))

    def loss() -> Any:
        return (rows @ w).sum() + (np.float32(2) * w).sum() + (np.ones(2, np.float32) - w).sum()

    for value, gradient in (jd.value_and_grad(loss, w)(), jd.function(jd.value_and_grad(loss, w))()):
        assert float(value) == pytest.approx(8 + 18 + 10 - 3)
        np.testing.assert_allclose(gradient, rows.sum(0) + 1)
    result = execute(executor, strategy, jd.value_and_grad(loss, w))
    for part in components(result[1]):
        np.testing.assert_allclose(part, rows.sum(0) + 1)


@jax.tree_util.register_pytree_node_class
class Beside:
    """A nest with an array, beside which stands a variable."""

    def __init__(self, array: Any, variable: jd.Variable) -> None:
        self.array, self.variable = array, variable

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.array,), self.variable

    @classmethod
    def tree_unflatten(cls, variable: jd.Variable, children: Any) -> "Beside":
        return cls(children[0], variable)


def test_jax_compares_nests_beside_which_variables_stand() -> None:
    v, w = jd.Variable([1.0, 2.0]), jd.Variable([1.0, 2.0])

    def chosen(one: jd.Variable, other: jd.Variable) -> Any:
        return jax.lax.cond(jnp.asarray(True), lambda: Beside(jnp.ones(2), one), lambda: Beside(jnp.zeros(2), other))

    assert chosen(v, v).variable is v
    # Of equal values and yet two variables: a sentence of JAX's, and not that an array has no one truth.
    with pytest.raises(TypeError, match="same"):
        chosen(v, w)
