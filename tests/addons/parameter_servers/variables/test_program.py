"""Compiled steps on workers: one request to each server, operations that keep what others wrote."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.parameter_servers.server.store import Store
from jaxtribute.errors import ArgumentError, TraceError
from jaxtribute.partitioners import FixedShardsPartitioner
from parameter_servers.clusters import coordinated, float32, int32, threads

ONES = np.ones(3, np.float32)


def mlp_losses(strategy: Any, run: Any, transform: Any, steps: int = 6) -> list[float]:
    """The same model and step under any strategy; `run` calls the step."""
    random = np.random.default_rng(0)
    with strategy.scope():
        shapes = [(8, 16), (16,), (16, 4), (4,)]
        variables = [jd.Variable(random.normal(size=s) * 0.3, dtype=np.float32, name=f"v{s}") for s in shapes]
        seen = jd.Variable(0, dtype=np.int32, aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA)
        optimizer = jd.Optimizer(transform, variables)

    def update(x: jax.Array, y: jax.Array) -> jax.Array:
        def loss() -> jax.Array:
            w, b, u, c = variables
            logits = jax.nn.relu(x @ w + b[None, :]) @ u + c[None, :]
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return jd.nn.compute_average_loss(losses, global_batch_size=8)

        value, gradients = jd.value_and_grad(loss, variables)()
        optimizer.apply_gradients(gradients)
        seen.assign_add(jnp.int32(1))
        return value

    @jd.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(update, args=batch), axis=None)

    losses: list[float] = []
    for _ in range(steps):
        batch = random.normal(size=(8, 8)).astype(np.float32), random.integers(0, 4, 8).astype(np.int32)
        losses.append(float(run(step, batch)))
    assert int(seen.numpy()) == steps
    return losses


ON_THE_COORDINATOR = pytest.mark.filterwarnings("ignore:strategy.run.* runs on the coordinator")


@pytest.mark.slow
@ON_THE_COORDINATOR
def test_one_step_function_gives_equal_losses_under_every_strategy() -> None:
    transform = optax.sgd(0.1, momentum=0.9)  # Adam would not notice gradients that are too large

    def locally(strategy: Any) -> Any:
        def run(step: Any, batch: Any) -> Any:
            rows = [np.split(part, strategy.num_replicas_in_sync) for part in batch]
            return step(
                tuple(
                    strategy.experimental_distribute_values_from_function(
                        lambda c, part=part: jnp.asarray(part[c.replica_id_in_sync_group])
                    )
                    for part in rows
                )
            )

        return run

    expected = mlp_losses(one := jd.OneDeviceStrategy("cpu:0"), locally(one), transform)
    for other in (jd.MirroredStrategy(["cpu:0", "cpu:1"]), jd.experimental.CentralStorageStrategy(["cpu:0", "cpu:1"])):
        np.testing.assert_allclose(mlp_losses(other, locally(other), transform), expected, atol=1e-5)
    with coordinated(servers=2, partitioner=FixedShardsPartitioner(2)) as coordinator:
        scheduled = mlp_losses(
            coordinator.strategy, lambda step, batch: coordinator.schedule(step, (batch,)).fetch(), transform
        )
    np.testing.assert_allclose(scheduled, expected, atol=1e-5)
    with threads() as strategy:  # called on the coordinator itself
        np.testing.assert_allclose(
            mlp_losses(strategy, lambda step, batch: step(batch), transform), expected, atol=1e-5
        )


def servers_of(variable: Any) -> list[int]:
    return [shard.server for shard in variable.layout.shards]


def requests_of(strategy: Any) -> list[Any]:
    """The requests that the coordinator's own client sends from now on."""
    client = strategy.cluster.client
    call, seen = client.call, list[Any]()

    def spy(requests: Any) -> Any:
        seen.append({server: header for server, (header, _) in requests.items()})
        return call(requests)

    client.call = spy
    return seen


def test_a_step_is_one_pull_and_one_push_for_each_server() -> None:
    with threads(servers=2) as strategy:
        with strategy.scope():
            variables = [jd.Variable(ONES * i, name=f"v{i}") for i in range(5)]
            count = jd.Variable(0)

        @jd.function
        def step(x: Any) -> jax.Array:
            for variable in variables[1:]:
                variable.assign_sub(x)
            count.assign_add(1)
            return variables[0] + variables[1]

        step(ONES)
        seen = requests_of(strategy)
        np.testing.assert_array_equal(step(ONES), [-1, -1, -1])
    pull, push = seen
    assert sorted(pull) == sorted(push) == [0, 1]
    assert sum(len(header["pull"]) for header in pull.values()) == 2, "variables are fetched that are only written"
    assert sum(len(header["ops"]) for header in push.values()) == 5


def test_a_step_sees_its_own_writes_and_keeps_those_of_others() -> None:
    with threads() as strategy:
        with strategy.scope():
            v = jd.Variable(ONES)
            flag = jd.Variable(False)
            other = jd.Variable(float32(1))

        @jd.function
        def step() -> tuple[Any, Any]:
            v.assign_add(ONES)
            middle = v.read_value()

            def loss() -> Any:
                v.assign(v * float32(2))  # written while a function is differentiated
                flag.assign(True)
                return v.sum() * other

            jd.grad(loss, [other])()
            return middle, v.read_value()

        middle, after = step()
        np.testing.assert_array_equal(middle, 2 * ONES)
        np.testing.assert_array_equal(after, 4 * ONES)
        np.testing.assert_array_equal(v.numpy(), 4 * ONES)
        assert bool(flag.numpy())
        sevens = jd.function(lambda: v.assign(ONES * 7).read_value())
        np.testing.assert_array_equal(sevens(), 7 * ONES)
        v.scatter_add(jd.IndexedSlices(float32([1]), int32([1])))

        @jd.function
        def rows() -> Any:
            before = v.read_value()
            v.scatter_update(jd.IndexedSlices(float32([5]), int32([0])))
            return before, v.read_value()

        before, after = rows()
        np.testing.assert_array_equal(before, [7, 8, 7])
        np.testing.assert_array_equal(after, [5, 8, 7])


