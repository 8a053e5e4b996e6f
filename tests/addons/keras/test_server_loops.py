"""Keras models in loops of one's own under parameter servers: one worker does what plain Keras does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.coordinator import ClusterCoordinator
from jaxtribute.errors import ArgumentError, ArgumentTypeError, VariableError
from jaxtribute.integrations.keras import shards
from jaxtribute.partitioners import FixedShardsPartitioner
from keras_loops import plain_step, train_step
from keras_models import X, Y, crossentropy, keras, stateful
from parameter_servers.clusters import threads
from processes import run_python
from samples import ALL_CASES

BATCH, STEPS = 4, 6
AT_ONCE = jd.InputOptions(experimental_per_replica_buffer_size=0)


@pytest.fixture(scope="module")
def servers() -> Iterator[Any]:
    """One server and one worker."""
    with threads() as strategy:
        yield strategy


def batches() -> Iterator[Any]:
    return itertools.cycle([(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, len(X), BATCH)])


class Endless:
    def __iter__(self) -> Iterator[Any]:
        return batches()


def per_worker() -> Any:
    strategy = jd.get_strategy()
    return strategy.distribute_datasets_from_function(lambda _: Endless(), AT_ONCE)


class Made:
    """A model with state of each kind, its optimizer and its metrics."""

    def __init__(self) -> None:
        keras.backend.clear_session(free_memory=False)
        self.model = stateful()
        self.optimizer = keras.optimizers.AdamW(0.05, global_clipnorm=0.5)
        self.loss = crossentropy()
        self.mean, self.accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    def all(self) -> dict[str, Any]:
        """All values."""
        variables = [*self.model.variables, *self.optimizer.variables, *self.mean.variables, *self.accuracy.variables]
        found = {f"{i} {variable.path}": np.asarray(variable.value) for i, variable in enumerate(variables)}
        return found | {"mean": np.asarray(self.mean.result()), "accuracy": np.asarray(self.accuracy.result())}


def step_of(made: Made, x: Any, y: Any) -> Any:
    loss = train_step(made, x, y)
    made.mean.update_state(loss)
    return loss


def plain() -> tuple[list[float], dict[str, Any]]:
    """What Keras alone computes."""
    made = Made()
    step = plain_step(made)
    losses: list[float] = []
    for x, y in itertools.islice(batches(), STEPS):
        loss = step(x, y)
        made.mean.update_state(loss)
        losses.append(float(loss))
    return losses, made.all()


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_one_worker_does_what_plain_keras_does(servers: Any, compiled: bool) -> None:
    losses, expected = plain()
    with servers.scope():
        made = Made()
    coordinator = ClusterCoordinator(servers)

    def step(iterator: Any) -> Any:
        return servers.reduce("SUM", servers.run(lambda x, y: step_of(made, x, y), args=next(iterator)), axis=None)

    step = jd.function(step) if compiled else step
    iterator = iter(coordinator.create_per_worker_dataset(per_worker))
    results = [coordinator.schedule(step, args=(iterator,)) for _ in range(STEPS)]
    coordinator.join()
    np.testing.assert_allclose([float(one) for one in coordinator.fetch(results)], losses, rtol=2e-5)
    found = made.all()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=1e-5, err_msg=name)
    assert all(type(variable.stored).__name__ == "ServerVariable" for variable in made.optimizer.variables)
    made.accuracy.reset_state()
    assert float(made.accuracy.result()) == 0.0


def scheduled(strategy: Any, function: Any) -> Any:
    """What a function gives on a worker."""
    coordinator = ClusterCoordinator(strategy)
    result = coordinator.schedule(function)
    coordinator.join()
    return result.fetch()


@pytest.fixture
def dense(servers: Any) -> Any:
    """A layer on the servers."""
    with servers.scope():
        layer = keras.layers.Dense(2, kernel_initializer="ones")
        layer.build((None, 3))
    return layer


@pytest.mark.parametrize("make", [lambda: keras.layers.Dropout(0.5, seed=1), keras.metrics.Mean])
def test_what_is_made_on_a_worker_is_refused_by_name(servers: Any, make: Any) -> None:
    with pytest.raises(VariableError, match=r"Keras variable .* is created in a function that runs on a worker.*HINT"):
        scheduled(servers, lambda: make().variables)


def test_a_model_that_is_built_on_a_worker_is_refused_by_name(servers: Any) -> None:
    with servers.scope():
        model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(VariableError, match=r"kernel is created in a function that runs on a worker.*keras.Input"):
        scheduled(servers, lambda: model(np.ones((1, 3), np.float32)))


@pytest.mark.parametrize("wrap", [jd.function, lambda function: function])
def test_a_seed_made_outside_of_the_scope_does_not_stand_still(servers: Any, wrap: Any) -> None:
    dropout = keras.layers.Dropout(0.5, seed=1)

    @wrap
    def step(x: Any) -> Any:
        return servers.run(lambda x: dropout(x, training=True), args=(x,))

    with pytest.raises(VariableError, match=r"seed_generator_state was not made in the scope.*HINT"):
        scheduled(servers, lambda: step(np.ones((2, 4), np.float32)))


def test_seeds_made_in_the_scope_advance_and_differ_between_workers() -> None:
    with threads(workers=2) as strategy:
        with strategy.scope():
            dropout = keras.layers.Dropout(0.5, seed=1)
        plain_ones = keras.layers.Dropout(0.5, seed=1)
        coordinator = ClusterCoordinator(strategy)
        ones = np.ones((64,), np.float32)

        @jd.function
        def step(x: Any) -> Any:
            return strategy.run(lambda x: dropout(x, training=True), args=(x,))

        def call() -> Any:
            return jd.coordinator.experimental_get_current_worker_index(), step(ones)

        drawn = [coordinator.schedule(call) for _ in range(12)]
        masks = [(int(worker), bytes(np.asarray(mask))) for worker, mask in coordinator.fetch(drawn)]
    expected = {bytes(np.asarray(plain_ones(ones, training=True))) for _ in range(12)}
    of_first = {mask for worker, mask in masks if worker == 0}
    of_second = {mask for worker, mask in masks if worker == 1}
    assert of_first <= expected
    assert not of_second & expected
    assert len(of_first | of_second) > 6


def test_a_copy_on_workers_is_not_left_behind(servers: Any) -> None:
    scaled = keras.layers.Normalization(mean=1.0, variance=4.0)
    scaled.build((1, 2))
    frozen = keras.layers.Dense(2, kernel_initializer="ones", trainable=False)
    frozen.build((None, 2))

    def step() -> Any:
        return frozen(scaled(np.array([[3.0, 5.0]], np.float32)))

    np.testing.assert_allclose(np.asarray(scheduled(servers, step)), [[3.0, 3.0]])
    with pytest.raises(VariableError, match=r"kernel was not made in the scope.*have a copy.*HINT"):
        frozen.set_weights([np.zeros((2, 2)), np.zeros(2)])


def test_a_worker_sees_what_the_coordinator_writes(servers: Any, dense: Any) -> None:
    step = jd.function(lambda: dense(np.ones((1, 3), np.float32)))
    coordinator = ClusterCoordinator(servers)
    assert np.asarray(coordinator.schedule(step).fetch()).tolist() == [[3.0, 3.0]]
    dense.set_weights([np.full((3, 2), 2.0), np.ones(2)])
    assert np.asarray(coordinator.schedule(step).fetch()).tolist() == [[7.0, 7.0]]


def test_a_layer_that_is_frozen_is_so_on_workers(servers: Any, dense: Any) -> None:
    step = jd.function(lambda: jnp.asarray(len(dense.trainable_variables)))
    coordinator = ClusterCoordinator(servers)
    found = []
    for trainable in (True, False, True):
        dense.trainable = trainable
        found.append([int(coordinator.schedule(step).fetch()) for _ in range(2)])
    assert found == [[2, 2], [0, 0], [2, 2]]


def test_an_optimizer_of_unknown_variables_says_to_build_it(servers: Any, dense: Any) -> None:
    with servers.scope():
        other = keras.layers.Dense(2)
        other.build((None, 3))
        optimizer = keras.optimizers.SGD(0.5)

    def step() -> Any:
        other(np.ones((1, 3), np.float32))
        gradients = [np.ones((3, 2), np.float32), np.ones(2, np.float32)]
        optimizer.apply_gradients(zip(gradients, dense.trainable_variables, strict=True))

    with pytest.raises(ArgumentError, match=r"not on the parameter servers: it is not built.*HINT.*build"):
        scheduled(servers, step)
    optimizer.build(dense.trainable_variables)
    ClusterCoordinator(servers).schedule(step).fetch()
    assert np.asarray(dense.kernel).tolist() == [[0.5, 0.5]] * 3
    assert int(optimizer.iterations.value) == 1

    def other_step() -> Any:
        optimizer.apply([np.ones((3, 2), np.float32)], [other.kernel])

    with pytest.raises(ArgumentError, match=r"updates 2 variables and was given 1 gradients.*HINT"):
        scheduled(servers, other_step)


def test_a_variable_of_the_strategys_own_is_refused_by_name(servers: Any) -> None:
    with servers.scope():
        own, optimizer = jd.Variable(np.ones(3, np.float32), name="own"), keras.optimizers.SGD(0.5, momentum=0.9)

    def step() -> Any:
        optimizer.apply_gradients([(np.ones(3, np.float32), own)])

    with pytest.raises(ArgumentError, match=r"update own:0 on the parameter servers.*HINT: make jd.Optimizer"):
        scheduled(servers, step)


def test_an_optimizer_builds_itself_on_the_coordinator(servers: Any, dense: Any) -> None:
    with servers.scope():
        optimizer = keras.optimizers.SGD(0.5, momentum=0.5)

    @jd.function
    def step() -> None:
        optimizer.apply([jnp.ones((3, 2)), jnp.ones(2)], dense.trainable_variables)

    with servers.scope():
        step()
        step()
    np.testing.assert_allclose(np.asarray(dense.kernel)[0], [-0.25, -0.25])
    assert int(optimizer.iterations.value) == 2


def test_a_value_that_has_no_difference_is_written(servers: Any) -> None:
    with servers.scope():
        best = keras.Variable(np.inf, trainable=False, aggregation="sum")

    @jd.function
    def step(loss: Any) -> None:
        best.assign(jnp.minimum(best.value, loss))

    for loss in (2.0, 0.5, 1.0):
        ClusterCoordinator(servers).schedule(step, args=(np.float32(loss),)).fetch()
    assert float(best.value) == 0.5


def test_a_metric_of_another_strategy_is_refused(servers: Any) -> None:
    with jd.OneDeviceStrategy("CPU:0").scope():
        metric = keras.metrics.Mean()
    with pytest.raises(ArgumentTypeError, match=r"Mean .* was not made in the strategy's scope.*HINT"):
        scheduled(servers, lambda: metric.update_state(1.0))


def test_shards_of_a_layer_are_on_their_servers() -> None:
    with threads(servers=2, partitioner=FixedShardsPartitioner(2)) as strategy:
        with strategy.scope():
            layer = keras.layers.Dense(3)
            layer.build((4, 4))
        first, second, *bias = shards([layer.kernel, layer.bias])
        assert [part.shape for part in (first, second)] == [(2, 3), (2, 3)]
        assert first.device != second.device
        assert [part.shape for part in bias] == [(2,), (1,)]
        second.assign(np.ones((2, 3), np.float32))
        np.testing.assert_array_equal(layer.get_weights()[0][2:], np.ones((2, 3)))
    alone = keras.Variable(1.0)
    assert shards([alone]) == [alone]


@pytest.mark.ray
@pytest.mark.skipif(not ALL_CASES, reason="test_scheduling.py kills a worker process in fit")
def test_a_worker_process_is_killed_in_a_loop_of_ones_own() -> None:
    program = Path(__file__).parents[2] / "support" / "keras_loops.py"
    output = run_python(program, timeout=220, env={"KERAS_BACKEND": "jax"})
    assert "17 values as in plain Keras" in output, output
