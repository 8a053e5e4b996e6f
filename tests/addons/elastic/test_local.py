"""Islands that train alone and meet now and then, against the same algorithm in plain JAX and Optax."""

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
from tests.addons.elastic.test_strategy import Job, Killed, batches

import jaxtribute as jd
from jaxtribute._src.addons.elastic.local import LocalProgram
from jaxtribute._src.addons.elastic.membership import Island
from jaxtribute._src.addons.elastic.shares import bounds
from jaxtribute.errors import ArgumentError, ArgumentTypeError, VariableError
from replicas import here

OUTER = optax.sgd(0.7, momentum=0.9, nesterov=True)
RATE = 0.02
Replicas = Sequence[tuple[int, int]]
"""The islands' ranks, and how many replicas each has."""


class LocalJob(Job):
    """Islands of which each has so many devices.

    Args:
      devices: of each island.
      settings: those of `ElasticStrategy`.
    """

    def __init__(self, devices: Sequence[int], **settings: Any) -> None:
        super().__init__(len(devices), **settings)
        self._devices = devices

    def strategy(self, rank: int, incarnation: int = 0) -> Any:
        names = [f"CPU:{sum(self._devices[:rank]) + place}" for place in range(self._devices[rank])]
        resolver = jd.cluster_resolver.SimpleClusterResolver(
            jd.ClusterSpec({"worker": self._addresses}), task_type="worker", task_id=rank
        )
        return jd.experimental.ElasticStrategy(
            jd.MirroredStrategy(names), cluster_resolver=resolver, incarnation=incarnation, **self._settings
        )


def loss_of(w: Any, x: Any, y: Any) -> Any:
    return (x @ w["a"] + w["b"] - y) ** 2


class Trained:
    """A linear model, a step of it, and what it has been through.

    Args:
      strategy: the island's.
      compiled: whether the step is a `jd.function`.
    """

    def __init__(self, strategy: Any, *, compiled: bool = True) -> None:
        self.strategy, self.compiled = strategy, compiled
        with strategy.scope():
            self.w = {"a": jd.Variable(jnp.ones(4), name="a"), "b": jd.Variable(0.5, name="b")}
            self.optimizer = jd.Optimizer(optax.sgd(RATE, momentum=0.9), self.w)
            self.seen = jd.Variable(0, aggregation="SUM", name="seen")
            self.mean = jd.Variable(0.0, trainable=False, aggregation="MEAN", name="mean")
            self.first = jd.Variable(0, trainable=False, aggregation="ONLY_FIRST_REPLICA", name="first")
        self.function = jd.function(lambda x, y: strategy.run(self.replica, (x, y)))
        self.losses: list[float] = []
        self.counted: tuple[float, ...] = ()

    def replica(self, x: jax.Array, y: jax.Array) -> jax.Array:
        rows = here().all_reduce("SUM", jnp.float32(x.shape[0]))
        read = lambda: {"a": self.w["a"].read_value(), "b": self.w["b"].read_value()}  # noqa: E731
        loss, grads = jd.value_and_grad(lambda: jnp.sum(loss_of(read(), x, y)) / rows, self.w)()
        self.optimizer.apply_gradients(grads)
        self.seen.assign_add(jnp.int32(x.shape[0]))
        self.mean.assign(here().all_reduce("SUM", jnp.sum(y)) / rows)
        self.first.assign_add(1)
        return here().all_reduce("SUM", loss)

    def step(self, batch: Any) -> None:
        loss = self.function(*batch) if self.compiled else self.strategy.run(self.replica, batch)
        self.losses.append(float(self.strategy.experimental_local_results(loss)[0]))

    def run(self, data: Sequence[Any], each: Callable[[int], None] | None = None) -> Trained:
        for number, batch in enumerate(self.strategy.experimental_distribute_dataset(data)):
            if each is not None:
                each(number)
            self.step(batch)
        return self

    @property
    def weights(self) -> dict[str, Any]:
        return {name: np.asarray(variable) for name, variable in self.w.items()}


