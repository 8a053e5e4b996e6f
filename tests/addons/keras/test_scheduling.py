"""`fit` under parameter servers: what one device computes where one worker trains, and every step counted with more."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ContextError, OutOfRangeError
from jaxtribute.experimental import DatasetCreator
from keras_models import X, Y, assert_same, classifier, crossentropy, keras, stateful
from parameter_servers.clusters import SHARED, engine_of, threads
from processes import run_python

BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, len(X), 4)]
STEPS = len(BATCHES)


class Endless:
    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(BATCHES)


def endless(context: Any) -> Any:
    assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 1)
    clusters = importlib.import_module(
        "parameter_servers.clusters"
    )  # a name of this module would be copied to the worker
    clusters.SHARED.setdefault("workers", set()).add(jd.coordinator.experimental_get_current_worker_index())
    return Endless()


AT_ONCE = DatasetCreator(endless, jd.InputOptions(experimental_per_replica_buffer_size=0))
"""Without threads, which would stay as long as the worker."""


class Ends:
    def __iter__(self) -> Iterator[Any]:
        return iter(BATCHES)


@pytest.fixture(scope="module")
def servers() -> Iterator[Any]:
    """One server and one worker."""
    with threads() as strategy:
        yield strategy


@pytest.fixture(autouse=True)
def forgotten_names() -> None:
    keras.backend.clear_session(free_memory=False)


def everything() -> Any:
    """Layers with state, a constraint, clipped gradients, a metric."""
    model = stateful()
    model.compile(keras.optimizers.AdamW(0.05, global_clipnorm=0.5), crossentropy(), metrics=["accuracy"])
    return model


class AtEnds(keras.callbacks.Callback):
    """Notes what a callback sees when an epoch ends."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.sums: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.steps.append(int(self.model.optimizer.iterations.numpy()))
        self.sums.append(float(np.abs(self.model.get_weights()[0]).sum()))


def used(model: Any, x: Any, validation: Any, path: Path) -> dict[str, Any]:
    seen = AtEnds()
    callbacks = [
        seen,
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        keras.callbacks.ModelCheckpoint(path, save_best_only=True, save_weights_only=True),
        keras.callbacks.TerminateOnNaN(),
    ]
    result = model.fit(
        x,
        steps_per_epoch=STEPS,
        epochs=3,
        callbacks=callbacks,
        validation_data=validation,
        validation_steps=STEPS if callable(validation) else None,
        shuffle=False,
        verbose=0,
    ).history
    assert path.exists()
    result = {name: np.asarray(values) for name, values in result.items()}
    result |= {f"weight {i}": weight for i, weight in enumerate(model.get_weights())}
    result |= {"rate": model.optimizer.learning_rate.numpy(), "steps": seen.steps, "sums": seen.sums}
    result |= {"evaluated": model.evaluate(X, Y, batch_size=4, verbose=0), "predicted": model.predict(X, verbose=0)}
    return result | {"more": model.train_on_batch(*BATCHES[0])}


