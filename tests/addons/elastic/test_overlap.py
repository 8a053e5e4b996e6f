"""Changes of parameters that travel while islands go on: against the same algorithm in plain JAX and Optax."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.addons.elastic.test_local import DEADLINE_S, OUTER, LocalJob, Simulated, Trained, same_bits
from tests.addons.elastic.test_strategy import Killed, batches

import jaxtribute as jd
from jaxtribute._src.addons.elastic.exchange import Islands
from jaxtribute._src.addons.elastic.fragments import in_turn, split
from jaxtribute.errors import ArgumentError, ClusterError, ContextError, VariableError

EVERY = 4
SIZES = [8, 7, 5, 4, 8, 1, 6, 8, 3, 6, 8, 4]
SENT_ANEW = "what has changed on the islands"


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What islands have given each other within meetings."""
    names: list[str] = []
    gather = Islands.gather

    def noted(islands: Any, arrays: Any, what: str) -> Any:
        names.append(what)
        return gather(islands, arrays, what)

    monkeypatch.setattr(Islands, "gather", noted)
    return names


def until(ready: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.005)


def swapped(trained: Trained) -> None:
    """Puts other values in place of the parameters, as for an evaluation, and these back."""
    before = trained.weights
    for variable in trained.w.values():
        variable.assign(np.zeros(variable.shape, np.float32))
    for name, variable in trained.w.items():
        variable.assign(before[name])


def windows(simulated: Simulated, data: Sequence[Any]) -> None:
    for start in range(0, len(data), EVERY):
        simulated.window(data[start : start + EVERY])


@pytest.mark.quick_cases(9, whole=True)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("overlap", [1, 3])
@pytest.mark.parametrize("devices", [[1], [1, 2], [1, 1, 1]], ids=["1", "1 and 2", "1, 1 and 1"])
def test_training_is_the_algorithm(devices: list[int], overlap: int, compiled: bool, gathered: list[str]) -> None:
    """Two windows; a batch of one example, of which most islands have none; a meeting in the middle of the third."""
    data = batches(SIZES)
    stops = 2 * EVERY + EVERY - 1  # changes travel by then, if they do so for more than a step

    def body(strategy: Any) -> Any:
        trained = Trained(strategy, compiled=compiled).run(data[: 2 * EVERY])
        mid = trained.weights, list(trained.losses)
        trained.run(data[2 * EVERY : stops])
        counts = len(gathered)
        strategy.synchronize()
        return trained, mid, (int(trained.seen), int(trained.first)), gathered[:counts]

    results = LocalJob(devices, sync_every=EVERY, overlap_steps=overlap, outer_optimizer=OUTER).run(body)
    simulated = Simulated(OUTER, list(enumerate(devices)), overlap)
    windows(simulated, data[: 2 * EVERY])
    for rank, (_, (weights, losses), _, _) in enumerate(results):
        for name, own in simulated.own[rank].items():
            np.testing.assert_allclose(weights[name], own, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(losses, simulated.losses[rank], rtol=1e-4, atol=1e-5)
    simulated.window(data[2 * EVERY : stops], whole=True)
    same_bits([trained for trained, *_ in results])
    for rank, (trained, _, counted, names) in enumerate(results):
        simulated.check(trained, rank)
        assert counted == (sum(SIZES[:stops]), stops)
        assert SENT_ANEW not in names


@pytest.mark.quick_cases(9, whole=True)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("devices", [[1], [1, 2], [1, 1, 1]], ids=["1", "1 and 2", "1, 1 and 1"])
def test_fragments_meet_in_turn(devices: list[int], overlap: int, compiled: bool) -> None:
    """A fragment for each of the two parameters; an evaluation with others; a meeting of all, and then some more."""
    data = batches(SIZES)
    parts = [data[:2], data[2:4], data[4:6], data[6:7], data[7:9]]  # the fourth ends by a meeting of all

    def body(strategy: Any) -> Any:
        trained = Trained(strategy, compiled=compiled)
        states: list[Any] = []
        for number, part in enumerate(parts):
            trained.run(part)
            if number == 1:
                swapped(trained)
            if number == 3:
                strategy.synchronize()
            states.append(trained.weights)
        return states, trained.losses, int(trained.seen)

    settings = {"sync_every": 4, "fragments": 2, "overlap_steps": overlap, "outer_optimizer": OUTER}
    results = LocalJob(devices, **settings).run(body)
    simulated = Simulated(OUTER, list(enumerate(devices)), overlap)
    for number, (part, names) in enumerate(zip(parts, ("a", "b", "a", "ab", "b"), strict=True)):
        simulated.window(part, whole=number == 3, names=names)
        for rank, (states, _, _) in enumerate(results):
            for name, own in simulated.own[rank].items():
                np.testing.assert_allclose(states[number][name], own, rtol=1e-5, atol=1e-6, err_msg=f"{number} {name}")
    for rank, (states, losses, seen) in enumerate(results):
        jax.tree.map(np.testing.assert_array_equal, states[3], results[0][0][3])
        np.testing.assert_allclose(losses, simulated.losses[rank], rtol=1e-4, atol=1e-5)
        assert seen == sum(SIZES[:9])


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 12))
def test_fragments_are_of_about_the_same_size(sizes: list[int], count: int) -> None:
    found = split(sizes, count)
    assert found == sorted(found)
    for part in range(count):
        own = sum(size for size, of in zip(sizes, found, strict=True) if of == part)
        assert own <= sum(sizes) / count + max(sizes, default=0)


