"""Steps in TensorFlow's form, `train_step(self, data)`, and what else TensorFlow's programs ask of Keras."""

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from keras_models import devices, keras

X = np.random.RandomState(0).normal(size=(12, 3)).astype(np.float32)


class Gan(keras.Model):
    """Two models with two losses, and no `call`, as in Keras's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        self.second = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, kernel_initializer="ones")])
        self.loss_metric = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_metric]

    def train_step(self, data: Any) -> dict[str, Any]:
        def losses() -> Any:
            made = self.second(data)
            return tf.reduce_mean(self.first(made) ** 2), tf.reduce_mean((made - data) ** 2)

        weights = self.first.trainable_weights, self.second.trainable_weights
        (one, two), gradients = jd.value_and_grads(losses, weights)()
        for values, variables in zip(gradients, weights, strict=True):
            pairs = [
                (value / jd.get_strategy().num_replicas_in_sync, variable)
                for value, variable in zip(values, variables, strict=True)
            ]
            self.optimizer.apply_gradients(pairs[:1]) if variables is weights[0] else self.other.apply_gradients(pairs)
        self.loss_metric.update_state(one)
        return {"loss": self.loss_metric.result(), "two": two}

    def test_step(self, data: Any) -> dict[str, Any]:
        self.loss_metric.update_state(tf.reduce_mean(self.first(data)))
        return {"loss": self.loss_metric.result()}


def expected() -> tuple[list[float], Any, Any]:
    """The same in NumPy: of steps on 4 examples each the mean loss, and the weights."""
    a, b, c = np.ones((3, 1)), np.ones((3, 3)), np.zeros(3)
    losses: list[float] = []
    for start in range(0, 12, 4):
        x = X[start : start + 4].astype(np.float64)
        made = x @ b + c
        out = made @ a
        losses.append(float(np.mean(out**2)))
        of_made = 2 * (made - x) / made.size
        a, b, c = a - 0.1 * made.T @ (2 * out / 4), b - 0.1 * x.T @ of_made, c - 0.1 * of_made.sum(0)
    return losses, a, b


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("replicas", [0, 1, 2])
def test_a_train_step_of_data_alone(replicas: int, eager: bool) -> None:
    strategy = jd.MirroredStrategy(devices(replicas)) if replicas else jd.get_strategy()
    with strategy.scope():
        model = Gan()
        model.other = keras.optimizers.SGD(0.1)
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=eager)
    history = model.fit(tf.data.Dataset.from_tensor_slices(X).batch(4), epochs=1, verbose=0).history
    losses, a, b = expected()
    np.testing.assert_allclose(history["loss"], [np.mean(losses)], rtol=1e-5)
    np.testing.assert_allclose(model.first.weights[0].numpy(), a, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.second.weights[0].numpy(), b, rtol=1e-4, atol=1e-5)
    got = model.evaluate(X, batch_size=4, verbose=0)
    np.testing.assert_allclose(got, np.mean(X.astype(np.float64) @ a), rtol=1e-4, atol=1e-5)


FORMS: dict[str, tuple[Callable[[Any, Any, Any], Any], bool]] = {
    "mean": (lambda out, y, model: jnp.mean((out - y) ** 2), True),
    "half a mean": (lambda out, y, model: 0.5 * jnp.mean((out - y) ** 2), True),
    "mean by two": (lambda out, y, model: jnp.mean((out - y) ** 2) / 2, True),
    "a loss of Keras": (lambda out, y, model: keras.losses.MeanSquaredError()(y, out), False),
    "sum": (lambda out, y, model: jnp.sum((out - y) ** 2) / 8, False),
    "compute_loss": (lambda out, y, model: model.compute_loss(y=y, y_pred=out), False),
    "by the replicas": (lambda out, y, model: jnp.mean((out - y) ** 2) / _replicas(), False),
    "by the strategy's": (lambda out, y, model: jnp.mean((out - y) ** 2) * (1 / model.strategy_of_mine()), False),
    "by a number of its own": (
        lambda out, y, model: jnp.mean((out - y) ** 2) / keras.ops.cast(_replicas(), "float32"),
        False,
    ),
}
"""Losses, and whether their gradients are as many times too large as there are replicas."""


def _replicas() -> int:
    context = jd.get_replica_context()
    assert context is not None
    return context.num_replicas_in_sync


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Ftrl", "Adam", "RMSprop", "Adadelta", "Lamb"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.quick_cases(2)
def test_gradients_of_a_mean_over_a_replicas_rows_are_told(form: str, optimizer: str) -> None:
    loss_of, wrong = FORMS[form]
    strategy = jd.MirroredStrategy(2)

    class Step(keras.Sequential):
        def strategy_of_mine(self) -> int:
            return strategy.num_replicas_in_sync

        def train_step(self, data: Any) -> dict[str, Any]:
            loss = lambda: loss_of(self(data[0]), data[1], self)  # noqa: E731
            gradients = jd.value_and_grad(loss, self.trainable_weights)()[1]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return {}

    with strategy.scope():
        model = Step([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(getattr(keras.optimizers, optimizer)(0.1), "mse")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(X, X[:, :2], batch_size=8, verbose=0)
    assert ["2 times those of one device" in str(one.message) for one in told] == [True] * wrong
    assert strategy.num_replicas_in_sync == 2


def test_a_division_by_a_number_that_was_asked_for_before_may_be_meant() -> None:
    class Step(keras.Sequential):
        def train_step(self, data: Any) -> dict[str, Any]:
            loss = lambda: jnp.mean((self(data[0]) - data[1]) ** 2) / 2  # noqa: E731
            gradients = jd.grad(loss, self.trainable_weights)()
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return {}

    with jd.MirroredStrategy(2).scope():
        model = Step([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    with pytest.warns(UserWarning, match="2 times those of one device, unless a division by 2 in it is that by their"):
        model.fit(X, X[:, :2], batch_size=8, verbose=0)


class Counting(Gan):
    """Writes to attributes of its own."""

    seen_losses: Any

    def train_step(self, data: Any) -> dict[str, Any]:
        logs = super().train_step(data)
        self.steps = getattr(self, "steps", 0) + 1
        self.seen_losses.append(logs["two"])
        return logs


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("eager", [False, True])
def test_optimizers_that_are_not_built_yet(eager: bool) -> None:
    weights: list[Any] = []
    for replicas in (1, 2):
        with jd.MirroredStrategy(devices(replicas)).scope():
            model = Counting()
            model.other, model.seen_losses = keras.optimizers.Adam(0.1), []
            model.compile(keras.optimizers.Adam(0.1), run_eagerly=eager)
        model.fit(tf.data.Dataset.from_tensor_slices(X).batch(4), epochs=1, verbose=0)
        weights.append(model.get_weights())
        if eager:
            assert model.steps == len(model.seen_losses) == 3 * replicas
            assert np.isfinite([float(loss) for loss in model.seen_losses]).all()
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


class Regression(keras.Model):
    """A step as Keras's guides have it for TensorFlow, with the loss of `compile`."""

    def __init__(self, penalty: float, own: Any = None) -> None:
        super().__init__()
        self.own = own
        regularizer = keras.regularizers.L2(penalty) if penalty else None
        self.dense = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=regularizer)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        given = self.own or (lambda y, out: self.compute_loss(y=y, y_pred=out))
        own_loss = lambda: given(y, self(x))  # noqa: E731
        loss, gradients = jd.value_and_grad(own_loss, self.trainable_variables)()
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            metric.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


