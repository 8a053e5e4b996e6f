"""Keras models, optimizers and metrics in loops of one's own: several replicas do what one does."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

import jaxtribute as jd
from jaxtribute.errors import ArgumentError
from keras_models import keras

ROWS, BATCH = 13, 8
X = np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)


class Loop:
    """A model, its optimizer and its metrics, made in a strategy's scope; a training step over the replicas."""

    def __init__(self, strategy: jd.Strategy, built: bool = True) -> None:
        self.strategy = strategy
        with strategy.scope():
            keras.utils.set_random_seed(1)
            layers = [keras.layers.Dense(6, "tanh"), keras.layers.Dense(2)]
            self.model = keras.Sequential([keras.Input((5,)), *layers] if built else layers)
            self.optimizer = keras.optimizers.Adam(0.05)
            self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
            self.mean, self.accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
        self.step = jd.function(self._step)

    def _replica_step(self, x: Any, y: Any) -> Any:
        def compute_loss() -> Any:
            logits = self.model(x, training=True)
            losses = self.loss(y, logits)
            return jnp.sum(losses) / BATCH, (losses, logits)

        variables = self.model.trainable_variables
        (loss, (losses, logits)), gradients = jd.value_and_grad(compute_loss, variables, has_aux=True)()
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.mean.update_state(losses)
        self.accuracy.update_state(y, logits)
        return loss

    def _step(self, batch: Any) -> Any:
        return self.strategy.reduce("SUM", self.strategy.run(self._replica_step, args=batch), axis=None)

    def run(self) -> dict[str, Any]:
        batches = [(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
        losses = [float(self.step(batch)) for batch in self.strategy.experimental_distribute_dataset(batches)]
        weights = [np.asarray(variable.value) for variable in self.model.variables]
        metrics = [float(self.mean.result()), float(self.accuracy.result())]
        return {"losses": losses, "weights": weights, "metrics": metrics, "steps": int(self.optimizer.iterations.value)}


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["steps"] == other["steps"]
    for name in ("losses", "metrics"):
        np.testing.assert_allclose(one[name], other[name], rtol=2e-5, err_msg=name)
    for a, b in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [{"reduce_op": None}, {"skip_gradients_aggregation": True}, {"experimental_aggregate_gradients": False}]
)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("make", [keras.Variable, jd.Variable], ids=["of Keras", "own"])
def test_gradients_that_the_program_has_reduced_are_applied_as_they_are(words: Any, compiled: bool, make: Any) -> None:
    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        weight, optimizer = make(np.ones(3, np.float32)), keras.optimizers.SGD(1.0)

    def replica_step(x: Any, reduced: bool) -> None:
        context = jd.get_replica_context()
        assert context is not None
        gradient = context.all_reduce("SUM", x.sum(0)) if reduced else x.sum(0)
        optimizer.apply_gradients([(gradient, weight)], **words)

    def step(reduced: bool) -> Any:
        made = lambda batch: strategy.run(replica_step, args=(batch, reduced))  # noqa: E731
        return jd.function(made) if compiled else made

    (batch,) = strategy.experimental_distribute_dataset([X[:4, :3]])
    step(True)(batch)
    np.testing.assert_allclose(np.asarray(weight), 1 - X[:4, :3].sum(0), rtol=1e-6)
    with pytest.raises(jd.errors.VariableError, match="HINT"):
        step(False)(batch)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=1.0),
    "AdamW": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
}
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "three": lambda: jd.MirroredStrategy(3),
    "four": lambda: jd.MirroredStrategy(4),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
    "sharded": lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0),
}