@pytest.mark.parametrize("outer", [OUTER, optax.adam(0.1), optax.adamw(0.1, mask={"a": True, "b": False})])
def test_a_fragment_that_has_not_its_turn_stays_as_it_is(outer: Any) -> None:
    """As if each fragment had an optimizer of its own."""
    values: Any = {"a": jnp.arange(6.0), "b": jnp.ones(5)}
    transform = in_turn(outer, [0, 1], 2)
    state: Any = transform.init(values)
    params: Any = values
    own = {name: {name: value} for name, value in values.items()}
    masked = {name: jax.tree.map(lambda _: optax.MaskedNode(), values) for name in values}
    states = {name: outer.init(masked[name] | own[name]) for name in values}
    for number, turn in enumerate(["a", "b", "ab", "b"]):
        grads = {name: (number + 1) * value for name, value in values.items()}
        with jax.numpy_dtype_promotion("standard"):
            updates, state = transform.update(grads, state, params, turn=jnp.asarray(["a" in turn, "b" in turn]))
            params = optax.apply_updates(params, updates)
            for name in turn:
                given, nest = masked[name] | {name: grads[name]}, masked[name] | own[name]
                changes, states[name] = outer.update(given, states[name], nest)
                own[name] = {name: own[name][name] + changes[name]}
        for name in values:
            np.testing.assert_allclose(params[name], own[name][name], rtol=1e-6)


