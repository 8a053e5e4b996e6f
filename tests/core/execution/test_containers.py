"""Nests of every kind as arguments and results of replicas, by every executor: also those that JAX does not know."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import attr
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentTypeError, ContextError, JaxtributeError, TraceError
from replicas import components, each_executor, each_strategy, execute, mirrored, one_device, per_replica, variable


class Pair(NamedTuple):
    a: Any
    b: Any


class Named(dict[str, Any]):
    pass


class Ordered(collections.OrderedDict[str, Any]):
    pass


class Defaulting(collections.defaultdict[str, Any]):
    pass


class Row(list[Any]):
    pass


class Fixed(tuple[Any, ...]):
    __slots__ = ()


@dataclasses.dataclass
class Plain:
    a: Any
    b: Any
    note: str = "kept"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any


@attr.s(auto_attribs=True)
class Attrs:
    a: Any
    b: Any


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda a, b: {"a": a, "b": b},
    "OrderedDict": lambda a, b: collections.OrderedDict(b=b, a=a),
    "defaultdict": lambda a, b: collections.defaultdict(list, {"a": a, "b": b}),
    "tuple of a name": Pair,
    "subclass of dict": lambda a, b: Named(a=a, b=b),
    "subclass of OrderedDict": lambda a, b: Ordered(b=b, a=a),
    "subclass of defaultdict": lambda a, b: Defaulting(list, {"a": a, "b": b}),
    "subclass of list": lambda a, b: Row([a, b]),
    "subclass of tuple": lambda a, b: Fixed([a, b]),
    "dataclass": Plain,
    "frozen dataclass": Frozen,
    "attrs": Attrs,
    "within each other": lambda a, b: Named(a=a, b=Row([Plain(b, None)])[0].a),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def parts(nest: Any) -> tuple[Any, Any]:
    if isinstance(nest, dict):
        return nest["a"], nest["b"]
    return (nest[0], nest[1]) if isinstance(nest, (list, tuple)) else (nest.a, nest.b)


@pytest.mark.quick_cases(34, whole=True)
@pytest.mark.parametrize("replicas", [1, 2])
@each_executor
@each_kind
def test_results_have_their_class_with_a_distributed_value_for_each_array(
    replicas: int, executor: str, kind: str
) -> None:
    strategy = mirrored(replicas)
    x = per_replica(strategy, [np.full(2, i, np.float32) for i in range(replicas)])
    found = execute(executor, strategy, lambda x: KINDS[kind](x, x.sum()), x)
    a, b = parts(found)
    assert type(found) is type(KINDS[kind](1, 2))
    assert components(a) == [[i, i] for i in range(replicas)]
    assert components(b) == [2 * i for i in range(replicas)]
    if kind == "dataclass":
        assert found.note == "kept"
    if kind == "subclass of defaultdict":
        assert found["new"] == []


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("inside", ["a nest of values", "a value of nests"])
@each_executor
@each_kind
def test_arguments_are_taken_apart(replicas: int, inside: str, executor: str, kind: str) -> None:
    strategy = mirrored(replicas)
    rows = [np.full(2, i, np.float32) for i in range(replicas)]
    nest = KINDS[kind](per_replica(strategy, rows), jnp.ones(2))
    if inside == "a value of nests":
        nest = per_replica(strategy, [KINDS[kind](row, np.ones(2, np.float32)) for row in rows])

    def added(nest: Any) -> Any:
        a, b = parts(nest)
        return type(nest).__name__ == type(KINDS[kind](1, 2)).__name__, a + b

    same, total = execute(executor, strategy, added, nest)
    assert components(same) == [True] * len(components(same))
    assert components(total) == [[i + 1, i + 1] for i in range(replicas)]


UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "deque": lambda a: collections.deque([a]),
    "ChainMap": lambda a: collections.ChainMap({"a": a}),
    "UserDict": lambda a: collections.UserDict({"a": a}),
    "SimpleNamespace": lambda a: types.SimpleNamespace(a=a),
}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_is_no_container_to_jax_is_refused_with_a_sentence(replicas: int, kind: str) -> None:
    strategy = mirrored(replicas)
    x = per_replica(strategy, [np.ones(2, np.float32)] * replicas)
    for executor in ("lockstep", "compiled"):
        with pytest.raises(ArgumentTypeError, match=rf"(?s){kind}.*HINT.*register"):
            execute(executor, strategy, lambda nest: jnp.ones(2), UNKNOWN[kind](x))
    with pytest.raises(TraceError, match=rf"(?s){kind}.*HINT.*register"):
        jd.function(lambda x: strategy.run(UNKNOWN[kind], (x,)))(x)
    with pytest.raises(TraceError, match=rf"(?s){kind}.*HINT.*register"):
        jd.function(lambda x: UNKNOWN[kind](x + 1))(jnp.ones(2))


def test_objects_that_hold_no_arrays_stay_as_they_are() -> None:
    class Settings(dict[str, Any]):
        pass

    settings = Settings(rate=0.5)
    assert mirrored(2).run(lambda settings: settings, (settings,)) is settings
    assert jax.tree.leaves(settings) == [settings]


NUMPY: dict[str, Callable[[Any], Any]] = {
    "matmul": lambda w: np.matmul(np.ones(2, np.float32), w).sum(),
    "exp": lambda w: np.exp(w).sum(),
    "asarray": lambda w: np.asarray(w).sum(),
    "stack": lambda w: np.stack([w, w]).sum(),
    "numpy": lambda w: w.numpy().sum(),
}


@each_strategy
@pytest.mark.parametrize("how", NUMPY)
def test_numpy_is_told_apart_from_jax_numpy_where_there_are_no_numbers(
    make: Callable[[], jd.Strategy], how: str
) -> None:
    strategy = make()
    w = variable(strategy, np.eye(2, dtype=np.float32))
    fn = NUMPY[how]
    with pytest.raises(ArgumentTypeError, match=r"(?s)NumPy.*HINT.*jnp"):
        strategy.run(jd.grad(lambda: fn(w), w))
    with pytest.raises(ArgumentTypeError, match=r"(?s)NumPy.*HINT.*jnp"):
        jd.function(lambda: strategy.run(lambda: fn(w)))()
    # Eagerly there are numbers.
    assert np.isfinite(np.asarray(components(strategy.run(lambda: fn(w))))).all()


@pytest.mark.parametrize("replicas", [1, 2])
@each_executor
@pytest.mark.parametrize("collective", [jax.lax.pmean, jax.lax.psum, lambda x, axis: x * jax.lax.axis_index(axis)])
def test_an_axis_of_another_name_is_told_the_replicas_one(
    replicas: int, executor: str, collective: Callable[..., Any]
) -> None:
    strategy = one_device(1) if replicas == 1 else mirrored(replicas)
    with pytest.raises(ContextError, match=r"(?s)'batch'.*HINT.*jd\.REPLICA_AXIS"):
        execute(executor, strategy, lambda x: collective(x, "batch"), jnp.ones(2))
    if executor == "lockstep":
        with pytest.raises(ContextError, match=r"(?s)HINT.*all_reduce"):
            execute(executor, strategy, lambda x: collective(x, jd.REPLICA_AXIS), jnp.ones(2))


def test_other_names_that_are_unknown_keep_their_error() -> None:
    with pytest.raises(NameError, match="misspelt") as caught:
        mirrored(2).run(lambda: misspelt)  # noqa: F821 # pyright: ignore[reportUndefinedVariable]
    assert not isinstance(caught.value, JaxtributeError)