def own_variables(strategy: jd.Strategy, optimizer: str, how: jd.VariableAggregation, compiled: bool) -> list[Any]:
    """Two steps, the second with fewer rows, of a `jd.Variable` and a layer's kernel under one optimizer of Keras."""
    with strategy.scope():
        own = jd.Variable(np.full((5, 1), 0.1, np.float32), aggregation=how)
        layer = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)
        layer.build((None, 5))
        made = OPTIMIZERS[optimizer]()

    def replica_step(x: Any, y: Any) -> Any:
        def loss() -> Any:
            return ((x @ own + layer(x) - y[:, None]) ** 2).sum() / BATCH

        value, gradients = jd.value_and_grad(loss, [own, layer.kernel])()
        made.apply_gradients(zip(gradients, [own, layer.kernel], strict=True))
        return value

    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    step = jd.function(step) if compiled else step
    batches = [(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
    losses = [float(step(batch)) for batch in strategy.experimental_distribute_dataset(batches)]
    return [*losses, np.asarray(own), np.asarray(layer.kernel)]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("how", [jd.VariableAggregation.NONE, jd.VariableAggregation.SUM])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_variables_of_the_strategy_itself_are_updated_once(
    strategy: str, optimizer: str, how: jd.VariableAggregation, compiled: bool
) -> None:
    """Whatever their aggregation, which is for what the program writes."""
    expected = own_variables(jd.OneDeviceStrategy("CPU:0"), optimizer, how, True)
    found = own_variables(STRATEGIES[strategy](), optimizer, how, compiled)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_gradients_are_summed_by_no_other_operation() -> None:
    with pytest.raises(ArgumentError, match="HINT"):
        keras.optimizers.SGD().apply_gradients([], reduce_op="MEAN")


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return Loop(jd.OneDeviceStrategy("CPU:0")).run()


@pytest.mark.slow
def test_compiled_replicas_do_what_one_device_does(four: jd.Strategy, alone: dict[str, Any]) -> None:
    loop = Loop(four)
    same(loop.run(), alone)
    assert loop.optimizer.iterations.value == 2
    for variable in [*loop.model.variables, *loop.optimizer.variables, *loop.mean.variables]:
        first, *others = (np.asarray(copy) for copy in variable.stored.values)
        assert all(np.array_equal(first, other) for other in others)


def test_eager_replicas_build_an_optimizer_once_and_sum_what_they_write() -> None:
    two = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with two.scope():
        weight, total = keras.Variable(1.0), keras.Variable(10.0, aggregation="sum", trainable=False)
        optimizer = keras.optimizers.SGD(0.5, momentum=0.5)

    def step(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, weight)])
        total.assign_add(gradient)

    gradients = two.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group + 1)
    )
    two.run(step, args=(gradients,))
    assert [float(copy) for copy in weight.stored.values] == [-0.5, -0.5]
    assert [float(copy) for copy in total.stored.values] == [13.0, 13.0]
    assert int(optimizer.iterations.value) == 1
    assert len(optimizer.variables) == 3


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("made_by", [jd.MirroredStrategy, lambda *args: jd.FullyShardedStrategy(*args, min_bytes=0)])
def test_sparse_gradients_are_added_up_by_rows(made_by: Callable[..., jd.Strategy], replicas: int) -> None:
    strategy = made_by([f"CPU:{i}" for i in range(replicas)])
    with strategy.scope():
        table = keras.Variable(np.ones((4, 2), np.float32))
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build([table])

    def step(ids: Any) -> None:
        rows = jnp.ones((ids.shape[0], 2), jnp.float32)
        optimizer.apply([sparse.BCOO((rows, ids[:, None]), shape=(4, 2))], [table])

    ids = strategy.experimental_distribute_dataset([np.array([3, 1, 1, 0], np.int32)])
    strategy.run(step, args=(next(iter(ids)),))
    np.testing.assert_allclose(np.asarray(table)[:, 0], [0.5, 0, 1, 0.5])


def test_a_model_that_is_built_in_the_step_says_what_to_do(four: jd.Strategy) -> None:
    with pytest.raises(ArgumentError, match=r"holds none. HINT: a Keras model.*Input"):
        Loop(four, built=False).run()


def test_moving_averages_are_averaged_over_replicas(four: jd.Strategy) -> None:
    with four.scope():
        layer = keras.layers.BatchNormalization(momentum=0.0)
        layer.build((None, 5))

    @jd.function
    def step(batch: Any) -> Any:
        return four.run(lambda x: layer(x, training=True), args=(batch,))

    step(next(iter(four.experimental_distribute_dataset([X[:12]]))))
    np.testing.assert_allclose(np.asarray(layer.moving_mean.value), X[:12].mean(0), rtol=1e-5, atol=1e-6)
