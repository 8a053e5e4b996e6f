"""Islands that die and come back, each in a thread of this process: the result is that of one device."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.addons.elastic.test_exchange import islands, summing, together
from tests.addons.elastic.test_strategy import Job, Killed
from tests.support.processes import free_ports

import jaxtribute as jd
from jaxtribute._src.addons.elastic.exchange import Islands
from jaxtribute._src.addons.elastic.joining import ASKS, STATE
from jaxtribute._src.addons.elastic.journal import LARGEST, Entry, Journal, entries_in, rebuilt
from jaxtribute._src.addons.elastic.links import Lane, Links
from jaxtribute._src.addons.elastic.membership import Island, View
from jaxtribute.errors import ClusterError, DeadlineError
from replicas import here

DEADLINE_S = 60.0


@dataclass
class History:
    """What happens to the islands of a job.

    Attributes:
      count: the number of islands; the one of rank `immortal` never dies.
      deaths: ranks and the steps before which they die, each once.
      sizes: of the batches.
    """

    count: int
    immortal: int
    deaths: list[tuple[int, int]]
    sizes: list[int]
    delays: list[float]
    done: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    @classmethod
    def drawn(cls, seed: int) -> History:
        chance = np.random.default_rng(seed)
        count = int(chance.choice([2, 3, 3, 4]))
        immortal = int(chance.integers(count))
        sizes = [int(size) for size in chance.choice([7, 2], 10)]
        mortal = [rank for rank in range(count) if rank != immortal]
        deaths = {(int(chance.choice(mortal)), int(chance.integers(0, 7))) for _ in range(int(chance.integers(1, 5)))}
        return cls(count, immortal, sorted(deaths), sizes, [float(each) for each in chance.uniform(0, 0.3, 9)])

    def all_are_back(self, strategy: Any) -> bool:
        """True if all have died as they should, and are in the view again."""
        members = strategy.extended.islands_mesh.islands.view.members
        return len(members) == self.count and sum(member.incarnation for member in members) == len(self.deaths)

    def data(self) -> list[tuple[Any, Any, Any]]:
        chance = np.random.default_rng(3)
        made: list[tuple[Any, Any, Any]] = []
        for size in self.sizes:
            x = chance.normal(size=(size, 4)).astype("float32")
            ids = np.arange(size, dtype="int32") + 1 + sum(len(each[0]) for each in made)
            made.append((x, x @ np.arange(1, 5, dtype="float32"), ids))
        return made


Each = Callable[[int, list[float]], None]


def training(strategy: jd.Strategy, data: list[Any], *, compiled: bool, each: Each | None = None) -> Any:
    """Trains a linear model with Adam; returns the losses, the sum of the examples' ids, and the weights."""
    with strategy.scope():
        w = jd.Variable(jnp.zeros(4), name="w")
        ledger = jd.Variable(0, aggregation=jd.VariableAggregation.SUM, name="ledger")
        optimizer = jd.Optimizer(optax.adam(0.1), [w])

    def replica(x: jax.Array, y: jax.Array, ids: jax.Array, total: jax.Array) -> jax.Array:
        loss, grads = jd.value_and_grad(lambda: jnp.sum((x @ w - y) ** 2) / total, [w])()
        optimizer.apply_gradients(zip(grads, [w], strict=True))
        ledger.assign_add(jnp.sum(ids).astype(jnp.int32))
        return here().all_reduce("SUM", loss)

    @jd.function
    def step(x: Any, y: Any, ids: Any, total: jax.Array) -> jax.Array:
        return strategy.reduce("MEAN", strategy.run(replica, (x, y, ids, total)), axis=None)

    seen: list[float] = []
    for number, batch in enumerate(strategy.experimental_distribute_dataset(data)):
        if each is not None:
            each(number, seen)
        total = jnp.float32(len(data[number][0]))
        if compiled:
            x, y, ids = batch
            loss = step(x, y, ids, total)
        else:
            loss = strategy.reduce("MEAN", strategy.run(replica, (*batch, total)), axis=None)
        seen.append(float(loss))
        if number % 3 == 1:
            seen.append(float(ledger))  # which a newcomer has not computed
    return seen, int(ledger), np.asarray(w)