class Simulated:
    """The algorithm by hand.

    Args:
      outer: the outer optimizer.
      replicas: the islands at first.
      overlap: steps that the changes travel.
    """

    def __init__(self, outer: Any, replicas: Replicas, overlap: int = 0) -> None:
        self.outer, self.replicas, self.overlap = outer, replicas, overlap
        self.inner = optax.sgd(RATE, momentum=0.9)
        self.common: Any = {"a": jnp.ones(4), "b": jnp.float32(0.5)}
        self.outer_states = {name: outer.init(value) for name, value in self.common.items()}
        self.slots = {rank: self.inner.init(self.common) for rank, _ in replicas}
        self.losses: dict[int, list[float]] = {rank: [] for rank, _ in replicas}
        self.own = {rank: self.common for rank, _ in replicas}
        self.examples = {rank: dict.fromkeys(self.common, 0) for rank, _ in replicas}
        """Those since changes of each parameter were last sent."""

    def window(
        self,
        data: Sequence[Any],
        dead: dict[int, int] | None = None,
        whole: bool = False,
        names: Sequence[str] = ("a", "b"),
    ) -> None:
        """Steps of all islands, and a meeting about the parameters of these names.

        Of `dead` islands so many steps are taken, which nobody hears of. That of a `whole` window overlaps no steps.
        """
        departs = len(data) - (0 if whole else self.overlap)
        sent: dict[int, Any] = {}
        weights: dict[int, dict[str, int]] = {}
        for rank, _ in self.replicas:
            own, examples = self.own[rank], self.examples[rank]
            for number, (x, y) in enumerate([*data, data[-1]]):
                if number == departs:
                    sent[rank], weights[rank] = self.own[rank], dict(examples)
                    examples.update(dict.fromkeys(names, 0))
                if number == len(data):
                    break
                start, stop = bounds(len(x), list(self.replicas), rank)
                if start == stop or number >= (dead or {}).get(rank, len(data)):
                    self.losses[rank].append(np.nan)
                    continue
                loss, grads = jax.value_and_grad(lambda w, x, y: jnp.mean(loss_of(w, x, y)))(
                    own, x[start:stop], y[start:stop]
                )
                updates, self.slots[rank] = self.inner.update(grads, self.slots[rank], own)
                own = optax.apply_updates(own, updates)
                self.losses[rank].append(float(loss))
                self.own[rank] = own
                for name in examples:
                    examples[name] += stop - start
        living = [rank for rank, _ in self.replicas if rank not in (dead or {})]
        for name in names:
            total = sum(weights[rank][name] for rank in living)
            if total:
                changes = [weights[rank][name] / total * (self.common[name] - sent[rank][name]) for rank in living]
                update, state = self.outer.update(sum(changes), self.outer_states[name], self.common[name])
                self.outer_states[name] = state
                self.common = self.common | {name: self.common[name] + update}
            for rank in living:
                own = self.common[name] + (self.own[rank][name] - sent[rank][name])
                self.own[rank] = self.own[rank] | {name: own}
        self.replicas = [(rank, count) for rank, count in self.replicas if rank not in (dead or {})]

    def check(self, trained: Trained, rank: int) -> None:
        own = self.own[rank]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), trained.weights, own)
        np.testing.assert_allclose(trained.losses, self.losses[rank], rtol=1e-4, atol=1e-5)


def same_bits(results: Sequence[Trained]) -> None:
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, other.weights, results[0].weights)