OPTIMIZERS = sorted(
    name
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer) and name != "Optimizer"
)


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "Muon"] + ["Muon"])
def test_each_of_kerass_optimizers_trains_on_a_server_as_on_one_device(servers: Any, name: str) -> None:
    def trained(data: Any) -> list[Any]:
        model = stateful()
        of: dict[str, Callable[[], Any]] = {
            "LossScaleOptimizer": lambda: keras.optimizers.SGD(0.05),
            "MultiOptimizer": lambda: keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.05)),
        }
        model.compile(getattr(keras.optimizers, name)(of.get(name, lambda: 0.05)()), crossentropy())
        history = model.fit(data, steps_per_epoch=STEPS, epochs=2, shuffle=False, verbose=0).history
        return [history["loss"], *model.get_weights(), *(variable.numpy() for variable in model.optimizer.variables)]

    batches = itertools.cycle(BATCHES)
    with jd.OneDeviceStrategy("CPU:0").scope():
        expected = trained(one for one in batches)
    with servers.scope():
        found = trained(AT_ONCE)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_one_worker_gives_what_one_device_gives(servers: Any, tmp_path: Path) -> None:
    with jd.OneDeviceStrategy("CPU:0").scope():
        model = everything()
    batches = itertools.cycle(BATCHES)
    expected = used(model, (one for one in batches), (X, Y), tmp_path / "a.weights.h5")
    with servers.scope():
        model = everything()
    found = used(model, AT_ONCE, AT_ONCE, tmp_path / "b.weights.h5")
    assert found["steps"] == [4, 8, 12]
    assert_same(expected, found, 1e-5)
    assert type(model.weights[0].stored).__name__ == "ServerVariable"
    assert all(variable.stored.layout for variable in model.optimizer.variables)
    np.testing.assert_allclose(
        model.evaluate(AT_ONCE, steps=STEPS, verbose=0), model.evaluate(X, Y, batch_size=4, verbose=0), 1e-5
    )
    model.save(tmp_path / "model.keras")
    alone = keras.models.load_model(tmp_path / "model.keras")
    with servers.scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    assert int(alone.optimizer.iterations) == 13
    again.fit(AT_ONCE, steps_per_epoch=2, epochs=1, verbose=0)
    alone.fit((one for one in Endless()), steps_per_epoch=2, shuffle=False, verbose=0)
    for one, other in zip(alone.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


class OwnStep(keras.Sequential):
    """A training step of its own, which may apply gradients twice or raise; its logs are no metrics."""

    mode = "fine"

    def train_step(self, state: Any, data: Any) -> Any:
        if self.mode == "raises":
            raise ZeroDivisionError("in a step")
        trainable, layers, slots, metrics = state
        x, y = data

        def loss(values: Any) -> Any:
            y_pred, updates = self.stateless_call(values, layers, x, training=True)
            return keras.ops.mean(keras.ops.square(keras.ops.one_hot(y, 3) - y_pred)), updates

        (value, layers), gradients = jax.value_and_grad(loss, has_aux=True)(trainable)
        for _ in range(2 if self.mode == "twice" else 1):
            trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
        return {"half": value / 2}, (trainable, layers, slots, metrics)


def error_of(model: Any) -> float:
    return float(np.mean(np.square(np.eye(3)[Y] - model.predict(X, verbose=0))))


@pytest.mark.slow
def test_several_workers_servers_and_pieces_of_variables() -> None:
    partitioner = jd.experimental.partitioners.FixedShardsPartitioner(2)
    SHARED["workers"] = set()
    with threads(2, 2, partitioner=partitioner) as strategy:
        with strategy.scope():
            keras.utils.set_random_seed(0)
            model = OwnStep([keras.layers.Input((8,)), keras.layers.Dense(3)])
            model.compile(keras.optimizers.Adam(0.05, clipnorm=1.0), steps_per_execution=2)
        before = error_of(model)
        history = model.fit(endless, steps_per_epoch=24, epochs=3, verbose=0).history
        assert error_of(model) < 0.8 * before
        assert len(history["half"]) == 3
        assert int(model.optimizer.iterations.numpy()) == 72
        assert [len(v.stored.layout.shards) for v in model.trainable_variables] == [2, 2]
        assert SHARED["workers"] == {0, 1}

        class Dies(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                engine_of(jd.coordinator.ClusterCoordinator(strategy)).crash("worker", 0)

        model.fit(endless, steps_per_epoch=8, epochs=2, callbacks=[Dies()], verbose=0)
        assert int(model.optimizer.iterations.numpy()) == 88
        model.mode = "raises"
        model.make_train_function(force=True)
        with pytest.raises(ZeroDivisionError, match="in a step"):
            model.fit(endless, steps_per_epoch=100, verbose=0)
        model.mode = "twice"
        model.make_train_function(force=True)
        with pytest.raises(ContextError, match="applies gradients twice"):
            model.fit(endless, steps_per_epoch=4, verbose=0)
        with strategy.scope():
            factored = classifier(optimizer=keras.optimizers.Adafactor())
        with pytest.raises(ArgumentError, match=r"slot of another shape.*HINT:.*use one server"):
            factored.fit(endless, steps_per_epoch=4, verbose=0)


@pytest.mark.slow
def test_accumulated_gradients_on_two_servers_give_what_one_device_gives() -> None:
    def accumulating() -> Any:
        keras.utils.set_random_seed(0)
        return classifier(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))

    plain = accumulating()
    plain.fit((batch for batch in itertools.cycle(BATCHES)), steps_per_epoch=STEPS, epochs=2, shuffle=False, verbose=0)
    partitioner = jd.experimental.partitioners.FixedShardsPartitioner(2)
    with threads(2, 1, partitioner=partitioner) as strategy:
        with strategy.scope():
            model = accumulating()
        model.fit(AT_ONCE, steps_per_epoch=STEPS, epochs=2, verbose=0)
        found = model.get_weights()
    for one, other in zip(plain.get_weights(), found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class Watch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...


class WatchesTests(keras.callbacks.Callback):
    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None: ...


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "arrays": ("fit", r"x of type ndarray.*HINT: pass jd.experimental.DatasetCreator", {"x": X, "y": Y}),
    "steps": ("fit", "number of steps. HINT: pass steps_per_epoch", {"x": endless}),
    "labels": ("fit", "y with a function.*HINT: let the dataset", {"x": endless, "y": Y, "steps_per_epoch": 1}),
    "batches": ("fit", "see every batch: Watch;.*HINT", {"x": endless, "callbacks": Watch()}),
    "lambda": (
        "fit",
        "LambdaCallback",
        {"x": endless, "callbacks": [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)]},
    ),
    "frequency": (
        "fit",
        "ModelCheckpoint",
        {"x": endless, "callbacks": [keras.callbacks.ModelCheckpoint("a.keras", save_freq=3)]},
    ),
    "validation": ("fit", "WatchesTests", {"x": endless, "validation_data": endless, "callbacks": [WatchesTests()]}),
    "evaluation": ("evaluate", "WatchesTests", {"x": endless, "callbacks": [WatchesTests()]}),
    "steps of evaluation": ("evaluate", "steps to evaluate", {"x": endless}),
    "prediction": ("predict", "no order. HINT: pass arrays", {"x": endless, "steps": 2}),
}


