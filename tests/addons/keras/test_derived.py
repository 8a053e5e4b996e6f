"""Logs that are computed of metrics' results: those of the whole epoch, as on one device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
from keras_models import X, Y, assert_same, both, crossentropy, devices, keras, under

ops: Any = keras.ops
Made = Callable[[dict[str, Any], Any], dict[str, Any]]
"""Logs of a model, made of those of its metrics and of its predictions."""
UNEVEN = 6
"""Of 16 examples: on four replicas 2, 2, 2, 0, twice, then 1 each."""


def functions(logs: dict[str, Any], _: Any) -> dict[str, Any]:
    """Functions of one result and of two, nested ones, a list, and one of the whole batch beside them."""
    nll, seen = logs["nll"], logs["seen"]
    return {
        "perplexity": ops.exp(nll),
        "twice": 2 * nll,
        "same": nll,
        "both": nll + seen,
        "inner": {"root": ops.sqrt(nll), "deeper": {"ratio": ops.where(seen > 0, nll / seen, 0.0)}},
        "compiled": jax.jit(lambda one, other: jax.nn.relu(one - other))(nll, seen),
        "constant": 3.0,
    }


def mixed(logs: dict[str, Any], y_pred: Any) -> dict[str, Any]:
    return {"mixed": ops.mean(ops.square(y_pred)) + logs["nll"], "alone": ops.mean(ops.square(y_pred))}


def metrics() -> list[Any]:
    nll = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="nll")
    return [nll, keras.metrics.MeanMetricWrapper(lambda y, p: ops.max(ops.abs(p), axis=-1), name="seen")]


class Overriding(keras.Model):
    """Logs of `compute_metrics`."""

    made: Made = staticmethod(functions)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, **self.made(logs, y_pred)}


class Stateless(keras.Model):
    """Logs of steps of its own, which know of no metrics of `compile`."""

    made: Made = staticmethod(functions)

    @property
    def metrics(self) -> list[Any]:
        return self.own

    def updated(self, values: Any, y: Any, p: Any) -> Any:
        logs: dict[str, Any] = {}
        new: list[Any] = []
        for metric in self.own:
            part = metric.stateless_update_state(values[len(new) : len(new) + len(metric.variables)], y, p)
            logs[metric.name] = metric.stateless_result(part)
            new += part
        return {**logs, **self.made(logs, p)}, new

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, layers, slots, values = state
        x, y = data

        def loss(trainable: Any) -> Any:
            p, _ = self.stateless_call(trainable, layers, x, training=True)
            return ops.mean(keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)), p

        (_, p), grads = jax.value_and_grad(loss, has_aux=True)(trainable)
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        logs, values = self.updated(values, y, p)
        return logs, (trainable, layers, slots, values)

    def test_step(self, state: Any, data: Any) -> Any:
        trainable, layers, values = state
        x, y = data
        p, _ = self.stateless_call(trainable, layers, x, training=False)
        logs, values = self.updated(values, y, p)
        return logs, (trainable, layers, values)


def model_of(kind: Any, made: Made = functions, own: Callable[[], list[Any]] = metrics, **compiled: Any) -> Any:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8,))
    model = kind(inputs, keras.layers.Dense(3)(inputs))
    model.made = made
    if issubclass(kind, Stateless):
        model.own = own()
        model.compile("sgd", **compiled)
    else:
        model.compile("sgd", crossentropy(), metrics=own(), **compiled)
    return model


def shown(model: Any, size: int = UNEVEN) -> dict[str, Any]:
    """The logs of two epochs, and of an evaluation, flat."""
    history = model.fit(X, Y, batch_size=size, epochs=2, shuffle=False, verbose=0).history
    tested = model.evaluate(X, Y, batch_size=size, verbose=0, return_dict=True)
    found: dict[str, Any] = {}

    def put(name: str, value: Any) -> None:
        for key, inner in value.items() if isinstance(value, dict) else ():
            put(f"{name} {key}", inner)
        if not isinstance(value, dict):
            found[name] = np.asarray(value, np.float32)

    for name, epochs in history.items():
        for number, value in enumerate(epochs):
            put(f"{name} of {number}", value)
    for name, value in tested.items():
        put(f"test {name}", value)
    return found


def without_warnings(model: Any, size: int = UNEVEN) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return shown(model, size)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("size", [UNEVEN, 8])
@pytest.mark.parametrize("kind", [Overriding, Stateless])
def test_functions_of_results(kind: Any, size: int, replicas: int) -> None:
    strategy = jd.MirroredStrategy(devices(replicas))
    assert_same(*both(lambda: model_of(kind), lambda model: without_warnings(model, size), strategy))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Overriding, Stateless])
def test_functions_of_results_in_python(kind: Any) -> None:
    strategy = jd.MirroredStrategy(devices(2))
    plain = without_warnings(model_of(kind))
    assert_same(plain, under(strategy, lambda: model_of(kind, run_eagerly=True), without_warnings))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Overriding, Stateless])
def test_functions_of_results_under_shards(kind: Any) -> None:
    strategy = jd.FullyShardedStrategy(devices())
    assert_same(*both(lambda: model_of(kind), without_warnings, strategy))


class Hits(keras.metrics.Metric):
    """Counts predictions of one class, that are right or not, and the others."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.true = self.add_variable((), "zeros", name="true")
        self.false = self.add_variable((), "zeros", name="false")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        of_class = (ops.argmax(p, axis=-1) if self.name == "precision" else y) == 1
        right = ops.argmax(p, axis=-1) == y
        self.true.assign_add(ops.sum(ops.cast(ops.logical_and(of_class, right), "float32")))
        self.false.assign_add(ops.sum(ops.cast(ops.logical_and(of_class, ops.logical_not(right)), "float32")))

    def result(self) -> Any:
        return self.true / (self.true + self.false + 1e-7)