def lives(job: Job, rank: int, history: History, body: Callable[..., Any]) -> Any:
    """Starts an island again and again, until its program has ended; returns what it returned, and its last number."""
    for incarnation in range(20):
        strategy = job.strategy(rank, incarnation)

        def each(number: int, seen: list[float], strategy: Any = strategy) -> None:
            death = rank, number
            if death in history.deaths and death not in history.done:
                history.done.add(death)
                strategy.close()
                raise Killed
            if rank == history.immortal and number == len(history.sizes) - 2:
                end = time.monotonic() + DEADLINE_S
                while not history.all_are_back(strategy):
                    assert time.monotonic() < end, f"{strategy.islands} of {history}"
                    time.sleep(0.01)

        try:
            return body(strategy, each), incarnation
        except Killed:
            time.sleep(history.delays[incarnation])
        finally:
            strategy.close()
    raise AssertionError("it died too often")


def played(history: History, body: Callable[..., Any], **settings: Any) -> list[Any]:
    job = Job(history.count, **settings)
    with ThreadPoolExecutor(history.count) as pool:
        futures = [pool.submit(lives, job, rank, history, body) for rank in range(history.count)]
        return [future.result(timeout=2 * DEADLINE_S) for future in futures]


SEEDS = range(40 if os.environ.get("JAXTRIBUTE_ALL_CASES") else 2)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("seed", SEEDS)
def test_islands_that_come_back_go_on_where_the_others_are(seed: int, compiled: bool) -> None:
    history = History.drawn(seed)
    data = history.data()
    results = played(history, lambda strategy, each: training(strategy, data, compiled=compiled, each=each))
    expected = training(jd.OneDeviceStrategy("CPU:0"), data, compiled=True)
    assert sum(incarnation for _, incarnation in results) == len(history.deaths)
    first = results[0][0]
    for (seen, ledger, weights), _ in results:
        np.testing.assert_allclose(seen, expected[0], rtol=1e-5, atol=1e-6)
        assert seen == first[0]
        assert ledger == expected[1] == sum(range(1, sum(history.sizes) + 1))
        np.testing.assert_allclose(weights, expected[2], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(weights, first[2])


def joining(body: Callable[[jd.Strategy], Any], steps: Callable[[jd.Strategy], Any], **settings: Any) -> Any:
    """What `body` gives an island that comes to a job which has run `steps`, and waits at their end."""
    job = Job(2, **settings)
    ready, done, both = threading.Event(), threading.Event(), threading.Barrier(2, timeout=DEADLINE_S)

    def stays() -> None:
        with contextlib.closing(job.strategy(0)) as strategy:
            both.wait()
            steps(strategy)
            ready.set()
            assert done.wait(DEADLINE_S)

    def leaves() -> None:
        with contextlib.closing(job.strategy(1)):
            both.wait()

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(stays), pool.submit(leaves)]
        try:
            assert ready.wait(DEADLINE_S)
            with contextlib.closing(job.strategy(1, 1)) as strategy:
                return body(strategy)
        finally:
            done.set()
            for future in futures:
                future.result(timeout=DEADLINE_S)


def counter(strategy: jd.Strategy) -> tuple[Any, Any]:
    with strategy.scope():
        v = jd.Variable(0.0, aggregation="ONLY_FIRST_REPLICA", name="v")
    return v, jd.function(lambda: strategy.run(lambda: v.assign_add(1.0)))


def test_what_a_newcomer_cannot_know_is_refused() -> None:
    def steps(strategy: jd.Strategy) -> None:
        v, step = counter(strategy)
        step()
        float(v)
        step()

    def body(strategy: jd.Strategy) -> None:
        v, step = counter(strategy)
        assert float(v) == 0.0  # no step has written it yet
        step()
        assert float(v) == 1.0  # the others have read it as well
        step()
        v.assign(5.0)  # as the others would have
        v.assign_add(10.0)
        assert float(v) == 15.0

    joining(body, steps)


