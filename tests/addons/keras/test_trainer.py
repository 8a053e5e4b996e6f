"""`fit`, `evaluate` and `predict`: what one device computes, under every strategy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
from jax.core import Tracer

import jaxtribute as jd
from jaxtribute._src.addons.keras.trainer import strategy_of
from jaxtribute._src.core.execution.function import Function
from jaxtribute.errors import StrategyMixError, VariableError
from keras_models import BATCH, WEIGHTS, X, Y, assert_same, both, classifier, crossentropy, devices, keras, trained

STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "OneDevice": lambda: jd.OneDeviceStrategy("CPU:5"),
    "Mirrored": lambda: jd.MirroredStrategy(devices()),
    "CentralStorage": lambda: jd.CentralStorageStrategy(devices()),
    "FullySharded": lambda: jd.FullyShardedStrategy(devices()),
}


FEW: tuple[Any, ...] = X[:12], Y[:12]
"""Two batches of one shape: 2, 2, 2, 0."""


def learner() -> Any:
    return classifier(optimizer=keras.optimizers.Adam(0.01), weighted_metrics=["accuracy"])


def everything(model: Any) -> dict[str, Any]:
    result = trained(model, sample_weight=WEIGHTS, validation_data=(X[:6], Y[:6], WEIGHTS[:6]))
    return result | {"predictions": model.predict(X[:6], batch_size=BATCH, verbose=0)}


@pytest.fixture(scope="module")
def expected() -> tuple[dict[str, Any], dict[str, Any]]:
    keras.backend.clear_session(free_memory=False)
    return everything(learner()), trained(learner(), *FEW, sample_weight=WEIGHTS[:12])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", STRATEGIES)
def test_fit_evaluate_and_predict_give_what_one_device_gives(
    name: str, expected: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    strategy = STRATEGIES[name]()
    with strategy.scope():
        model = learner()
    assert strategy_of(model) is strategy
    if name == "Mirrored":
        assert_same(expected[0], everything(model))
    else:
        assert_same(expected[1], trained(model, *FEW, sample_weight=WEIGHTS[:12]))
    assert model.optimizer.iterations.numpy() == (6 if name == "Mirrored" else 4)


def test_variables_lie_on_all_devices(four: jd.Strategy) -> None:
    with four.scope():
        model = classifier()
    for variable in (*model.variables, *model.optimizer.variables):
        assert len(variable.value.devices()) == 4
        assert variable.stored.distribute_strategy is four


def mixed() -> Any:
    keras.utils.set_random_seed(0)
    policy = keras.DTypePolicy("mixed_float16")
    layers = [keras.layers.Input((8,)), *(keras.layers.Dense(n, dtype=policy) for n in (5, 3))]
    model = keras.Sequential(layers)
    model.dtype_policy = policy
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2, global_clipnorm=1.0)
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**10)
    model.compile(optimizer, crossentropy(), metrics=["accuracy"], steps_per_execution=2)
    return model


@pytest.mark.slow
def test_mixed_precision_overflow_accumulation_and_several_steps_in_one_execution(four: jd.Strategy) -> None:
    def use(model: Any) -> dict[str, Any]:
        ends: list[int] = []
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))
        result = trained(model, X[:12], Y[:12], class_weight={0: 1.0, 1: 2.0, 2: 0.5}, callbacks=[callback])
        result |= {"ends": np.asarray(ends), "scale": model.optimizer.dynamic_scale.numpy()}
        result |= {"predictions": model.predict(X[:12], batch_size=BATCH, verbose=0)}
        before = model.get_weights()
        model.train_on_batch(np.full((6, 8), 6e4, np.float32), Y[:6])  # gradients overflow and are skipped
        for old, new in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)
        assert model.optimizer.dynamic_scale.numpy() == result["scale"] / 2
        return result

    expected, found = both(mixed, use, four)
    assert_same(expected, found, 5e-3)
    assert found["ends"].tolist() == [1, 1]


@pytest.mark.slow
def test_steps_run_as_python_when_asked() -> None:
    seen: list[Any] = []

    class Watched(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            if not isinstance(x, (Tracer, keras.KerasTensor)):
                seen.append(x.shape)
            return x

    def build() -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Input((8,)), Watched(), keras.layers.Dense(3)])
        model.compile("sgd", "mse", run_eagerly=True)  # few operations, each compiled for each device
        return model

    def use(model: Any) -> dict[str, Any]:
        return trained(model, X[:6], X[:6, :3], epochs=1)

    assert_same(*both(build, use, jd.MirroredStrategy(devices(2))))
    assert (3, 8) in seen


@pytest.mark.slow
def test_single_batches(four: jd.Strategy) -> None:
    def use(model: Any) -> dict[str, Any]:
        return {
            "train": np.asarray(model.train_on_batch(X[:6], Y[:6], class_weight={0: 1, 1: 2, 2: 3})),
            "test": np.asarray(model.test_on_batch(X[:6], Y[:6], sample_weight=WEIGHTS[:6])),
            "predict": model.predict_on_batch(X[:3]),
        }

    assert_same(*both(classifier, use, four))


@pytest.mark.slow
def test_callbacks_see_and_change_the_training(four: jd.Strategy, tmp_path: Any) -> None:
    def use(model: Any) -> dict[str, Any]:
        path = tmp_path / f"{id(model)}.weights.h5"
        losses: list[float] = []
        hidden: list[float] = []

        class Watch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                losses.append(float(logs["loss"]))
                hidden.append(float(np.abs(self.model.get_layer("hidden").get_weights()[0]).sum()))

        callbacks = [
            keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10, restore_best_weights=True),
            keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 2),
            Watch(),
            keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
        ]
        result = trained(model, X[:12], Y[:12], epochs=5, callbacks=callbacks)
        assert path.exists()
        return result | {"losses": np.asarray(losses), "hidden": np.asarray(hidden)}

    expected, found = both(classifier, use, four)
    assert_same(expected, found)
    assert len(found["loss"]) == 2


@pytest.mark.slow
def test_a_model_keeps_its_strategy(four: jd.Strategy, tmp_path: Any) -> None:
    with four.scope():
        model = classifier()
    model.fit(X[:6], Y[:6], batch_size=BATCH, verbose=0)
    path = tmp_path / "model.keras"
    model.save(path)
    outside = keras.models.load_model(path)
    with four.scope():
        inside = keras.models.load_model(path)
    assert strategy_of(outside) is None
    assert strategy_of(inside) is four
    assert_same(trained(outside, X[:6], Y[:6], epochs=1), trained(inside, X[:6], Y[:6], epochs=1))
    with pytest.raises(StrategyMixError, match="mixing"), jd.OneDeviceStrategy("CPU:0").scope():
        inside.fit(X, Y)


@pytest.mark.slow
def test_what_is_made_outside_the_scope_is_brought_along(four: jd.Strategy) -> None:
    class Lazy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head = keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.head(x)

    def compiled(model: Any) -> dict[str, Any]:
        keras.utils.set_random_seed(3)
        before = model.predict(X[:6], verbose=0)  # builds it
        model.compile(keras.optimizers.SGD(0.1), crossentropy())
        return {"before": before, **trained(model, X[:6], Y[:6])}

    def build() -> Any:
        keras.utils.set_random_seed(2)
        return Lazy()

    assert_same(*both(build, compiled, four))
    optimizer = keras.optimizers.SGD(0.1)  # outside
    with four.scope():
        model = classifier(optimizer=optimizer)
    model.train_on_batch(X[:6], Y[:6])
    assert optimizer.iterations.numpy() == 1


def test_a_scope_alone_changes_nothing_for_models_of_plain_keras(four: jd.Strategy) -> None:
    model = classifier()
    model.evaluate(X, Y, batch_size=8, verbose=0)
    assert strategy_of(model) is None
    with four.scope():
        layer = keras.layers.Dense(3)
        layer.build((None, 8))
    wrapped = keras.Sequential([keras.layers.Input((8,)), layer])
    assert strategy_of(wrapped) is four  # its variables say so


def test_a_plain_model_is_not_trained_in_a_scope(four: jd.Strategy) -> None:
    model = classifier()
    before = model.get_weights()
    expected = model.predict(X[:6], verbose=0)
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(VariableError, match=r"outside.*HINT: make and compile the model"), four.scope():
            train(X[:6], Y[:6])
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
    with four.scope():
        np.testing.assert_array_equal(model.predict(X[:6], verbose=0), expected)
    with jd.OneDeviceStrategy("CPU:0").scope():
        model.train_on_batch(X[:6], Y[:6])
    assert strategy_of(model) is None


@pytest.fixture(autouse=True)
def forgotten_names() -> None:
    """Keras numbers the names of what it makes."""
    keras.backend.clear_session(free_memory=False)


class Listener(keras.callbacks.Callback):
    """Notes what it is told at the end of batches by the hooks of these names."""

    def __init__(self, names: tuple[str, ...], in_threads: bool) -> None:
        super().__init__()
        self.async_safe = in_threads
        self.told: list[Any] = []
        for name in names:
            setattr(self, name, lambda batch, logs=None, name=name: self.told.append((name, batch, logs)))

    def sorted(self) -> list[Any]:
        """What was told, by hook and batch: threads may come in any order."""
        return sorted(self.told, key=lambda entry: entry[:2])


HOOKS = "on_batch_end", "on_train_batch_end", "on_test_batch_end", "on_predict_batch_end"


@pytest.mark.quick_cases(3, whole=True)
@pytest.mark.parametrize("in_threads", [False, True])
@pytest.mark.parametrize(
    "names", [(), *((name,) for name in HOOKS), HOOKS], ids=lambda names: "+".join(names) or "none"
)
def test_callbacks_hear_of_each_batch_as_without_a_strategy(
    names: tuple[str, ...], in_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[Any] = []
    submit = ThreadPoolExecutor.submit

    def use(model: Any) -> list[list[Any]]:
        listeners = [Listener(names, in_threads) for _ in range(3)]
        model.fit(*FEW, batch_size=6, shuffle=False, verbose=0, callbacks=listeners[:1])
        model.evaluate(*FEW, batch_size=6, verbose=0, callbacks=listeners[1:2])
        model.predict(FEW[0], batch_size=6, verbose=0, callbacks=listeners[2:])
        return [listener.sorted() for listener in listeners]

    expected = use(learner())
    monkeypatch.setattr(ThreadPoolExecutor, "submit", lambda *given: submitted.append(1) or submit(*given))
    with jd.MirroredStrategy(devices(1)).scope():
        found = use(learner())
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one == other if isinstance(one, str) else np.allclose(one, other, rtol=1e-5, atol=1e-6)
    assert bool(submitted) == (in_threads and bool(names))


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("replicas", [1, 2])
def test_steps_like_the_one_before_are_repeated(replicas: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with jd.MirroredStrategy(devices(replicas)).scope():
        model = learner()
    calls: tuple[Callable[[Any, Any], Any], ...] = (
        lambda x, y: model.fit(x, y, batch_size=3, verbose=0, shuffle=False, epochs=2),
        lambda x, y: model.evaluate(x, y, batch_size=3, verbose=0),
        lambda x, _: model.predict(x, batch_size=3, verbose=0),
    )
    for call in calls:
        for _ in range(3):
            call(X, Y)  # five batches and a last one of another shape
    looked: list[int] = []
    look = Function._call_looking  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Function, "_call_looking", lambda *given: looked.append(1) or look(*given))
    for call in calls:
        call(X, Y)
    assert not looked


def test_even_predictions_are_left_on_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    with jd.MirroredStrategy(devices()).scope():
        model = classifier()
    expected = model.predict(X, batch_size=16, verbose=0)
    uneven = model.predict(X, batch_size=BATCH, verbose=0)
    np.testing.assert_allclose(uneven, expected, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr(jd.MirroredStrategy, "gather", lambda *_, **__: pytest.fail("a collective"))
    np.testing.assert_array_equal(model.predict(X, batch_size=16, verbose=0), expected)
    np.testing.assert_allclose(model.predict(X, batch_size=8, verbose=0), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(model.predict_on_batch(X), expected)


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize("kind", [keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN])
def test_states_of_rows_are_refused_where_replicas_share_the_rows(kind: Any) -> None:
    def make() -> Any:
        model = keras.Sequential([keras.Input((7, 5), batch_size=4), kind(3, stateful=True), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    x, y = np.ones((8, 7, 5), np.float32), np.ones((8, 1), np.float32)
    with jd.OneDeviceStrategy("CPU:5").scope():
        make().fit(x, y, batch_size=4, verbose=0)
    with jd.MirroredStrategy(devices()).scope():
        model = make()
    for call in (lambda: model.fit(x, y, batch_size=4, verbose=0), lambda: model.predict(x, batch_size=4, verbose=0)):
        with pytest.raises(VariableError, match=r"keeps a state for each row .* HINT: make it with stateful=False"):
            call()


def test_weights_that_a_step_updates_by_hand_are_refused_by_name() -> None:
    class Own(keras.Sequential):
        def train_step(self, state: Any, data: Any) -> Any:
            (trainable, others, slots, metrics), (x, y) = state, data

            def loss(values: Any) -> Any:
                return ((self.stateless_call(values, others, x)[0] - y) ** 2).mean()

            new = [one - 0.1 * other for one, other in zip(trainable, jax.grad(loss)(trainable), strict=True)]
            return {}, (new, others, slots, metrics)

    with jd.MirroredStrategy(devices(2)).scope():
        model: Any = Own([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    before = model.get_weights()
    with pytest.raises(VariableError, match=r"/kernel another value on each of 2 replicas.*HINT: .*stateless_apply"):
        model.fit(np.ones((8, 4), np.float32), np.ones((8, 1), np.float32), batch_size=4, verbose=0)
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))