def fitted(
    replicas: int, batch: int, loss: Any, *, penalty: float = 0.1, eager: bool = False, own: Any = None
) -> list[Any]:
    with jd.MirroredStrategy(devices(replicas)).scope():
        model = Regression(penalty, own)
        model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=eager)
    history = model.fit(X, X.sum(1, keepdims=True) + 1, batch_size=batch, epochs=2, shuffle=False, verbose=0).history
    return [history["loss"], *model.get_weights()]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("replicas", "eager"), [(2, True), (4, False)])
@pytest.mark.parametrize("batch", [4, 5])
def test_the_loss_of_compile_is_that_of_the_whole_batch(replicas: int, batch: int, eager: bool) -> None:
    """Rows that replicas share equally, unequally, and such that some have none."""
    for one, other in zip(fitted(replicas, batch, "mse", eager=eager), fitted(1, batch, "mse"), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


OWN: dict[str, Callable[[Any, Any], Any]] = {
    "a mean": keras.losses.MeanSquaredError(),
    "two": lambda y, out: keras.losses.Huber()(y, out) + 0.5 * keras.losses.LogCosh()(y, out),
    "weighted by rows": lambda y, out: keras.losses.MeanAbsoluteError()(y, out, sample_weight=y[:, 0] ** 2),
    "of a string": keras.losses.get("MeanSquaredError"),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("replicas", "eager"), [(2, True), (2, False), (4, False)])
@pytest.mark.parametrize("batch", [4, 5])
@pytest.mark.parametrize("name", OWN)
def test_loss_objects_that_a_step_calls_are_of_the_whole_batch(
    name: str, batch: int, replicas: int, eager: bool, recwarn: pytest.WarningsRecorder
) -> None:
    own = OWN[name]
    one, several = (fitted(count, batch, "mse", penalty=0, eager=eager, own=own) for count in (1, replicas))
    for first, second in zip(one, several, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5)
    assert not any("one device" in str(told.message) for told in recwarn)


def test_a_loss_object_that_is_no_mean_over_the_rows_is_told() -> None:
    own = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    weighted = lambda y, out: own(y, out, sample_weight=y[:, 0] ** 2)  # noqa: E731
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fitted(2, 4, "mse", penalty=0, own=weighted)
    assert any("a loss of Keras, in a train_step(self, data), is a mean over weights" in str(t.message) for t in told)


def test_sums_of_a_step_of_data_alone_are_added_up_or_refused() -> None:
    total = keras.losses.MeanSquaredError(reduction="sum")
    for one, other in zip(fitted(2, 5, total, penalty=0)[1:], fitted(1, 5, total, penalty=0)[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    weighted = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    with pytest.raises(NotImplementedError, match=r"losses with \['mean_with_sample_weight'\] as reduction"):
        fitted(2, 4, weighted)


class OfRows(keras.Model):
    """Steps that make a number of a batch, and give it to a metric."""

    def __init__(self, number: Any) -> None:
        super().__init__()
        self.number, self.tracker = number, keras.metrics.Mean(name="loss")
        self.w = self.add_weight(shape=(), initializer="ones")
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, grads = jd.value_and_grad(lambda: self.number(data * self.w), self.trainable_variables)()
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        self.tracker.update_state(self.number(data * self.w))
        return {"loss": self.tracker.result()}


def of_rows(strategy: jd.Strategy, number: Any, rows: int, eager: bool, fits: bool) -> float:
    with strategy.scope():
        model = OfRows(number)
        model.compile(keras.optimizers.SGD(0.0), run_eagerly=eager)
    data = tf.data.Dataset.from_tensor_slices(X[:rows]).batch(rows)
    return model.fit(data, verbose=0).history["loss"][0] if fits else model.evaluate(data, verbose=0)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.filterwarnings("ignore:the step of .*times those of one device:UserWarning")  # of the mean, as it is
@pytest.mark.parametrize(("replicas", "fits", "eager"), [(2, True, False), (4, False, False), (2, False, True)])
def test_sums_and_means_that_metrics_get_are_those_of_one_device(replicas: int, fits: bool, eager: bool) -> None:
    for number in (tf.reduce_sum, tf.reduce_mean, lambda x: tf.reduce_sum(x) * x.shape[0]):
        one = of_rows(jd.get_strategy(), number, 5, eager, fits)
        assert of_rows(jd.MirroredStrategy(devices(replicas)), number, 5, eager, fits) == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize(("fits", "eager"), [(True, False), (False, True)])
def test_rows_by_their_numbers_are_refused_and_what_is_no_mean_is_told(fits: bool, eager: bool) -> None:
    two = jd.MirroredStrategy(devices(2))
    with pytest.raises(jd.errors.InputError, match=r"takes row 1 of a batch.*of 2 rows this replica has 1.*HINT"):
        of_rows(two, lambda x: tf.reduce_mean((x[0] - x[1]) ** 2), 2, eager, fits)
    with pytest.warns(UserWarning, match=r"uses row 0 .*each replica does so with its own rows.*HINT"):
        of_rows(two, lambda x: tf.reduce_mean((x[0] - x[1]) ** 2), 4, eager, fits)
    for number in (tf.reduce_max, lambda x: tf.reduce_mean(x**2) ** 0.5):
        with pytest.warns(UserWarning, match=r"one number for each replica which is no sum and no mean.*HINT"):
            of_rows(two, number, 5, eager, fits)


class Shown(OfRows):
    """Logs of the model's own, and one that is no array."""

    def test_step(self, data: Any) -> dict[str, Any]:
        logs = {"sum": tf.reduce_sum(data), "mean": tf.reduce_mean(data), "rows": data.shape[0], "three": 3}
        return {**super().test_step(data), **logs}


@pytest.mark.quick_cases(3, whole=True)
@pytest.mark.parametrize(("replicas", "eager"), [(2, False), (4, False), (2, True)])
@pytest.mark.parametrize("rows", [3, 5])
def test_logs_of_the_models_own_are_those_of_one_device(replicas: int, eager: bool, rows: int) -> None:
    with jd.MirroredStrategy(devices(replicas)).scope():
        model = Shown(tf.reduce_mean)
        model.compile(run_eagerly=eager)
    logs = model.evaluate(X[:rows] + 3, batch_size=rows, verbose=0, return_dict=True)
    expected = {"loss": np.mean(X[:rows] + 3), "mean": np.mean(X[:rows] + 3), "sum": np.sum(X[:rows] + 3)}
    assert {name: float(value) for name, value in logs.items()} == pytest.approx(
        {**expected, "rows": rows, "three": 3}, rel=1e-5
    )


def test_a_step_of_data_alone_that_cannot_be_traced_for_other_batches_is_told() -> None:
    def number(x: Any) -> Any:
        return tf.reduce_sum(x * np.ones((8, 3), np.float32)[: x.shape[0]])

    with pytest.warns(UserWarning, match=r"could not be traced for other numbers of examples.*HINT"):
        of_rows(jd.MirroredStrategy(devices(2)), number, 5, eager=False, fits=False)


def test_class_weights_of_a_dataset_are_those_of_arrays() -> None:
    y = (X[:, 0] > 0).astype(np.int32)
    losses: list[float] = []
    for data in ((X, y), (tf.data.Dataset.from_tensor_slices((X, y)).batch(4),)):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(
            *data, batch_size=4 if len(data) > 1 else None, shuffle=False, class_weight={0: 1.0, 1: 5.0}, verbose=0
        )
        losses.append(model.weights[0].numpy())
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("axis", [None, -1])
def test_adapt_to_a_dataset(axis: int | None, labels: bool) -> None:
    layer = keras.layers.Normalization(axis=axis)
    layer.adapt(tf.data.Dataset.from_tensor_slices((X, X[:, 0]) if labels else X).batch(5).prefetch(2))
    axes = None if axis is None else 0
    np.testing.assert_allclose(np.ravel(layer.mean), np.ravel(X.mean(axes)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.ravel(layer.variance), np.ravel(X.var(axes)), rtol=1e-5)
    bins = keras.layers.Discretization(num_bins=2)
    bins.adapt(tf.data.Dataset.from_tensor_slices(np.arange(10.0)[:, None]).batch(4))
    assert 4 <= bins.bin_boundaries[0] <= 5


@pytest.mark.quick_cases(3, whole=True)
@pytest.mark.parametrize("strategy", [jd.get_strategy, lambda: jd.MirroredStrategy(2)], ids=["alone", "mirrored"])
@pytest.mark.parametrize("anew", [True, False])
def test_each_epoch_of_fit_has_an_order_of_its_own(strategy: Callable[[], jd.Strategy], anew: bool) -> None:
    orders: list[list[float]] = []

    class Orders(keras.callbacks.Callback):
        total = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            orders.append([])
            self.total = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            total = float(logs["loss"]) * (batch + 1)
            orders[-1].append(round(total - self.total, 2))
            self.total = total

    rows = np.arange(16, dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((rows[:, None], rows)).shuffle(16, 1, reshuffle_each_iteration=anew)
    with strategy().scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", loss=lambda labels, scores: keras.ops.reshape(labels, (-1, 1)) + 0 * scores)
    data = data.batch(2)
    for _ in range(2):  # a second `fit` goes on
        model.fit(data, epochs=2, verbose=0, callbacks=[Orders()])
    assert {round(sum(order)) for order in orders} == {60}
    assert len(set(map(tuple, orders))) == (4 if anew else 1)