@pytest.mark.parametrize("kind", [Overriding, Stateless])
def test_f1_of_precision_and_recall(four: jd.Strategy, kind: Any) -> None:
    def f1(logs: dict[str, Any], _: Any) -> dict[str, Any]:
        precision, recall = logs["precision"], logs["recall"]
        return {"f1": 2 * precision * recall / (precision + recall + 1e-7)}

    def build() -> Any:
        return model_of(kind, f1, lambda: [Hits("precision"), Hits("recall")])

    assert_same(*both(build, without_warnings, four))


class Annealing(Overriding):
    """Weights a result with a variable, which a callback changes."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "weighted": self.beta.value * logs["nll"]}


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_variables_in_logs_have_the_values_of_the_step(eager: bool) -> None:
    # Plain Keras on JAX would keep the value that the variable had when the step was compiled.
    with jd.MirroredStrategy(devices(2)).scope():
        model = model_of(Annealing, run_eagerly=eager)
        model.beta = model.add_weight(shape=(), initializer="ones", trainable=False, name="beta")
    for beta in (1.0, 0.25):
        model.beta.assign(beta)
        found = without_warnings(model, 8)
        for name in ("{} of 1", "test {}"):
            np.testing.assert_allclose(found[name.format("weighted")], beta * found[name.format("nll")], rtol=2e-5)


class Resting(Stateless):
    """Has a metric that evaluation leaves alone, of which the logs tell all the same."""

    def test_step(self, state: Any, data: Any) -> Any:
        trainable, layers, values = state
        x, y = data
        p, _ = self.stateless_call(trainable, layers, x, training=False)
        nll, seen = self.own
        mine = nll.stateless_update_state(values[: len(nll.variables)], y, p)
        rest = values[len(nll.variables) :]
        total = nll.stateless_result(mine) + 2 * seen.stateless_result(rest)
        return {"total": total}, (trainable, layers, [*mine, *rest])


def test_metrics_that_a_step_leaves_alone_have_their_values(four: jd.Strategy) -> None:
    def use(model: Any) -> dict[str, Any]:
        x, y = X[:8], Y[:8]
        model.fit(x, y, batch_size=8, verbose=0)
        for variable in model.own[1].variables:
            variable.assign(variable + 3)
        # evaluate() resets metrics: kept from that, the second has what it had.
        model.own[1].reset_state = lambda: None
        return {name: [value] for name, value in model.evaluate(x, y, verbose=0, return_dict=True).items()}

    assert_same(*both(lambda: model_of(Resting), use, four))


@pytest.mark.parametrize("kind", [Overriding, Stateless])
def test_logs_of_a_metric_and_of_the_batch_are_told(four: jd.Strategy, kind: Any) -> None:
    with four.scope():
        model = model_of(kind, mixed)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = shown(model, 8)
        shown(model, 8)
    texts = [text for text in (str(one.message) for one in told) if "earlier batches" in text]
    # Of the training step and of the evaluation step, once each.
    assert len(texts) == 2
    assert all(text.startswith("'mixed' in the logs") and "HINT: give it a metric" in text for text in texts)
    plain = shown(model_of(kind, mixed), 8)
    # Without the metric it is the mean of the batch, as it was.
    name = "test alone"
    np.testing.assert_allclose(found[name], plain[name], rtol=2e-5)


class Compiled(Stateless):
    """Has compiled all of the step's logs by itself: what they are of shows in that function only."""

    def updated(self, values: Any, y: Any, p: Any) -> Any:
        return jax.jit(super().updated)(values, y, p)


def test_logs_of_a_function_that_makes_metrics_too(four: jd.Strategy) -> None:
    def made(logs: dict[str, Any], p: Any) -> dict[str, Any]:
        return {"perplexity": ops.exp(logs["nll"]), "size": ops.mean(p)}

    def use(model: Any) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*earlier batches")
            return shown(model, 8)

    assert_same(*both(lambda: model_of(Compiled, made), use, four))