SIZES = [8, 7, 5, 1, 8, 6, 8]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_islands_that_meet_after_each_step_take_the_synchronous_one(compiled: bool) -> None:
    data = batches(SIZES)
    job = LocalJob([1, 1], sync_every=1, outer_optimizer=optax.sgd(1.0))

    def body(strategy: Any) -> Any:
        with strategy.scope():
            w = jd.Variable(jnp.zeros(4))
            optimizer = jd.Optimizer(optax.sgd(RATE), [w])

        def replica(x: jax.Array, y: jax.Array) -> None:
            grads = jd.grad(lambda: jnp.mean((x @ w - y) ** 2), [w])()
            optimizer.apply_gradients(grads, reduce_op="MEAN")

        step = jd.function(lambda *batch: strategy.run(replica, batch))
        for batch in strategy.experimental_distribute_dataset(data):
            step(*batch) if compiled else strategy.run(replica, batch)
        return np.asarray(w)

    expected = body(jd.OneDeviceStrategy("CPU:0"))
    for weights in job.run(body):
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("devices", [[1, 2], [1, 1, 1]], ids=["1 and 2", "1, 1 and 1"])
def test_local_training_is_the_algorithm(devices: list[int], compiled: bool) -> None:
    data = batches(SIZES)

    def body(strategy: Any) -> Trained:
        trained = Trained(strategy, compiled=compiled).run(data)
        strategy.synchronize()
        trained.counted = int(trained.seen), float(trained.mean), int(trained.first)
        return trained

    results = LocalJob(devices, sync_every=3, outer_optimizer=OUTER).run(body)
    simulated = Simulated(OUTER, list(enumerate(devices)))
    for start in range(0, len(data), 3):
        simulated.window(data[start : start + 3])
    same_bits(results)
    mean = sum(np.sum(y) for _, y in data[6:]) / 8
    for rank, trained in enumerate(results):
        simulated.check(trained, rank)
        np.testing.assert_allclose(trained.counted, (sum(SIZES), mean, len(SIZES)), rtol=1e-5)


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_changes_travel_in_a_small_type(wire: str) -> None:
    start = np.random.default_rng(5).normal(size=(2, 5000)).astype("float32")

    def body(strategy: Any) -> Any:
        with strategy.scope():
            w = jd.Variable(start, name="w")
            jd.Optimizer(optax.sgd(1.0), [w])
        own = np.random.default_rng(strategy.island).normal(size=start.shape).astype("float32")
        jd.function(lambda: strategy.run(lambda: w.assign_sub(jnp.asarray(own))))()
        return np.asarray(w), own

    def trained(wire: str | None) -> list[Any]:
        options = jd.experimental.CommunicationOptions(wire=wire)
        job = LocalJob([1, 1], sync_every=1, outer_optimizer=optax.sgd(1.0), communication_options=options)
        return job.run(body)

    results, exact = trained(wire), trained(None)
    changes = [own for _, own in results]
    np.testing.assert_allclose(exact[0][0], start - (changes[0] + changes[1]) / 2, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    # Half a step of each island's rounding: of 8 bits, or of the largest of a block by 127.
    error = np.abs(results[0][0] - exact[0][0]).max()
    peak = max(np.abs(change).max() for change in changes)
    assert 0 < error <= peak * (2**-8 if wire == "bfloat16" else 0.51 * 1.01 / 127)


@pytest.mark.parametrize("moment", [3, 5])
def test_what_a_dead_island_has_learned_alone_is_lost(moment: int) -> None:
    data = batches([8, 7, 5, 4, 8, 6, 8, 3, 6])

    def body(strategy: Any) -> Trained | None:
        def each(number: int) -> None:
            if strategy.island == 1 and number == moment:
                strategy.close()
                raise Killed

        with contextlib.suppress(Killed):
            return Trained(strategy).run(data, each)
        return None

    results = LocalJob([1, 2, 1], sync_every=3, outer_optimizer=OUTER).run(body)
    simulated = Simulated(OUTER, [(0, 1), (1, 2), (2, 1)])
    for start in range(0, len(data), 3):
        simulated.window(data[start : start + 3], {1: moment - 3} if start == 3 else None)
    assert results[1] is None
    left = [results[0], results[2]]
    same_bits(left)
    for rank, trained in zip((0, 2), left, strict=True):
        simulated.check(trained, rank)


def test_what_the_collector_has_taken_on_one_island_is_no_concern_of_the_others() -> None:
    data = batches([4, 4, 4])

    def body(strategy: Any) -> Any:
        trained = Trained(strategy)
        with strategy.scope():
            lost = [jd.Variable(1.0, name="lost"), jd.Variable(2.0, trainable=False, aggregation="MEAN", name="mean")]
        for batch in strategy.experimental_distribute_dataset(data):
            if strategy.island:
                lost.clear()
            trained.step(batch)
        return trained

    results = LocalJob([1, 1], sync_every=1, outer_optimizer=OUTER).run(body)
    same_bits(results)
    simulated = Simulated(OUTER, [(0, 1), (1, 1)])
    for batch in data:
        simulated.window([batch])
    simulated.check(results[0], 0)


def test_an_island_without_rows_keeps_of_a_step_what_it_adds_to_sums() -> None:
    """Two batches of one example, of which the second island has none: its mean, of nothing, is taken back."""

    def body(strategy: Any) -> Any:
        with strategy.scope():
            w = jd.Variable(jnp.ones(4), name="w")
            jd.Optimizer(optax.sgd(1.0), [w])
            mean = jd.Variable(3.0, trainable=False, aggregation="MEAN", name="mean")
            seen = jd.Variable(0, aggregation="SUM", name="seen")

        def replica(x: jax.Array, y: jax.Array) -> None:
            mean.assign(jnp.mean(y))  # of no rows: NaN
            seen.assign_add(jnp.int32(1))

        step = jd.function(lambda *batch: strategy.run(replica, batch))
        for batch in strategy.experimental_distribute_dataset(data):
            step(*batch)
        own = int(seen)
        strategy.synchronize()
        return own, int(seen), float(mean), np.asarray(w)

    data = batches([1, 1])
    # No step has updated a parameter, so no example counts: whoever was there does, alike.
    target = float(data[1][1][0])
    results = LocalJob([1, 1], sync_every=5, outer_optimizer=OUTER).run(body)
    assert [own for own, *_ in results] == [2, 2]  # two calls on each, as two replicas of MirroredStrategy add
    for _, seen, mean, w in results:
        assert seen == 4
        np.testing.assert_allclose(mean, (target + 3) / 2, rtol=1e-6)
        np.testing.assert_array_equal(w, np.ones(4))


DEADLINE_S = 60.0


def test_an_island_that_comes_back_before_the_first_meeting_begins_as_the_others_did() -> None:
    data = batches([8, 7, 5, 4])
    job = LocalJob([1, 1], sync_every=2, outer_optimizer=OUTER)

    def first() -> Trained:
        with contextlib.closing(job.strategy(0)) as strategy:
            trained = Trained(strategy)

            def each(number: int) -> None:
                if number == 1:  # the other one is taken in at the meeting that follows
                    end = time.monotonic() + DEADLINE_S
                    while Island(1, 1) not in strategy.extended.mesh.islands.view.members:
                        assert time.monotonic() < end
                        time.sleep(0.01)

            return trained.run(data, each)

    def second() -> Trained:
        with contextlib.closing(job.strategy(1)) as strategy:
            Trained(strategy)
        with contextlib.closing(job.strategy(1, 1)) as strategy:
            return Trained(strategy).run(data)

    with ThreadPoolExecutor(2) as pool:
        results = [future.result(2 * DEADLINE_S) for future in [pool.submit(first), pool.submit(second)]]
    same_bits(results)
    assert results[0].losses[:2] == results[1].losses[:2]
    slots = [trained.strategy.outer_optimizer.variables for trained in results]
    for mine, theirs in zip(*slots, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def outside(trained: Trained, number: int, read: list[float]) -> None:
    """Reads and writes outside of steps: the island that comes back has not computed what it reads."""
    if number == 5:
        read.append(float(trained.mean))
    if number == 7:  # within a window, after which it has what it has been given already
        trained.seen.assign(0)


@pytest.mark.parametrize(("mortal", "compiled"), [(0, True), (1, False)], ids=["compiled", "eager"])
def test_an_island_that_comes_back_gets_what_the_others_have(
    mortal: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies in the second window and joins at a meeting: it is told the others' losses until then."""
    rehearsed: list[Any] = []
    rehearse = LocalProgram._rehearse  # pyright: ignore[reportPrivateUsage]

    def noted(program: Any, *arguments: Any) -> None:
        arrays = [variable.stored for variable in program.donated]
        rehearse(program, *arguments)
        assert all(variable.stored is array for variable, array in zip(program.donated, arrays, strict=True))
        rehearsed.append((program.jitted, program.jitted._cache_size()))

    monkeypatch.setattr(LocalProgram, "_rehearse", noted)
    data = batches([8, 7, 5, 4, 8, 6, 8, 3, 6, 8, 4, 8])
    job = LocalJob([1, 1], sync_every=3, outer_optimizer=OUTER)
    heard = threading.Event()
    read: list[float] = []

    def stays() -> Trained:
        with contextlib.closing(job.strategy(1 - mortal)) as strategy:

            def each(number: int) -> None:
                outside(trained, number, read)
                if number == 8:  # the last step of a window, at whose end the other is taken in
                    islands = strategy.extended.mesh.islands
                    heard.set()
                    end = time.monotonic() + DEADLINE_S
                    while len(strategy.islands) < 2 or not islands.view.number > 1:
                        assert time.monotonic() < end, strategy.islands
                        time.sleep(0.01)

            trained = Trained(strategy, compiled=compiled)
            return trained.run(data, each)

    def lives() -> Trained:
        def dies(number: int) -> None:
            if number == 4:
                strategy.close()
                raise Killed

        with contextlib.closing(job.strategy(mortal)) as strategy, contextlib.suppress(Killed):
            Trained(strategy, compiled=compiled).run(data, dies)
        assert heard.wait(DEADLINE_S)
        with contextlib.closing(job.strategy(mortal, 1)) as strategy:

            def each(number: int) -> None:
                outside(trained, number, read)

            trained = Trained(strategy, compiled=compiled)
            return trained.run(data, each)

    with ThreadPoolExecutor(2) as pool:
        other, joined = (future.result(2 * DEADLINE_S) for future in [pool.submit(stays), pool.submit(lives)])
    same_bits([other, joined])
    assert joined.losses[:9] == other.losses[:9]
    assert read[0] == read[1]
    assert joined.losses[9:] != other.losses[9:]
    if compiled:  # before the others waited for it, and not again
        assert rehearsed[0][1] == 1
        assert all(jitted._cache_size() == rehearsed[-1][1] for jitted, _ in rehearsed)
    assert int(joined.seen) == int(other.seen) == sum(len(x) for x, _ in data[7:])
    slots = [trained.strategy.outer_optimizer.variables for trained in (joined, other)]
    for mine, theirs in zip(*slots, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_settings_that_make_no_sense_are_refused() -> None:
    elastic = jd.experimental.ElasticStrategy
    with pytest.raises(ArgumentError, match=r"outer_optimizer is .* and sync_every is None"):
        elastic(outer_optimizer=optax.sgd(1.0))
    with pytest.raises(ArgumentError, match=r"communication_options is .* and sync_every is None"):
        elastic(communication_options=jd.experimental.CommunicationOptions(wire="int8"))
    with pytest.raises(ArgumentError, match="sync_every"):
        elastic(sync_every=0)
    with pytest.raises(ArgumentTypeError, match=r"outer_optimizer is 0.7 of type float"):
        elastic(sync_every=2, outer_optimizer=0.7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="which is not for an island"):
        elastic(jd.CentralStorageStrategy(), sync_every=2)


def test_islands_that_take_each_step_together_need_not_meet() -> None:
    with contextlib.closing(jd.experimental.ElasticStrategy()) as strategy:
        strategy.synchronize()
        with pytest.raises(ArgumentError, match="without sync_every has no outer optimizer"):
            _ = strategy.outer_optimizer


def test_what_islands_do_alone_and_what_they_may_not() -> None:
    with contextlib.closing(LocalJob([2], sync_every=2).strategy(0)) as strategy:
        with pytest.raises(VariableError, match="no parameter yet"):
            _ = strategy.outer_optimizer
        trained = Trained(strategy)
        assert (strategy.num_replicas_in_sync, strategy.islands) == (2, (0,))
        trained.run(batches([4]))
        values = strategy.run(lambda: here().replica_id_in_sync_group)
        assert int(strategy.reduce("SUM", values, axis=None)) == 1  # over the island's replicas
        with pytest.raises(VariableError, match="seen:0 sums what the islands add in steps"):
            trained.seen.assign_add(1)
        trained.seen.assign(10)  # as metrics are reset
        trained.run(batches([4]))
        assert int(trained.seen) == 14
        with strategy.scope():
            late = jd.Variable(1.0, name="late")
        with pytest.raises(VariableError, match=r"parameters \['late:0'\] were made after the first step"):
            trained.run(batches([4]))
        del late
        with strategy.scope(), pytest.raises(ArgumentError, match="ElasticStrategy has no variables of"):
            jd.Variable(0.0, synchronization="ON_READ")
        for refused in (
            lambda: strategy.run_steps(lambda batch: batch, None, 2),
            lambda: strategy.distribute_datasets_from_function(lambda context: []),
        ):
            with pytest.raises(NotImplementedError, match=r"ElasticStrategy.* has no"):
                refused()


def test_a_restored_checkpoint_is_where_training_goes_on(tmp_path: Any) -> None:
    data = batches([8, 6, 4, 8])

    def trained(strategy: Any, folder: Any, parts: Sequence[Any]) -> Trained:
        made = Trained(strategy)
        items = {"w": made.w, "inner": made.optimizer, "outer": strategy.outer_optimizer, "seen": made.seen}
        manager = jd.CheckpointManager(jd.Checkpoint(**items), folder, max_to_keep=1, block=True)
        manager.restore_or_initialize()
        made.run(parts)
        manager.save()
        return made

    weights: list[Any] = []
    made: Any = None
    for name, parts in (("whole", [data]), ("parts", [data[:2], data[2:]])):
        for part in parts:
            strategy = LocalJob([1], sync_every=2, outer_optimizer=OUTER).strategy(0)
            with contextlib.closing(strategy):
                made = trained(strategy, tmp_path / name, part)
        weights.append(made.weights)
        assert int(made.seen) == sum(len(x) for x, _ in data)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *weights)


def test_slots_in_slices_and_variables_of_no_island() -> None:
    outside = jd.Variable(0, aggregation="SUM")
    with contextlib.closing(LocalJob([2], sync_every=2, outer_optimizer=optax.sgd(1.0)).strategy(0)) as strategy:
        with strategy.scope():
            w = jd.Variable(np.ones(8, np.float32))
            optimizer = jd.Optimizer(optax.adam(RATE), [w], shard_update=True)

        def replica(x: jax.Array) -> None:
            optimizer.apply_gradients(jd.grad(lambda: jnp.sum(w * x), [w])())

        step = jd.function(lambda x: strategy.run(replica, (x,)))
        for _ in range(4):
            step(jnp.ones(8))
        np.testing.assert_allclose(np.asarray(w), 1 - 4 * RATE, rtol=1e-5)

        def both() -> None:
            w.assign(w * 2)
            outside.assign_add(1)

        with pytest.raises(VariableError, match=r"was not made in the scope of the ElasticStrategy"):
            jd.function(both)()
