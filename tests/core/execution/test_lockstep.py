import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.execution.regrouping import components as split
from jaxtribute._src.core.execution.regrouping import regroup
from jaxtribute.errors import ContextError
from replicas import components, fraction, here, ident, mirrored, per_replica, variable


def test_replicas_run_in_order_on_their_devices() -> None:
    seen: list[Any] = []

    def fn() -> Any:
        made = jnp.ones(2)
        seen.append((int(ident()), made.devices().pop().id))
        return made

    mirrored(3).run(fn)
    assert seen == [(0, 0), (1, 1), (2, 2)]


def test_any_python_goes() -> None:
    def fn(words: Any) -> Any:
        total = 0.0
        while total < 2.0 + int(ident()):
            total += 1.0
        return {"total": total, "word": words[int(ident())], "host": np.full(2, total)}

    result = mirrored(2).run(fn, (["a", "b"],))
    assert result["total"].values == (2.0, 3.0)  # pyright: ignore[reportAttributeAccessIssue]
    assert result["word"].values == ("a", "b")  # pyright: ignore[reportAttributeAccessIssue]
    assert components(result["host"]) == [[2.0, 2.0], [3.0, 3.0]]


def test_the_same_object_comes_back_unwrapped() -> None:
    v, marker, x = variable(mirrored(2), 1.0), object(), jnp.ones(2)
    result = mirrored(2).run(lambda: (v, marker, x, 3, "text", None))
    assert result[0] is v
    assert result[1] is marker
    assert result[2] is x
    assert result[3:] == (3, "text", None)


def test_copies_of_one_value_come_back_as_it() -> None:
    strategy = mirrored(2)
    v, same = variable(strategy, [1.0, 2.0]), strategy.place(3.0)
    read, argument, reduced = strategy.run(lambda x: (v.read_value(), x, here().all_reduce("SUM", fraction())), (same,))
    assert {type(x) for x in (read, argument, reduced)} == {jd.Mirrored}
    assert components(read) == [[1.0, 2.0]] * 2
    assert components(argument) == [3.0, 3.0]
    assert components(reduced) == [1.0, 1.0]


def test_one_replica_returns_plain_values() -> None:
    assert mirrored(1).run(lambda: 3) == 3
    assert isinstance(mirrored(1).run(lambda: jnp.ones(2)), jax.Array)
    wrapped = per_replica(mirrored(1), [jnp.float32(1)])
    assert isinstance(wrapped, jd.PerReplica)
    assert float(mirrored(1).run(lambda x: x + 1, (wrapped,))) == 2.0


def test_results_of_different_structure() -> None:
    with pytest.raises(ContextError, match=r"replica 0 returned .*replica 1 .*HINT: the function must return the same"):
        mirrored(2).run(lambda: [1] if int(ident()) == 0 else [1, 2])
    with pytest.raises(ContextError, match=r"returned PerReplica, a value of all replicas.*HINT: return the replica"):
        mirrored(2).run(per_replica_value)


def per_replica_value() -> Any:
    return jd.PerReplica.from_parts([1.0, 2.0], mirrored(2).extended.mesh)


def test_results_of_different_shapes_are_ragged() -> None:
    result = mirrored(2).run(lambda: jnp.ones(int(ident()) + 1))
    assert result.is_ragged  # pyright: ignore[reportAttributeAccessIssue]
    assert components(result) == [[1.0], [1.0, 1.0]]
    again = mirrored(2).run(lambda x: x * 2, (result,))
    assert components(again) == [[2.0], [2.0, 2.0]]


def test_arrays_of_all_devices_are_split_where_they_enter() -> None:
    strategy = mirrored(2)
    total = strategy.reduce("SUM", strategy.run(fraction), axis=None)
    far = jax.device_put(jnp.float32(5), jax.devices()[6])
    each, same = strategy.run(lambda x, y: (x + fraction(), y * 2), (total, far))
    assert components(each) == [1.0, 2.0]
    assert components(same) == [10.0, 10.0]
    merged = strategy.run(
        lambda: here().merge_call(lambda s, x: s.reduce("SUM", x, axis=None), (fraction(),)) + fraction()
    )
    assert components(merged) == [1.0, 2.0]


def test_an_array_of_all_devices_from_around_the_function_meets_those_of_a_replica() -> None:
    strategy = mirrored(2)
    total = strategy.reduce("SUM", strategy.run(fraction), axis=None)
    assert components(strategy.run(lambda: total + fraction())) == [1.0, 2.0]