def test_a_read_that_the_others_have_not_made_is_refused() -> None:
    def steps(strategy: jd.Strategy) -> None:
        _, step = counter(strategy)
        step()
        step()

    def body(strategy: jd.Strategy) -> None:
        v, step = counter(strategy)
        step()
        with pytest.raises(ClusterError, match="v:0 is read between steps 1 and 2, by an island that joins"):
            float(v)
        with pytest.raises(ClusterError, match="v:0 is read between"):
            v.lease()
        with pytest.raises(ClusterError, match="v:0 is read between"):
            v.assign_add(1.0)

    joining(body, steps)


def test_another_program_is_refused() -> None:
    def steps(strategy: jd.Strategy) -> None:
        counter(strategy)[1]()

    def body(strategy: jd.Strategy) -> None:
        counter(strategy)
        with pytest.raises(ClusterError, match=r"its program takes step 1 as .run <lambda>"):
            strategy.run(lambda: None)
        with strategy.scope(), pytest.raises(ClusterError, match=r"takes step 1 as .*variable"):
            jd.Variable(0.0)

    joining(body, steps)


def test_a_result_that_is_too_large_to_keep_is_named() -> None:
    def body(strategy: jd.Strategy) -> None:
        with pytest.raises(ClusterError, match=r"step 0 \(run large.*gave 524288 bytes to Python, and 65536 are kept"):
            strategy.run(lambda: None)

    joining(body, lambda strategy: strategy.run(large))


def large() -> jax.Array:
    return jnp.zeros(1 << 17)


@pytest.mark.parametrize("timeout_s", [2.0, 60.0])
def test_an_island_of_a_job_that_has_ended_is_told_soon(timeout_s: float, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    with pytest.raises(ClusterError, match="no other island trains: island 0 has ended") as raised:
        Job(2, timeout_s=timeout_s).strategy(1, 1)
    assert time.monotonic() - begun < 15
    sys.excepthook(raised.type, raised.value, raised.tb)
    head, *frames, error = capsys.readouterr().err.splitlines()
    assert head == "Traceback (most recent call last):", "by which a launcher knows it"
    assert error.startswith("jaxtribute.errors.ClusterError: island 1 was started again")
    assert frames
    assert not any("_src" in frame for frame in frames), "of the library there is no line"


def far_addresses(count: int) -> list[str]:
    """Addresses on as many hosts, all of them this machine's."""
    return [f"127.0.0.{rank + 1}:{port}" for rank, port in enumerate(free_ports(count))]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_islands_that_have_all_been_started_again_begin_together(count: int) -> None:
    addresses = far_addresses(count)
    processes = [Island(rank, 7 + 10 * rank) for rank in range(count)]

    def start(me: Island) -> Islands:
        time.sleep(0.1 * me.rank)  # one comes after the other
        return Islands(me, addresses, silent_s=2.0, timeout_s=20.0)

    with ThreadPoolExecutor(count) as pool:
        made = list(pool.map(start, processes))
    try:
        assert all(island.view == View(0, tuple(processes)) for island in made)
        for _ in range(3):
            assert together(made, lambda island: int(summing(island, np.int32(1))[0])) == [count] * count
        # From here on all is as ever: one that dies is left out, and joins as another process.
        made[0].close()
        assert together(made[1:], lambda island: int(summing(island, np.int32(1))[0])) == [count - 1] * (count - 1)
        assert [island.committed for island in made[1:]] == [4] * (count - 1)
    finally:
        for island in made:
            island.close()


@pytest.mark.parametrize("seed", range(12))
def test_one_that_dies_while_all_begin_again_splits_nothing(seed: int) -> None:
    """Each island dies once at a random moment of the start, and comes back as a later process."""
    chance = np.random.default_rng(seed)
    count = int(chance.choice([2, 3]))
    addresses, end = far_addresses(count), time.monotonic() + DEADLINE_S
    victim, lives_s = int(chance.integers(count)), float(chance.uniform(0, 0.4))
    delays = chance.uniform(0, 0.2, count)
    done = threading.Barrier(count)

    def live(rank: int) -> tuple[View, list[int]]:
        time.sleep(delays[rank])
        incarnation = 1
        while time.monotonic() < end:
            try:
                island = Islands(Island(rank, incarnation), addresses, silent_s=2.0, timeout_s=10.0)
            except (ClusterError, DeadlineError, OSError):
                incarnation += 1
                continue
            try:
                if rank == victim and incarnation == 1:
                    time.sleep(lives_s)
                    continue
                sums: list[int] = []
                while sums.count(count) < 3:  # all are back, and train on
                    sums.append(journalled(island))
                    time.sleep(0.01)
                view = island.view
                done.wait(DEADLINE_S)
                return view, sums
            except (ClusterError, DeadlineError):
                continue
            finally:
                incarnation += 1
                island.close()
        raise AssertionError(f"island {rank} has not come to an end: {seed=}")

    def journalled(island: Islands) -> int:
        """A step that newcomers are given from the journal."""
        if island.newcomer is not None:
            entry = island.newcomer.next("sum", None)
            if entry is not None:
                return int(entry.arrays[0])
        total = int(summing(island, np.int32(1))[0])
        island.journal.append("sum", island.view, np.int32(total))
        return total

    with ThreadPoolExecutor(count) as pool:
        ends = list(pool.map(live, range(count)))
    views, sums = zip(*ends, strict=True)
    assert len(set(views)) == 1, views
    assert len({tuple(each) for each in sums}) == 1, sums
    assert all(1 <= each <= count for each in sums[0])


def test_results_are_kept_as_they_are() -> None:
    nest = {"a": [1, 2.5, None, "x"], "b": (jnp.ones((2, 3), "bfloat16"), np.arange(3), np.float64(2)), "c": True}
    journal = Journal()
    view = View(3, (Island(0), Island(1, 2)), (Island(2),))
    journal.append("first", view, nest)
    journal.note_read(4, jnp.arange(3))
    journal.append("second", view, [])
    journal.note_read(5, jnp.zeros(1 << 17))
    first, second, end = entries_in(journal.answer(0, view)[1])
    made = rebuilt(first.plain, first.arrays, None, first.view)
    assert jax.tree.structure(made) == jax.tree.structure(nest)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), made["b"], nest["b"])
    assert (made["a"], made["c"], first.view, first.signature) == (nest["a"], True, view, "first")
    np.testing.assert_array_equal(second.reads[4], [0, 1, 2])
    assert end.reads == {5: None}
    journal.append("third", view, object())
    assert "step 2 (third) gave a object" in journal.problem
    # Nobody can get past it: what came before and what comes is not kept.
    journal.append("fourth", view, jnp.ones(3))
    assert len(journal) == 4
    assert {id(entry) for entry in journal.entries} == {id(journal.entries[2])}
    data = bytearray(journal.answer(0, view)[1])
    data[20] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        entries_in(data)