@pytest.mark.parametrize("wire", ["bfloat16", "int8", "int4"])
def test_changes_travel_in_a_small_type(wire: str) -> None:
    start = np.random.default_rng(5).normal(size=(2, 5000)).astype("float32")

    def trained(wire: str | None) -> list[Any]:
        def body(strategy: Any) -> Any:
            with strategy.scope():
                w = jd.Variable(start, name="w")
                jd.Optimizer(optax.sgd(1.0), [w])
            own = np.random.default_rng(strategy.island).normal(size=start.shape).astype("float32")
            step = jd.function(lambda: strategy.run(lambda: w.assign_sub(jnp.asarray(own))))
            for _ in range(2):
                step()
            return np.asarray(w) + own  # without the second step, which is its own

        options = jd.experimental.CommunicationOptions(wire=wire)
        settings = {"outer_optimizer": optax.sgd(1.0), "communication_options": options}
        return LocalJob([1, 1], sync_every=2, overlap_steps=1, **settings).run(body)

    results, exact = trained(wire), trained(None)
    for ours, theirs in zip(results, exact, strict=True):
        assert 0 < np.abs(ours - theirs).max() < (0.3 if wire == "int4" else 0.02)
    np.testing.assert_allclose(*exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("overlap", [0, 1])
def test_feedback_sends_later_what_rounding_has_lost(overlap: int) -> None:
    """The same change at each meeting, of which int4 rounds away the same again and again."""
    change = np.random.default_rng(5).normal(size=640).astype("float32")
    meetings = 20

    def off(feedback: bool) -> float:
        def body(strategy: Any) -> Any:
            with strategy.scope():
                w = jd.Variable(np.zeros_like(change), name="w")
                jd.Optimizer(optax.sgd(1.0), [w])
            step = jd.function(lambda: strategy.run(lambda: w.assign_sub(change)))
            for _ in range(2 * meetings):
                step()
            return np.abs(np.asarray(w) + 2 * meetings * change).max()

        options = jd.experimental.CommunicationOptions(wire="int4", error_feedback=feedback)
        settings = {"outer_optimizer": optax.sgd(1.0), "communication_options": options}
        (error, other) = LocalJob([1, 1], sync_every=2, overlap_steps=overlap, **settings).run(body)
        np.testing.assert_allclose(error, other, rtol=1e-5)
        return float(error)

    # Half a step of rounding, once: a step is a seventh of what a block's largest element comes to.
    once = 2 * np.abs(change).max() / 7
    assert off(feedback=True) <= once
    assert off(feedback=False) > 4 * once


@pytest.mark.parametrize("moment", [EVERY + 1, EVERY + 3], ids=["before they travel", "while they travel"])
def test_changes_of_a_dead_island_are_lost(moment: int, gathered: list[str]) -> None:
    data = batches(SIZES)
    gone = threading.Event()

    def body(strategy: Any) -> Trained | None:
        def each(number: int) -> None:
            if number != moment:
                return
            if strategy.island == 1:
                strategy.close()
                gone.set()
                raise Killed
            assert gone.wait(DEADLINE_S)

        with contextlib.suppress(Killed):
            return Trained(strategy).run(data, each)
        return None

    settings = {"sync_every": EVERY, "overlap_steps": 2, "outer_optimizer": OUTER}
    results = LocalJob([1, 2, 1], **settings).run(body)
    simulated = Simulated(OUTER, [(0, 1), (1, 2), (2, 1)], 2)
    for start in range(0, len(data), EVERY):
        simulated.window(data[start : start + EVERY], {1: moment - EVERY} if start == EVERY else None)
    for rank in (0, 2):
        trained = results[rank]
        assert trained is not None
        simulated.check(trained, rank)
    if moment == EVERY + 3:  # those who are left send again what had travelled
        assert SENT_ANEW in gathered


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("mortal", [0, 1])
def test_an_island_that_comes_back_gets_what_is_common(mortal: int, fragments: int) -> None:
    data = batches(SIZES)
    settings = {"sync_every": fragments * EVERY, "overlap_steps": 2, "fragments": fragments}
    job = LocalJob([1, 1], outer_optimizer=OUTER, **settings)
    left = threading.Event()

    def stays() -> Trained:
        with contextlib.closing(job.strategy(1 - mortal)) as strategy:

            def each(number: int) -> None:
                if number == 2 * EVERY - 1:  # its changes travel, and the other is taken in at the meeting
                    left.set()
                    until(lambda: len(strategy.islands) == 2 and strategy.extended.mesh.islands.view.number > 1)

            trained = Trained(strategy).run(data, each)
            strategy.synchronize()
            return trained

    def lives() -> Trained:
        def dies(number: int) -> None:
            if number == EVERY + 1:
                strategy.close()
                raise Killed

        with contextlib.closing(job.strategy(mortal)) as strategy, contextlib.suppress(Killed):
            Trained(strategy).run(data, dies)
        assert left.wait(DEADLINE_S)
        with contextlib.closing(job.strategy(mortal, 1)) as strategy:
            trained = Trained(strategy).run(data)
            strategy.synchronize()
            return trained

    with ThreadPoolExecutor(2) as pool:
        other, joined = (future.result(2 * DEADLINE_S) for future in [pool.submit(stays), pool.submit(lives)])
    same_bits([other, joined])
    np.testing.assert_array_equal(joined.losses[: 2 * EVERY], other.losses[: 2 * EVERY])
    assert joined.losses[2 * EVERY :] != other.losses[2 * EVERY :]
    slots = [trained.strategy.outer_optimizer.variables for trained in (joined, other)]
    for mine, theirs in zip(*slots, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_changes_are_there_before_they_are_asked_for() -> None:
    """The other island's changes arrive while this one does nothing that concerns the others."""
    data = batches([8] * EVERY)

    def body(strategy: Any) -> None:
        inbox = strategy.extended.mesh.islands._mail._inbox  # pyright: ignore[reportPrivateUsage]

        def each(number: int) -> None:
            if number == EVERY - 1:
                until(lambda: inbox)

        Trained(strategy).run(data, each)

    LocalJob([1, 1], sync_every=EVERY, overlap_steps=1).run(body)


def test_a_parameter_that_is_assigned_while_no_island_has_the_common_value_is_refused() -> None:
    data = batches([8] * EVERY)
    settings = {"sync_every": EVERY, "overlap_steps": 1, "outer_optimizer": OUTER}

    def trained(evaluates: bool) -> dict[str, Any]:
        with contextlib.closing(LocalJob([1], **settings).strategy(0)) as strategy:
            trained = Trained(strategy).run(data)
            if evaluates:
                swapped(trained)
            return trained.run(data).weights

    jax.tree.map(np.testing.assert_array_equal, trained(evaluates=True), trained(evaluates=False))
    with contextlib.closing(LocalJob([1], **settings).strategy(0)) as strategy:
        made = Trained(strategy).run(data)
        made.w["a"].assign(np.ones(4, np.float32))
        with pytest.raises(VariableError, match=r"a:0 was assigned after a meeting .* strategy.synchronize\(\) before"):
            made.run(data)
    with contextlib.closing(LocalJob([1], **settings).strategy(0)) as strategy:
        made = Trained(strategy).run(data)
        strategy.synchronize()
        made.w["a"].assign(np.ones(4, np.float32))
        made.run(data)


def test_an_overlap_as_long_as_a_window_is_refused() -> None:
    elastic = jd.experimental.ElasticStrategy
    with pytest.raises(ArgumentError, match=r"overlap_steps is 2, and islands meet after 2: .* HINT: pass 1 or fewer"):
        elastic(sync_every=2, overlap_steps=2)
    with pytest.raises(ArgumentError, match=r"fragments is 3, and sync_every 4: .* HINT: pass a number that divides"):
        elastic(sync_every=4, fragments=3)
    with pytest.raises(ArgumentError, match=r"overlap_steps is 2, and islands meet after 2"):
        elastic(sync_every=4, fragments=2, overlap_steps=2)
    with pytest.raises(ArgumentError, match="fragments is 2, and sync_every is None"):
        elastic(fragments=2)
    with pytest.raises(ArgumentError, match="overlap_steps is 1, and sync_every is None"):
        elastic(overlap_steps=1)
    with pytest.raises(ArgumentError, match="overlap_steps"):
        elastic(sync_every=2, overlap_steps=-1)


@pytest.mark.parametrize("overlap", [0, 2])
def test_a_parameter_that_is_made_after_the_first_step_is_refused_on_all_islands(overlap: int) -> None:
    data = batches([8] * 2 * EVERY)

    def body(strategy: Any) -> str:
        trained = Trained(strategy)

        def each(number: int) -> None:
            if number == EVERY - 1:  # changes travel already
                with strategy.scope():
                    trained.late = jd.Variable(1.0, name="late")  # pyright: ignore[reportAttributeAccessIssue]
                    jd.Optimizer(optax.sgd(0.1), [trained.late])  # pyright: ignore[reportAttributeAccessIssue]

        with pytest.raises(VariableError, match=r"late:0.* made after") as error:
            trained.run(data, each)
        return str(error.value)

    assert all(LocalJob([1, 1], sync_every=EVERY, overlap_steps=overlap).run(body))


@pytest.mark.parametrize("overlap", [0, 2])
def test_islands_that_meet_after_different_steps_are_told_so(overlap: int) -> None:
    data = batches([8] * 2 * EVERY)

    def body(strategy: Any) -> str:
        def each(number: int) -> None:
            if number == EVERY + 1 and strategy.island == 1:
                strategy.synchronize()

        with pytest.raises(ClusterError) as error:
            Trained(strategy).run(data, each)
        return str(error.value)

    told = LocalJob([1, 1], sync_every=EVERY, overlap_steps=overlap).run(body)
    for text in told:
        assert "island 0 meets after 4 step(s), island 1 calls synchronize() after 1 step(s). HINT" in text


def test_a_meeting_within_a_step_is_refused() -> None:
    with contextlib.closing(LocalJob([1], sync_every=2).strategy(0)) as strategy:
        Trained(strategy)
        calls: list[Any] = [jd.function(strategy.synchronize), lambda: strategy.run(strategy.synchronize)]
        for call in calls:
            with pytest.raises(ContextError, match=r"a meeting is between steps. HINT"):
                call()


def test_a_process_is_an_island_once() -> None:
    job = LocalJob([1, 1], sync_every=2)

    def body(strategy: Any) -> None:
        with pytest.raises(ClusterError, match=f"this process is island {strategy.island} of .* already"):
            job.strategy(strategy.island)

    job.run(body)