@pytest.fixture(scope="module")
def simple(servers: Any) -> Any:
    with servers.scope():
        return classifier()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(simple: Any, name: str) -> None:
    method, message, arguments = REFUSED[name]
    with pytest.raises((ContextError, ArgumentError), match=message):
        getattr(simple, method)(**arguments, verbose=0)


@pytest.mark.slow
def test_errors_of_workers_and_models(servers: Any) -> None:
    with servers.scope():
        model = classifier(run_eagerly=True)
    with pytest.raises(ContextError, match=r"run_eagerly=True.*HINT: compile the model without it"):
        model.fit(endless, steps_per_epoch=1)
    with servers.scope():
        model = classifier(optimizer=keras.optimizers.SGD(0.1))
    with pytest.raises(OutOfRangeError, match="the data of this worker has ended"):
        model.fit(DatasetCreator(lambda context: Ends(), AT_ONCE.input_options), steps_per_epoch=7, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 4
    model.fit(AT_ONCE, steps_per_epoch=3, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 7
    model.trainable = False
    with servers.scope():
        model.compile("sgd", crossentropy())
    before = model.get_weights()
    model.fit(AT_ONCE, steps_per_epoch=2, verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.ray
def test_a_worker_process_is_killed_during_fit() -> None:
    output = run_python(
        Path(__file__).parents[2] / "support" / "keras_servers.py", timeout=220, env={"KERAS_BACKEND": "jax"}
    )
    assert "steps 60, killed 1" in output, output