def test_steps_that_are_alike_travel_together_and_stay_apart() -> None:
    """Whatever steps gave, read and told: what a newcomer gets is what each had, with its type."""
    chance = np.random.default_rng(0)
    views = View(0, (Island(0), Island(1))), View(1, (Island(0),))
    makers: list[Callable[[float], Any]] = [
        lambda number: [jnp.float32(number)],
        lambda number: [jnp.full((2, 3), number, "bfloat16"), np.full(2, number), 1],
        lambda number: [True],
        lambda number: [1],
        lambda number: {"a": np.float64(number), "b": float(round(number))},
    ]
    journal, expected = Journal(), list[Any]()
    for number in range(500):
        make = makers[chance.integers(len(makers)) if chance.random() < 0.2 else number // 100]
        view = views[number > 333]
        if chance.random() < 0.05:
            journal.note_read(3, jnp.float32(number))
        expected.append((f"step {number // 250}", view, make(number / 7), sorted(journal.reads)))
        journal.append(*expected[-1][:3])
    whole = journal.answer(0, views[1])[1]
    for first in (0, 17, 499, 500):
        *entries, end = entries_in(journal.answer(first, views[1])[1])
        assert (end.signature, end.view) == ("", views[1])
        assert len(entries) == 500 - first
        for entry, (signature, view, result, reads) in zip(entries, expected[first:], strict=True):
            assert (entry.signature, entry.view, sorted(entry.reads), entry.problem) == (signature, view, reads, "")
            made = rebuilt(entry.plain, entry.arrays, None, view)
            assert [type(each) for each in jax.tree.leaves(made)] == [type(each) for each in _kept(result)]
            jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), made, result)
    assert len(whole) < 500 * 100, "they travel one by one"
    for _ in range(40):
        journal.note_read(0, np.empty(LARGEST, np.uint8))
        journal.append("a step", views[1], None)
    assert len(journal.answer(500, views[1])[1]) < (2 << 20), "what was read counts as well"


