from collections.abc import Callable
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.core import context as contexts
from jaxtribute.errors import ContextError, StrategyMixError
from replicas import each_executor, execute, here, ident, mirrored, one_device


def test_the_same_strategy_nests() -> None:
    strategy = mirrored(2)
    with strategy.scope(), strategy.scope():
        assert jd.get_strategy() is strategy
    assert not jd.has_strategy()


def test_another_strategy_does_not_nest() -> None:
    with (
        mirrored(2).scope(),
        pytest.raises(
            StrategyMixError, match=r"mixing OneDeviceStrategy with MirroredStrategy.*HINT: leave that scope"
        ),
        one_device(0).scope(),
    ):
        pass
    assert not jd.has_strategy()


def test_an_equal_strategy_is_another_strategy() -> None:
    with mirrored(2).scope(), pytest.raises(StrategyMixError), jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        pass


def test_the_default_scope_does_not_nest_in_a_real_one() -> None:
    default = jd.get_strategy()
    with (
        mirrored(2).scope(),
        pytest.raises(StrategyMixError, match=r"must not nest inside the scope of MirroredStrategy.*HINT"),
        default.scope(),
    ):
        pass


def test_a_scope_object_may_be_entered_again_also_within_itself() -> None:
    scope = mirrored(2).scope()
    for _ in range(2):
        with scope, scope:
            assert jd.get_strategy() is mirrored(2)
        assert not jd.has_strategy()


def test_a_scope_object_is_entered_again_within_itself() -> None:
    scope = jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope()
    with scope as outer:
        with scope as inner:
            assert inner is outer is jd.get_strategy()
        nested = outer.scope()
        with nested:
            pass
        assert jd.get_strategy() is outer
    with nested:
        assert jd.get_strategy() is outer
    assert not jd.has_strategy()
    default = jd.get_strategy().scope()
    with default, default:
        assert not jd.has_strategy()
    with default:
        assert not jd.has_strategy()


def test_a_refused_scope_can_be_entered_later() -> None:
    scope = one_device(1).scope()
    with mirrored(2).scope(), pytest.raises(StrategyMixError), scope:
        pass
    with scope:
        assert jd.get_strategy() is one_device(1)


def test_an_exception_leaves_the_scope() -> None:
    def failing() -> None:
        with mirrored(2).scope():
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert not jd.has_strategy()


def forbidden(strategy: jd.Strategy) -> dict[str, Callable[[], Any]]:
    def scope() -> None:
        with strategy.scope():
            pass

    return {
        "scope": scope,
        "run": lambda: strategy.run(ident),
        "reduce": lambda: strategy.reduce("MEAN", 1.0, axis=None),
        "gather": lambda: strategy.gather(1.0, axis=0),
        "distribute_values": lambda: strategy.experimental_distribute_values_from_function(lambda c: 1),
    }


@each_executor
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("what", sorted(forbidden(jd.get_strategy())))
def test_cross_replica_calls_are_refused_in_a_replica(executor: str, replicas: int, what: str) -> None:
    strategy = mirrored(replicas)
    with pytest.raises(ContextError, match=r"inside a function that strategy.run executes.*HINT.*merge_call"):
        execute(executor, strategy, forbidden(strategy)[what])
    assert not jd.has_strategy()


@each_executor
def test_cross_replica_calls_are_allowed_in_a_merge_call(executor: str) -> None:
    strategy = mirrored(2)

    def merged(strategy: jd.Strategy, x: Any) -> Any:
        with strategy.scope():
            return strategy.reduce("SUM", x, axis=None)

    result = execute(executor, strategy, lambda: here().merge_call(merged, (ident(),)))
    assert [int(x) for x in strategy.experimental_local_results(result)] == [1, 1]


@pytest.mark.parametrize("what", ["run", "reduce", "gather", "distribute_values"])
def test_another_strategys_calls_are_refused_in_a_scope(what: str) -> None:
    with mirrored(2).scope(), pytest.raises(StrategyMixError, match=r"HINT"):
        forbidden(mirrored(3))[what]()


def test_set_strategy_in_a_replica_is_an_error() -> None:
    with pytest.raises(ContextError, match=r"MirroredStrategy.*HINT: call it at the top level"):
        mirrored(2).run(lambda: jd.experimental_set_strategy(None))


def test_set_strategy_to_the_default_strategy_resets() -> None:
    default = jd.get_strategy()
    jd.experimental_set_strategy(mirrored(2))
    jd.experimental_set_strategy(default)
    assert not jd.has_strategy()


def test_run_under_a_set_strategy() -> None:
    strategy = mirrored(2)
    jd.experimental_set_strategy(strategy)
    try:
        result = strategy.run(ident)
        assert [int(x) for x in result.values] == [0, 1]
        assert jd.in_cross_replica_context()
    finally:
        jd.experimental_set_strategy(None)


def test_a_strategy_that_cannot_be_set_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = mirrored(2), mirrored(3)

    def fail() -> None:
        raise OSError("no devices left")

    jd.experimental_set_strategy(first)
    try:
        monkeypatch.setattr(contexts, "entering", [fail])
        with pytest.raises(OSError, match="no devices left"):
            jd.experimental_set_strategy(second)
        assert jd.get_strategy() is first
    finally:
        monkeypatch.undo()
        jd.experimental_set_strategy(None)
    assert not jd.has_strategy()