def test_arrays_from_around_the_function_that_lie_apart_are_explained() -> None:
    one, other = (jax.device_put(np.float32(1), device) for device in jax.devices()[2:4])
    with pytest.raises(ValueError, match="incompatible devices") as failure:
        mirrored(2).run(lambda: one + other)
    assert any("HINT: pass arrays that lie elsewhere" in note for note in failure.value.__notes__)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "careless",
    [
        lambda x: x.reshape(x.shape[0], 7, -1),
        lambda x: x.max(),
        lambda x: 1 / len(x),
        lambda x: x.reshape(4, -1),  # the rows of the whole batch
        lambda x: x - jnp.zeros((4, 7)),
        lambda x: x[0],
        jnp.median,
        lambda x: jnp.quantile(x, 0.5),
        lambda x: jnp.take(x, jnp.array([0]), axis=0),
        lambda x: jax.lax.top_k(x[:, 0], 1),
        lambda x: jax.random.choice(jax.random.key(0), x, (2,)),
        lambda x: jax.lax.fori_loop(0, 2, lambda i, total: total + x[i].sum(), 0.0),
    ],
)
def test_what_replicas_of_fewer_rows_or_none_cannot_compute_is_explained(
    careless: Callable[[jax.Array], Any], *, compiled: bool
) -> None:
    strategy = mirrored(3)
    examples = strategy.experimental_make_numpy_dataset(np.ones((4, 7), np.float32))
    batch = next(iter(strategy.experimental_distribute_dataset(examples.batch(4))))
    run = jd.function(strategy.run) if compiled else strategy.run
    with pytest.raises((TypeError, ValueError, IndexError, ZeroDivisionError)) as failure:
        run(careless, (batch,))
    assert any("a part of the batch's rows, or none" in note for note in failure.value.__notes__)


def of_no_rows(x: jax.Array) -> Any:
    raise OSError("at least one row, please") if not x.shape[0] else LookupError("never mind")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (lambda x: jnp.stack(list(x)), True),
        (lambda x: x if x.shape[0] else of_no_rows(x), True),
        (of_no_rows, False),  # which a replica with rows says first
        (lambda x: here().all_reduce("SUM", x.sum()) if x.shape[0] else here().all_gather(x.sum(), axis=0), False),
    ],
    ids=["library", "own", "all replicas", "this library"],
)
def test_any_error_of_a_replica_without_rows_tells_of_that(fails: Any, told: bool, compiled: bool) -> None:
    strategy = mirrored(3)
    (batch,) = strategy.experimental_distribute_dataset([np.ones((2, 7), np.float32)])
    run = jd.function(strategy.run) if compiled else strategy.run
    with pytest.raises((ValueError, OSError, LookupError, jd.errors.JaxtributeError)) as failure:
        run(fails, (batch,))
    assert told == any("or none: take x.shape[0]" in note for note in getattr(failure.value, "__notes__", ()))


@pytest.mark.parametrize("derivative", [jax.jacfwd, lambda f: lambda w: jax.jvp(f, (w,), (w,))], ids=["jacfwd", "jvp"])
def test_forward_derivatives_of_collectives_are_for_compiled_steps(derivative: Callable[..., Any]) -> None:
    def replica(x: jax.Array) -> Any:
        return derivative(lambda w: jnp.tanh(here().all_gather(x * w, axis=0)).sum())(jnp.float32(1))

    strategy = mirrored(2)
    (batch,) = strategy.experimental_distribute_dataset([np.ones((3,), np.float32)])
    jd.function(strategy.run)(replica, (batch,))
    with pytest.raises(TypeError) as failure:
        strategy.run(replica, (batch,))
    assert any("call strategy.run within a jd.function" in note for note in failure.value.__notes__)


def test_a_mistake_of_shapes_outside_of_replicas_has_no_hint_at_rows() -> None:
    with pytest.raises(TypeError) as failure:
        jd.function(lambda x: x + jnp.zeros((2, 5)))(jnp.zeros((4, 3)))
    assert not any("rows" in note for note in getattr(failure.value, "__notes__", ()))