def test_other_shapes_and_variables_of_no_strategy() -> None:
    with threads() as strategy:
        own = jd.Variable(float32(2))
        with strategy.scope():
            v = jd.Variable(float32(1))

        @jd.function
        def step(x: Any) -> Any:
            own.assign_add(float32(1))
            return (x * v).sum() * own

        assert float(step(ONES)) == 9
        assert float(step(np.ones(5, np.float32))) == 20
        assert step.experimental_get_tracing_count() == 2
        assert float(own) == 4


def test_transformations_that_writes_cannot_leave() -> None:
    with threads() as strategy:
        with strategy.scope():
            v = jd.Variable(ONES)

        def step() -> Any:
            return jax.lax.scan(lambda c, _: (c, v.assign_add(ONES).read_value()), 0, length=2)

        with pytest.raises(TraceError):
            jd.function(step)()
        with pytest.raises(TraceError):
            step()
        with pytest.raises(TraceError, match="looked up inside a JAX transformation"):
            jd.function(lambda ids: jax.lax.map(lambda i: jd.nn.embedding_lookup(v, i), ids))(int32([1]))


@ON_THE_COORDINATOR
def test_eager_steps_do_the_same() -> None:
    with threads() as strategy:
        with strategy.scope():
            v = jd.Variable(ONES)
            optimizer = jd.Optimizer(optax.sgd(0.5), [v])

        def step(x: Any) -> Any:
            value, gradients = jd.value_and_grad(lambda: (v * x).sum() * 1.0, [v])()
            optimizer.apply_gradients(gradients)
            return value

        assert float(strategy.run(step, (ONES,))) == 3
        np.testing.assert_array_equal(v.numpy(), ONES / 2)


def test_staleness_lets_a_worker_go_on_without_fetching() -> None:
    with coordinated(staleness=2) as coordinator:
        with coordinator.strategy.scope():
            v = jd.Variable(float32(0))

        @jd.function
        def step() -> Any:
            before = v.read_value()
            v.assign_add(float32(1))
            return before

        seen = [float(coordinator.schedule(step).fetch()) for _ in range(7)]
    assert seen == [0, 0, 0, 3, 3, 3, 6]


@pytest.mark.parametrize(
    "transform",
    [optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), optax.lamb(0.1)],
    ids=["global norm", "lamb"],
)
def test_what_mixes_servers_is_refused(transform: Any) -> None:
    with threads(servers=2, partitioner=FixedShardsPartitioner(2)) as strategy, strategy.scope():
        variables = [jd.Variable(np.ones((4, 2), np.float32), name=name) for name in "ab"]
        with pytest.raises(ArgumentError, match="the update of a:0 needs"):
            jd.Optimizer(transform, variables)
    with threads() as strategy, strategy.scope():
        made = jd.Optimizer(transform, [jd.Variable(np.ones((4, 2), np.float32))])
        made.apply_gradients([np.ones((4, 2), np.float32)])


def test_slots_are_beside_their_shards_and_read_like_variables() -> None:
    with threads(servers=2, partitioner=FixedShardsPartitioner(4)) as strategy:
        with strategy.scope():
            v = jd.Variable(np.zeros((6, 2), np.float32), name="v")
            optimizer = jd.Optimizer(optax.adam(0.1), [v])
        count, mu, nu = optimizer.variables
        assert [slot.name for slot in optimizer.variables] == ["count:0", "v/mu:0", "v/nu:0"]
        assert servers_of(mu) == servers_of(v)
        optimizer.apply_gradients([np.ones((6, 2), np.float32)])
        assert int(count) == 1
        np.testing.assert_allclose(mu.numpy(), np.full((6, 2), 0.1), rtol=1e-6)
        mu.assign(np.zeros((6, 2), np.float32))
        count.assign(0)
        assert (float(mu.numpy().sum()), int(count)) == (0, 0)
        assert optimizer.state[0].nu[0] is nu


@pytest.mark.parametrize("kind", ["read", "written in jd.grad", "looked up", "eager"])
def test_a_push_has_one_name_however_often_its_closure_reads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that runs a closure again may have values already that the first had to ask for, or the reverse."""
    named: dict[int, list[int]] = {}
    exchange = Store.exchange

    def noted(self: Any, header: Any, arrays: Any) -> Any:
        if "ops" in header:
            named.setdefault(header["once"][0], []).append(header["once"][1])
        return exchange(self, header, arrays)

    with coordinated() as coordinator:
        with coordinator.strategy.scope():
            w, seen = jd.Variable(np.ones((3, 1), np.float32)), jd.Variable(np.int32(0))
            optimizer = jd.Optimizer(optax.sgd(0.1), [w])

        def loss() -> Any:
            if kind == "written in jd.grad":
                seen.assign_add(jnp.int32(1))
            return ((jd.nn.embedding_lookup(w, int32([1])) if kind == "looked up" else w.read_value()) ** 2).sum()

        def step() -> Any:
            optimizer.apply_gradients(jd.grad(loss, [w])())

        scheduled = step if kind == "eager" else jd.function(step)
        monkeypatch.setattr(Store, "exchange", noted)
        for _ in range(20):
            coordinator.schedule(scheduled)
        coordinator.join()
        monkeypatch.undo()
        coordinator.schedule(scheduled).fetch()
        if kind == "written in jd.grad":
            assert int(seen.numpy()) == 21
    assert list(named.values()) == [[1]] * 20
