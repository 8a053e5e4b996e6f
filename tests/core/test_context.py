import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.core import context as contexts
from jaxtribute.errors import ContextError, StrategyMixError
from replicas import each_executor, execute, here, mirrored, one_device


def where() -> tuple[bool, bool, bool]:
    """What the four public questions answer."""
    return jd.has_strategy(), jd.in_cross_replica_context(), jd.get_replica_context() is not None


def in_thread(action: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    thread.join()
    return results[0]


def test_outside_every_scope_is_the_default_replica_context() -> None:
    assert where() == (False, False, True)
    assert here().num_replicas_in_sync == 1
    assert type(here().replica_id_in_sync_group) is int
    assert here().replica_id_in_sync_group == 0
    assert jd.get_strategy() is here().strategy


def test_a_scope_is_cross_replica_context_and_ends() -> None:
    strategy = mirrored(2)
    with strategy.scope() as entered:
        assert entered is strategy
        assert where() == (True, True, False)
        assert jd.get_strategy() is strategy
    assert where() == (False, False, True)


@pytest.mark.parametrize("strategy", [jd.get_strategy(), one_device(1), mirrored(2)])
def test_to_leave_a_scope_that_this_thread_is_not_in_is_an_error(strategy: jd.Strategy) -> None:
    scope = strategy.scope()
    before = where()
    with ThreadPoolExecutor() as other:
        for _ in range(2):
            with scope, pytest.raises(ContextError, match=r"in no scope to leave.*HINT"):
                other.submit(scope.__exit__, None, None, None).result()
            with pytest.raises(ContextError, match=r"in no scope to leave.*HINT"):
                scope.__exit__(None, None, None)
    assert where() == before


@each_executor
@pytest.mark.parametrize("replicas", [1, 2])
def test_run_is_replica_context(executor: str, replicas: int) -> None:
    strategy = mirrored(replicas)
    seen: list[Any] = []

    def fn() -> None:
        seen.append((*where(), jd.get_strategy() is strategy))

    execute(executor, strategy, fn)
    assert set(seen) == {(True, False, True, True)}
    assert where() == (False, False, True)


@each_executor
def test_merge_call_is_cross_replica_context_and_returns_to_the_replica(executor: str) -> None:
    strategy = mirrored(2)
    seen: list[Any] = []

    def fn() -> None:
        here().merge_call(lambda s: seen.append((*where(), s is strategy, jd.get_strategy() is strategy)))
        seen.append(where())

    execute(executor, strategy, fn)
    assert seen[0] == (True, True, False, True, True)
    assert set(seen[1:]) == {(True, False, True)}


def test_the_default_strategy_of_a_merge_call_is_cross_replica() -> None:
    assert here().merge_call(lambda s: (where(), s is jd.get_strategy())) == ((False, True, False), True)


def test_the_scope_of_the_default_strategy_changes_nothing() -> None:
    default = jd.get_strategy()
    with default.scope() as entered:
        assert entered is default
        assert where() == (False, False, True)


def test_contexts_belong_to_their_thread() -> None:
    with mirrored(2).scope():
        assert in_thread(where) == (False, False, True)
    jd.experimental_set_strategy(mirrored(2))
    try:
        assert in_thread(where) == (False, False, True)
    finally:
        jd.experimental_set_strategy(None)


def test_threads_hold_different_scopes_at_once() -> None:
    barrier = threading.Barrier(2, timeout=30)
    names: dict[int, str] = {}

    def hold(index: int) -> None:
        strategy = one_device(index)
        with strategy.scope():
            barrier.wait()
            v = jd.Variable(1.0)
            names[index] = v.device
            barrier.wait()
            assert jd.get_strategy() is strategy

    threads = [threading.Thread(target=hold, args=(index,)) for index in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [names[1][-5:], names[2][-5:]] == ["CPU:1", "CPU:2"]


def test_set_strategy_holds_until_reset() -> None:
    strategy = mirrored(2)
    jd.experimental_set_strategy(strategy)
    try:
        assert jd.get_strategy() is strategy
        assert where() == (True, True, False)
        assert jd.Variable(1.0).distribute_strategy is strategy
        with strategy.scope():
            assert jd.get_strategy() is strategy
        with pytest.raises(StrategyMixError, match=r"OneDeviceStrategy.*MirroredStrategy.*HINT"), one_device(1).scope():
            pass
    finally:
        jd.experimental_set_strategy(None)
    assert where() == (False, False, True)


def test_set_strategy_replaces_what_was_set() -> None:
    jd.experimental_set_strategy(mirrored(2))
    try:
        jd.experimental_set_strategy(one_device(1))
        assert jd.get_strategy() is one_device(1)
    finally:
        jd.experimental_set_strategy(None)


def test_set_strategy_in_a_scope_is_an_error() -> None:
    with mirrored(2).scope(), pytest.raises(ContextError, match=r"inside a scope.*HINT"):
        jd.experimental_set_strategy(None)


def test_entered_leaves_the_stack_as_it_was_when_the_block_raises() -> None:
    before = contexts.depth()

    def failing() -> None:
        with contexts.entered(contexts.current()):
            assert contexts.depth() == before + 1
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert contexts.depth() == before


def test_push_and_pop_are_a_stack() -> None:
    bottom = contexts.current()
    inner = contexts.Context(mirrored(2), None, bottom.executor)
    contexts.push(inner)
    assert contexts.current() is inner
    contexts.pop()
    assert contexts.current() is bottom