def test_different_collectives_name_the_lines() -> None:
    def fn() -> Any:
        if int(ident()) == 0:
            return here().all_reduce("SUM", fraction())
        return here().all_gather(fraction()[None], axis=0)

    line = fn.__code__.co_firstlineno
    with pytest.raises(ContextError) as failure:
        mirrored(3).run(fn)
    text = str(failure.value)
    assert f"replica 0 calls all_reduce at {__file__}:{line + 2}" in text
    assert f"replica 2 calls all_gather at {__file__}:{line + 3}" in text
    assert "HINT" in text


def test_a_collective_on_some_replicas_only() -> None:
    with pytest.raises(ContextError, match=r"(?s)replica 0 calls merge_call of .*replica 1 has ended"):
        mirrored(2).run(lambda: here().merge_call(lambda s: None) if int(ident()) == 0 else None)
    with pytest.raises(ContextError, match=r"(?s)replica 0 has ended.*replica 1 calls jd.Variable"):
        mirrored(2).run(lambda: jd.Variable(1.0) if int(ident()) == 1 else None)


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
def test_an_exception_in_one_replica(kind: type[BaseException]) -> None:
    strategy = mirrored(3)

    def fn() -> None:
        here().all_reduce("SUM", 1.0)
        if int(ident()) == 1:
            raise kind("cause")
        here().all_reduce("SUM", 1.0)

    for _ in range(2):
        with pytest.raises(kind, match="cause"):
            strategy.run(fn)
    assert not jd.has_strategy()
    assert components(strategy.run(ident)) == [0, 1, 2]


def test_the_error_of_a_mismatch_cannot_be_swallowed() -> None:
    def fn() -> Any:
        try:
            return here().all_reduce("SUM", 1.0) if int(ident()) == 0 else None
        except Exception:  # noqa: BLE001
            return "swallowed"

    with pytest.raises(ContextError, match="do not meet"):
        mirrored(2).run(fn)


def test_writes_of_cross_replica_code_are_seen() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 1.0)

    def fn() -> Any:
        before = v.read_value()
        here().merge_call(lambda s: v.assign_add(1.0))
        return before + fraction(), v.read_value()

    before, after = strategy.run(fn)
    assert components(before) == [1.0, 2.0]
    assert components(after) == [2.0, 2.0]


def test_a_step_calls_no_thread_without_meetings() -> None:
    before = threading.active_count()
    seen: list[int] = []
    mirrored(4).run(lambda: seen.append(threading.active_count()))
    assert set(seen) == {before}


def test_split_and_regroup_are_inverse() -> None:
    strategy = mirrored(2)
    mesh = strategy.extended.mesh
    nest = {"a": per_replica(strategy, [jnp.ones(1), jnp.zeros(1)]), "b": [3, per_replica(strategy, ["x", "y"])]}
    one, two = split(nest, mesh)
    assert one["b"] == [3, "x"]
    assert two["b"] == [3, "y"]
    again = regroup([one, two], mesh)
    assert components(again["a"]) == [[1.0], [0.0]]
    assert again["b"][0] == 3
    assert again["b"][1].values == ("x", "y")
    assert regroup([1, 1], mesh) == 1
    assert regroup([1, 1], mesh, always=True).values == (1, 1)


def test_a_variable_begins_with_what_replica_0_has() -> None:
    strategy = mirrored(2)
    own = variable(strategy, 0.0, synchronization="on_read", aggregation="sum", trainable=False)

    def fn() -> Any:
        own.assign(jnp.asarray(1.0 + int(ident())))
        return jd.Variable(lambda: own.read_value() * 10, name="v").read_value()

    assert components(strategy.run(fn)) == [10.0, 10.0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["variable", "placed"])
def test_what_is_no_array_to_functions_of_lax_is_explained(kind: str, compiled: bool) -> None:
    strategy = mirrored(2)
    value: Any = variable(strategy, jnp.arange(4.0)) if kind == "variable" else strategy.place(jnp.arange(4.0))

    def run(convert: Any) -> Any:
        return strategy.run(lambda: jax.lax.dynamic_slice_in_dim(convert(value), 1, 2))

    use: Any = jd.function(run) if compiled else run
    with pytest.raises(ValueError, match="__jax_array__") as failure:
        use(lambda x: x)
    hints = [
        note for note in failure.value.__notes__ if note.startswith("HINT: functions of jax.lax take arrays alone")
    ]
    assert len(hints) == 1, failure.value.__notes__
    assert components(use(jnp.asarray)) == [[1.0, 2.0]] * 2