def _kept(result: Any) -> list[Any]:
    """The leaves of a result as they are kept: what NumPy had without axes is an array."""
    return [np.asarray(leaf) if isinstance(leaf, np.generic) else leaf for leaf in jax.tree.leaves(result)]


def test_an_island_that_ends_before_the_others_have_met_it_joins_them(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(2)

    def body(strategy: jd.Strategy) -> float:
        v, step = counter(strategy)
        step()
        return float(v)

    def first() -> float:
        with contextlib.closing(job.strategy(0)) as strategy:
            return body(strategy)

    with ThreadPoolExecutor(1) as pool:
        futures: list[Any] = []

        def refuses(links: Links, rank: int) -> bool:
            if not futures:  # the other one begins to listen after it was asked
                futures.append(pool.submit(first))
                return True
            return is_refused(links, rank)

        is_refused = Links.refuses
        monkeypatch.setattr(Links, "refuses", refuses)
        with contextlib.closing(job.strategy(1, 1)) as strategy:
            assert body(strategy) == 1.0
            assert futures[0].result(timeout=DEADLINE_S) == 1.0


def test_a_state_that_could_not_be_sent_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(2, 0, [(1, 2)], [4] * 6, [0.0] * 9)
    data, failed = history.data(), list[object]()

    def send(links: Links, rank: int, lane: Lane, head: Any, *rest: Any) -> bool:
        if lane is Lane.JOURNAL and head[2] == STATE and not failed:
            failed.append(head)
            return False
        return sends(links, rank, lane, head, *rest)

    sends = Links.send
    monkeypatch.setattr(Links, "send", send)
    results = played(history, lambda strategy, each: training(strategy, data, compiled=False, each=each), timeout_s=8.0)
    assert failed
    assert [incarnation for _, incarnation in results] == [0, 1]
    assert results[0][0][:2] == results[1][0][:2]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_newcomer_asks_again_for_what_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions and answers that go with a broken connection, whichever they are, cost a moment and nothing else."""
    chance, lost = np.random.default_rng(seed), list[int]()

    def send(links: Links, rank: int, lane: Lane, head: Any, *rest: Any) -> bool:
        if lane is Lane.JOURNAL and head[2] != STATE and len(lost) < 3 and chance.random() < 0.7:
            lost.append(head[2])
            return bool(chance.integers(2))  # the sender may know
        return sends(links, rank, lane, head, *rest)

    def steps(strategy: jd.Strategy) -> float:
        v, step = counter(strategy)
        for _ in range(3):
            step()
        return float(v)

    sends, begun = Links.send, time.monotonic()
    monkeypatch.setattr(Links, "send", send)
    assert joining(steps, steps, silent_s=20.0) == 3.0
    assert lost
    assert time.monotonic() - begun < 10.0


def test_a_newcomer_that_waits_asks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asks: list[int] = []

    def later(islands: Islands, rank: int, *rest: Any) -> None:
        asks.append(rank)
        asked(islands, rank, *rest)

    def body(strategy: jd.Strategy) -> None:
        _, step = counter(strategy)
        step()
        with pytest.raises(DeadlineError, match="has waited 1 s for the others to take this island in at step"):
            step()  # which the other one never takes

    asked = Islands.later
    monkeypatch.setattr(Islands, "later", later)
    joining(body, lambda strategy: counter(strategy)[1](), timeout_s=1.0)
    assert 10 < len(asks) < 100


class Slow:
    """Stands for an array that is still being computed."""

    def __init__(self) -> None:
        self.asked, self.done = threading.Event(), threading.Event()
        self.took_too_long = False

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self.asked.set()
        self.took_too_long = not self.done.wait(5.0)
        return np.zeros(1)


def test_a_newcomer_that_waits_for_a_result_holds_nobody_up() -> None:
    slow: Any = Slow()
    slow.nbytes = 8
    with islands(2) as (one, other):
        one.journal.add(Entry("a step", one.view, ["numpy", 0], [slow], {}))
        other.later(0, Lane.JOURNAL, (0, 0, ASKS))
        try:
            assert slow.asked.wait(DEADLINE_S)
            assert together([one, other], lambda island: int(summing(island, 1)[0])) == [2, 2]
            assert not slow.took_too_long
        finally:
            slow.done.set()


def test_a_journal_keeps_no_more_than_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's own memory for a small array is ten times what NumPy needs; and what is read between steps counts."""
    journal, view, value = Journal(), View(0, (Island(0),)), jnp.float32(0)
    step = jax.jit(lambda x: x + 1)
    for _ in range(10):
        value = step(value)
        journal.append("a step", view, value)
    assert all(isinstance(array, np.ndarray) and array.base is None for array in journal.entries[0].arrays)
    before = len(gc.get_objects())
    for _ in range(100):
        journal.append("a step", view, step(value))
    assert len(gc.get_objects()) - before <= 100 * 8
    monkeypatch.setattr("jaxtribute._src.addons.elastic.journal.MOST", 2 << 20)
    for _ in range((2 << 20) // LARGEST):
        journal.note_read(0, np.empty(LARGEST, np.uint8))
        journal.append("a step", view, None)
    assert journal.problem.startswith("what the steps gave to Python came to more than")
    assert len(journal) == 110 + (2 << 20) // LARGEST


def test_a_result_that_was_deleted_is_said_to_be_gone() -> None:
    journal, view = Journal(), View(0, (Island(0), Island(1)))
    first = jnp.ones(3)
    journal.append("a step", view, first)
    first.delete()
    journal.append("another", view, jnp.zeros(2))
    assert re.match(r"the result of step 0 \(a step\) is gone: .*deleted", journal.entries[0].problem)
    assert journal.entries[1].problem == journal.entries[0].problem
    (entry, second, _) = entries_in(journal.answer(0, view)[1])
    assert entry.problem == second.problem == journal.problem


def test_nothing_is_compiled_when_an_island_dies() -> None:
    """What fewer islands need is compiled while all are there, whoever dies, though shares of a batch differ."""
    job, counting, compiled = Job(3), threading.Event(), list[str]()
    data = History(3, 0, [], [7] * 6, []).data()
    both = threading.Barrier(3, counting.set, timeout=DEADLINE_S)

    def listens(event: str, duration_secs: float, **about: Any) -> None:
        del duration_secs
        if counting.is_set() and event.endswith("backend_compile_duration"):
            compiled.append(str(about.get("fun_name")))

    def lived(rank: int) -> Any:
        with contextlib.closing(job.strategy(rank)) as strategy:

            def each(number: int, _: Any) -> None:
                if number == 3:
                    both.wait()
                    if rank == 1:
                        raise Killed

            with contextlib.suppress(Killed):
                return training(strategy, data, compiled=True, each=each)

    jax.monitoring.register_event_duration_secs_listener(listens)
    with ThreadPoolExecutor(3) as pool:
        first, _, last = pool.map(lived, range(3))
    counting.clear()
    assert first[:2] == last[:2]
    assert compiled == []


def test_a_step_that_fails_for_fewer_islands_is_told_while_all_are_there(caplog: pytest.LogCaptureFixture) -> None:
    def counted(strategy: Any) -> list[float]:
        @jd.function
        def step() -> Any:
            if strategy.num_replicas_in_sync < 2:
                raise ValueError("two are needed")
            return strategy.reduce("SUM", strategy.run(lambda: jnp.float32(1)), axis=None)

        return [float(step()) for _ in range(3)]

    with caplog.at_level(logging.WARNING):
        assert Job(2).run(counted) == [[2.0] * 3] * 2
    assert "the step step() fails once an island dies: ValueError: two are needed" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert Job(2, min_islands=2).run(counted) == [[2.0] * 3] * 2
    assert "fails once" not in caplog.text
