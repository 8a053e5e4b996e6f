"""Metrics that a step updates with one number, and losses that meet other replicas: as on one device."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import InputError
from keras_models import X, Y, assert_same, both, classifier, crossentropy, devices, keras, under
from replicas import here

ops: Any = keras.ops
TEN = X[:10]
"""In batches of four on four replicas 1 each, twice, then 1, 1, 0, 0; on two 2 each, then 1 each."""


class Counting(keras.metrics.Metric):
    """A metric of the user's own: it adds a number, counts its calls in integers, and counts examples."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")
        self.calls = self.add_variable((), "zeros", dtype="int32", name="calls")
        self.seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, value: Any, rows: Any) -> None:
        self.total.assign_add(value)
        self.calls.assign_add(1)
        self.seen.assign_add(ops.cast(rows, "float32"))

    def result(self) -> Any:
        return {"own": self.total / ops.cast(self.calls, "float32"), "rows": self.seen + 0}


class Autoencoder(keras.Model):
    """A training and an evaluation step written out, with metrics of each kind."""

    def __init__(self, reduce: Any = ops.mean) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(8)])
        self.reduce = reduce
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.sum = keras.metrics.Sum(name="sum")
        self.count = keras.metrics.Sum(name="count")
        self.weighted = keras.metrics.Mean(name="weighted")
        self.rowwise = keras.metrics.Mean(name="rowwise")
        self.constant = keras.metrics.Mean(name="constant")
        self.own = Counting(name="mine")
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.sum, self.count, self.weighted, self.rowwise, self.constant, self.own]

    def call(self, x: Any, training: bool = False) -> Any:
        return self.net(x, training=training)

    def loss_of(self, trainable: Any, layers: Any, x: Any) -> Any:
        y, layers = self.stateless_call(trainable, layers, x, training=True)
        each = ops.sum(ops.square(x - y), axis=1)
        return self.reduce(each), (each, layers)

    def updated(self, values: Any, loss: Any, each: Any) -> Any:
        rows = ops.shape(each)[0]
        given: list[tuple[Any, ...]] = [(loss,), (2 * loss,), (rows,), (loss, rows), (each,), (3.0,), (loss, rows)]
        logs: dict[str, Any] = {"total": ops.sum(each), "half": loss / 2}
        updated: list[Any] = []
        for metric, args in zip(self.metrics, given, strict=True):
            own = metric.stateless_update_state(values[len(updated) : len(updated) + len(metric.variables)], *args)
            result = metric.stateless_result(own)
            logs.update(result if isinstance(result, dict) else {metric.name: result})
            updated += own
        return logs, updated

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, layers, optimizer, metrics = state
        both = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, (each, layers)), gradients = both(trainable, layers, data)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs, metrics = self.updated(metrics, loss, each)
        return logs, (trainable, layers, optimizer, metrics)

    def test_step(self, state: Any, data: Any) -> Any:
        trainable, layers, metrics = state
        loss, (each, layers) = self.loss_of(trainable, layers, data)
        logs, metrics = self.updated(metrics, loss, each)
        return logs, (trainable, layers, metrics)


def autoencoder(reduce: Any = ops.mean, **compiled: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = Autoencoder(reduce)
    model.compile(keras.optimizers.SGD(0.002), **compiled)
    return model


def fitted(model: Any, x: Any = TEN) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = model.fit(x, epochs=2, batch_size=4, shuffle=False, verbose=0).history
        shown = model.evaluate(x, batch_size=4, verbose=0, return_dict=True)
    weights = {f"weight {i}": np.asarray(weight) for i, weight in enumerate(model.get_weights()[:4])}
    return {**found, **{f"test {name}": value for name, value in shown.items()}, **weights}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("reduce", [ops.mean, ops.sum, lambda each: ops.sum(each) / 4], ids=["mean", "sum", "fixed"])
def test_metrics_of_one_number_for_a_batch(four: jd.Strategy, reduce: Any) -> None:
    assert_same(*both(lambda: autoencoder(reduce), fitted, four))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two", "sharded", "eager"])
def test_under_other_strategies(kind: str) -> None:
    plain = fitted(autoencoder())
    strategy = jd.FullyShardedStrategy(devices()) if kind == "sharded" else jd.MirroredStrategy(devices(2))
    found = under(strategy, lambda: autoencoder(run_eagerly=kind == "eager"), fitted)
    assert_same(plain, found)


def test_functions_as_metrics_that_give_one_number(four: jd.Strategy) -> None:
    def close(y: Any, p: Any) -> Any:
        return ops.mean(ops.abs(p))

    def use(model: Any) -> dict[str, Any]:
        return model.fit(TEN, Y[:10], batch_size=4, verbose=0, shuffle=False).history

    assert_same(*both(lambda: classifier(metrics=[close]), use, four))


def test_numbers_that_are_neither_sums_nor_means_are_told(four: jd.Strategy) -> None:
    with four.scope():
        model = autoencoder(lambda each: ops.sqrt(ops.mean(each)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(TEN, batch_size=4, verbose=0)
    assert any("metric 'loss' is updated with one number" in str(one.message) for one in told)


def test_a_step_that_cannot_be_traced_for_other_batches_is_told(four: jd.Strategy) -> None:
    class Fixed(Autoencoder):
        def train_step(self, state: Any, data: Any) -> Any:
            if data.shape[0] > 4:
                raise LookupError("no more than 4")
            return super().train_step(state, data)

    with four.scope():
        model = Fixed()
        model.compile("sgd")
    with pytest.warns(UserWarning, match=r"could not be traced.*LookupError: no more than 4.*HINT"):
        model.fit(TEN, batch_size=4, verbose=0)


MISTAKES: dict[str, Any] = {
    "type": lambda x: [*ops.add(x, None), 1],
    "value": lambda x: ops.reshape(x, (7, 11, 13)),
    "own": lambda x: {}["missing"],
    "losses": lambda x: jd.value_and_grads(lambda: [ops.sum(x)], (jd.Variable(1.0),))(),
}


@pytest.mark.parametrize("step", ["train_step", "test_step", "of data", "call", "loss"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_step_that_fails_with_its_own_batch_says_so_alone(four: jd.Strategy, mistake: str, step: str) -> None:
    def wrong(x: Any) -> Any:
        return MISTAKES[mistake](x)

    def of_state(self: Any, state: Any, data: Any) -> Any:
        wrong(data)
        return Autoencoder.train_step(self, state, data)

    def of_data(self: Any, data: Any) -> Any:
        return {"loss": wrong(data)}

    def call(self: Any, x: Any, training: bool = False) -> Any:
        return wrong(Autoencoder.call(self, x, training))

    def loss_of(self: Any, trainable: Any, layers: Any, x: Any) -> Any:
        wrong(x)
        return Autoencoder.loss_of(self, trainable, layers, x)

    own: dict[str, Any] = {
        "train_step": {"train_step": of_state},
        "test_step": {"test_step": of_state},
        "of data": {"train_step": of_data},
        "call": {"call": call},
        "loss": {"loss_of": loss_of},
    }
    kind: Any = type("Broken", (Autoencoder,), own[step])
    with four.scope():
        model = kind()
        model.compile("sgd")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises((TypeError, ValueError, KeyError)):
            (model.evaluate if step == "test_step" else model.fit)(TEN, batch_size=4, verbose=0)
    assert not [str(one.message) for one in told if "could not be traced" in str(one.message)]


class Summing(keras.layers.Layer):
    """Adds a sum over the examples, and a mean, to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * ops.sum(ops.square(x)))
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        return x


class ByAllWords(keras.losses.Loss):
    """A ratio of sums, of which the lower one is that of all replicas."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        words = ops.cast(y_true > 0, "float32")
        context = jd.get_replica_context()
        total = ops.sum(words)
        total = total if context is None else context.all_reduce("SUM", total)
        return ops.sum(words * ops.mean(ops.square(y_pred), axis=1)) / total


def scaled(loss: Any, *layers: Any) -> Any:
    keras.utils.set_random_seed(0)
    normal = keras.layers.Normalization(axis=None)
    normal.adapt(X)
    entry = keras.layers.Input((8,))
    both = keras.layers.Concatenate()([normal(entry), entry])
    output = keras.layers.Dense(3)(both)
    for layer in layers:
        output = layer(output)
    model = keras.Model(entry, output)
    model.compile(keras.optimizers.SGD(0.02), loss)
    return model


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "build", [lambda: scaled(crossentropy(), Summing()), lambda: scaled(ByAllWords())], ids=["added", "ratio"]
)
def test_sums_among_losses(four: jd.Strategy, build: Any) -> None:
    def use(model: Any) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            history = model.fit(TEN, Y[:10], epochs=2, batch_size=4, shuffle=False, verbose=0).history
        # Adapting counts in integers; a replica's copies of what it has counted are no weights.
        return {**history, "kernel": model.trainable_weights[0].numpy(), "bias": model.trainable_weights[1].numpy()}

    assert_same(*both(build, use, four))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda y, p: ops.sqrt(ops.mean(ops.square(p))), r"no sum and no mean over the examples"),
        (lambda y, p: ops.mean(p @ ops.transpose(p), axis=1), r"each row with every other one .*test_parts\.py:\d+"),
        (lambda y, p: ops.mean(ops.square(p - p[0]), axis=1), r"uses row 0 .*test_parts\.py:\d+.*HINT.*a tuple"),
        (
            lambda y, p: ops.mean(ops.reshape(p, (3, -1)) ** 2),
            r"parts of the batch .*unless it is of a mean over all",
        ),
        (lambda y, p: ops.mean(p / ops.sum(p, axis=0, keepdims=True), axis=1), r"with a number that all rows make"),
    ],
)
def test_losses_that_take_the_whole_batch_are_told(four: jd.Strategy, loss: Any, told: str) -> None:
    model = under(four, lambda: scaled(loss), lambda model: model)
    with pytest.warns(UserWarning, match=told):
        model.fit(TEN, Y[:10], batch_size=4, verbose=0)


class Spread(keras.regularizers.Regularizer):
    """A regularizer of the user's, of the variance over the batch."""

    def __call__(self, x: Any) -> Any:
        return ops.mean(ops.var(x, axis=0))


def absolute(y: Any, p: Any) -> Any:
    """A loss of one number."""
    return ops.mean(ops.abs(y - p))


def scores(loss: Any, *layers: Any, **options: Any) -> Any:
    """Builds a model of Keras's own parts, whose outputs are between 0 and 1."""

    def build() -> Any:
        dense = keras.layers.Dense(4, "sigmoid", **options)
        model = keras.Sequential([keras.Input((X.shape[1],)), dense, *layers])
        model.compile(keras.optimizers.SGD(0.1), loss)
        return model

    return build


KERAS_OWN = {
    "Circle": (scores(keras.losses.Circle()), r"each row with every other one .*losses\.py"),
    "Dice": (scores(keras.losses.Dice()), "no sum and no mean over the examples"),
    "Tversky": (scores(keras.losses.Tversky()), "no sum and no mean over the examples"),
    "cosine": (scores(keras.losses.CosineSimilarity(axis=0)), r"a number that all rows make .*losses\.py"),
    "UnitNormalization": (scores("mse", keras.layers.UnitNormalization(axis=0)), r"rows make .*unit_normalization\.py"),
    "Softmax": (scores("mse", keras.layers.Softmax(axis=0)), "a number that all rows make"),
    "a regularizer": (scores("mse", activity_regularizer=Spread()), r"a number that all rows make .*test_parts\.py"),
}
ROW_BY_ROW = {
    "mse": scores("mse"),
    "hinge": scores("hinge"),
    "squared_hinge": scores(keras.losses.SquaredHinge()),
    "cosine": scores(keras.losses.CosineSimilarity()),
    "UnitNormalization": scores("mse", keras.layers.UnitNormalization()),
    "Softmax": scores("mse", keras.layers.Softmax()),
    "L2 of activities": scores("mse", activity_regularizer="l2"),
    "LayerNormalization": scores("mse", keras.layers.LayerNormalization()),
    "a loss of one number": scores(absolute),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", KERAS_OWN)
def test_parts_of_keras_that_are_told_to_combine_rows_are_told(four: jd.Strategy, name: str) -> None:
    build, told = KERAS_OWN[name]
    classes = np.arange(16, dtype="int32") % 4
    labels = classes if name == "Circle" else np.eye(4, dtype="float32")[classes]
    with pytest.warns(UserWarning, match=told):
        under(four, build, lambda model: model).fit(X[:16], labels, batch_size=8, verbose=0)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_parts_of_keras_that_compute_row_by_row_are_not(four: jd.Strategy, name: str) -> None:
    labels = np.eye(4, dtype="float32")[np.arange(10) % 4]
    under(four, ROW_BY_ROW[name], lambda model: model).fit(TEN, labels, batch_size=4, verbose=0)


class Drawing(keras.layers.Layer):
    """A layer of the user's, which calls a function with its inputs and a generator of seeds."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.seed = function, keras.random.SeedGenerator(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.function(x, self.seed) if training else x


def order(x: Any, seed: Any) -> Any:
    return keras.random.shuffle(ops.arange(ops.shape(x)[0]), seed=seed)


IMAGES = np.random.default_rng(0).uniform(0, 255, (16, 4, 4, 3)).astype("float32")
PAIRED = {
    "MixUp": (keras.layers.MixUp, r"drawn \(.*mix_up\.py.*Draw pairs"),
    "CutMix": (keras.layers.CutMix, r"uses rows in an order that is drawn \(.*cut_mix\.py"),
    "Pipeline": (lambda: keras.layers.Pipeline([keras.layers.MixUp()]), r"drawn \(.*mix_up\.py"),
    "Equalization": (lambda: Drawing(lambda x, _: keras.layers.Equalization(bins=4)(x)), "a number that all rows make"),
    "taken": (lambda: Drawing(lambda x, seed: ops.take(x, order(x, seed), axis=0)), r"drawn \(.*test_parts\.py"),
    "mixed": (lambda: Drawing(lambda x, seed: 0.5 * x + 0.5 * x[order(x, seed)]), r"drawn \(.*test_parts\.py"),
    "shuffled": (lambda: Drawing(lambda x, seed: x * keras.random.shuffle(x[:, :1, :1, :1], seed=seed)), "drawn"),
    "rolled": (lambda: Drawing(lambda x, _: ops.roll(x, 1, axis=0)), r"uses a row .*test_parts\.py"),
    "reversed": (lambda: Drawing(lambda x, _: ops.flip(x, axis=0)), r"in reverse order .*test_parts\.py"),
    "counted": (
        lambda: Drawing(lambda x, _: ops.take(x, ops.arange(ops.shape(x)[0])[::-1], axis=0)),
        "of their numbers",
    ),
}
DRAWN_ALONE = {
    "RandomFlip": keras.layers.RandomFlip,
    "RandomErasing": keras.layers.RandomErasing,
    "own noise": lambda: Drawing(
        lambda x, seed: x + keras.random.uniform((), seed=seed) * keras.random.normal(ops.shape(x), seed=seed)
    ),
    "own mask": lambda: Drawing(
        lambda x, seed: x * ops.cast(keras.random.uniform((ops.shape(x)[0], 1, 1, 1), seed=seed) > 0.5, x.dtype)
    ),
    "own flip": lambda: Drawing(
        lambda x, seed: ops.where(keras.random.uniform((), seed=seed) > 0.5, ops.flip(x, axis=1), x)
    ),
    "own pixels": lambda: Drawing(
        lambda x, seed: ops.take_along_axis(x, keras.random.randint(ops.shape(x), 0, 4, seed=seed), axis=1)
    ),
    "own patches": lambda: Drawing(lambda x, seed: ops.take(x, keras.random.shuffle(ops.arange(4), seed=seed), axis=1)),
    "own columns": lambda: Drawing(
        lambda x, seed: x[ops.arange(ops.shape(x)[0]), :, keras.random.randint((), 0, 4, seed=seed)][:, :, None]
    ),
}


def pictures(build: Any) -> Any:
    def made() -> Any:
        layers = [keras.Input((4, 4, 3)), build(), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model

    return made


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64", "ignore:Layer 'pipeline")
@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", PAIRED)
def test_layers_that_pair_rows_are_told_in_training_alone(four: jd.Strategy, name: str) -> None:
    build, told = PAIRED[name]
    model = under(four, pictures(build), lambda model: model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*uses")
        model.evaluate(IMAGES, Y[:16], batch_size=8, verbose=0)
        model.predict(IMAGES, batch_size=8, verbose=0)
    with pytest.warns(UserWarning, match=told):
        model.fit(IMAGES, Y[:16], batch_size=8, verbose=0)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", DRAWN_ALONE)
def test_layers_that_draw_for_each_row_alone_are_not(four: jd.Strategy, name: str) -> None:
    model = under(four, pictures(DRAWN_ALONE[name]), lambda model: model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(IMAGES, Y[:16], batch_size=8, verbose=0)


@pytest.mark.parametrize("weights", ["sample_weight", "class_weight"])
def test_a_loss_of_one_number_with_weights_is_told(four: jd.Strategy, weights: str) -> None:
    model, labels = under(four, scores(absolute), lambda model: model), np.eye(4, dtype="float32")[np.arange(10) % 4]
    given: dict[str, Any] = {"sample_weight": np.linspace(0, 2, 10)}
    if weights == "class_weight":
        given = {"class_weight": {0: 1.0, 1: 5.0, 2: 1.0, 3: 1.0}}
    with pytest.warns(UserWarning, match="each row with a number that all rows make"):
        model.fit(TEN, labels, batch_size=4, verbose=0, **given)


def centred() -> Any:
    """A functional model that takes the batch's mean away."""
    x = keras.Input((X.shape[1],))
    hidden = keras.layers.Dense(4)(x)
    model = keras.Model(x, keras.layers.Dense(1)(hidden - ops.mean(hidden, axis=0)))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("how", ["predict", "predict_on_batch"])
def test_predictions_of_a_model_that_combines_rows_are_told(four: jd.Strategy, how: str) -> None:
    model = under(four, centred, lambda model: model)
    with pytest.warns(UserWarning, match=r"a number that all rows make \(Subtract of a functional model\)"):
        model.predict(TEN, batch_size=4, verbose=0) if how == "predict" else model.predict_on_batch(TEN[:4])


class Pairs(keras.utils.PyDataset):
    """Batches whose first axis is no batch: row 0 is for anchors, row 1 for positives."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return np.stack([X[:5], X[5:10]])


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("replicas", [2, 4])
def test_a_first_axis_that_is_no_batch_is_refused(replicas: int, eager: bool) -> None:
    class Siamese(Autoencoder):
        def call(self, x: Any, training: bool = False) -> Any:
            return self.net.layers[1](self.net.layers[0](x))  # of any rank

        def loss_of(self, trainable: Any, layers: Any, x: Any) -> Any:
            (x,) = x  # Keras makes a tuple of what a dataset gives
            anchors, _ = self.stateless_call(trainable, layers, x[0], training=True)
            positives, layers = self.stateless_call(trainable, layers, x[1], training=True)
            each = ops.sum(anchors * positives, axis=1)
            return ops.mean(each), (each, layers)

    def build() -> Any:
        keras.utils.set_random_seed(0)
        model = Siamese()
        model.compile("sgd", run_eagerly=eager)
        return model

    def use(model: Any) -> Any:
        return model.fit(Pairs(), verbose=0)

    use(build())
    with pytest.raises(InputError, match=r"takes row 1 of a batch.*of 2 rows this replica has 1.*HINT.*a tuple"):
        under(jd.MirroredStrategy(devices(replicas)), build, use)


@pytest.mark.parametrize("eager", [False, True])
def test_a_loss_that_is_no_mean_is_told_in_evaluate(eager: bool) -> None:
    def build() -> Any:
        model: Any = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])
        model.compile("sgd", lambda _, out: ops.max(out), run_eagerly=eager)
        return model

    with pytest.warns(UserWarning, match=r"is no sum and no mean over the examples.*HINT"):
        under(jd.MirroredStrategy(devices(2)), build, lambda model: model.evaluate(X[:4], X[:4, :3], verbose=0))


@pytest.mark.parametrize(
    ("replicas", "rows", "why"), [(2, 10, "5, with which it cannot compute: .*Error"), (4, 4, "1.* takes none")]
)
def test_halves_of_a_batch_that_a_replica_cannot_make_are_refused(replicas: int, rows: int, why: str) -> None:
    def halves(_: Any, out: Any) -> Any:
        half = out.shape[0] // 2
        return ops.mean(ops.square(out[:half] - out[half:]), axis=-1)

    def build() -> Any:
        model: Any = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])
        model.compile("sgd", halves)
        return model

    def use(model: Any) -> Any:
        return model.fit(X[:rows], X[:rows, :3], batch_size=rows, verbose=0)

    use(build())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that rows are used by their numbers
        with pytest.raises(InputError, match=rf"test_parts.py:\d+.*of {rows} rows this replica has {why}.*HINT"):
            under(jd.MirroredStrategy(devices(replicas)), build, use)


class Contrastive(keras.losses.Loss):
    """Each example against the labels' rows of all replicas."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        everyone = here().all_gather(y_pred, axis=0)
        return jax.nn.logsumexp(y_true @ everyone.T, axis=1) - ops.sum(y_true * y_pred, axis=1)


class FromTheCentre(keras.losses.Loss):
    """Each example's distance from the mean of all."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        total = here().all_reduce("SUM", (ops.sum(y_pred, axis=0), jnp.asarray(float(y_pred.shape[0]))))
        return ops.mean(ops.square(y_pred - total[0] / total[1]), axis=1) + ops.mean(
            ops.square(y_pred - y_true), axis=1
        )


class OwnStep(keras.Model):
    """A training step written out, which differentiates a loss that meets the other replicas."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.net = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
        self.criterion, self.tracker = loss, keras.metrics.Mean(name="loss")
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def call(self, x: Any, training: bool = False) -> Any:
        return self.net(x)

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, layers, optimizer, metrics = state

        def loss(values: Any) -> Any:
            y, updates = self.stateless_call(values, layers, data[0], training=True)
            return ops.mean(self.criterion.call(data[1], y)), updates

        (value, layers), gradients = jax.value_and_grad(loss, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        metrics = self.tracker.stateless_update_state(metrics, value)
        return {"loss": self.tracker.stateless_result(metrics)}, (trainable, layers, optimizer, metrics)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("loss", [Contrastive, FromTheCentre])
def test_losses_that_meet_other_replicas(four: jd.Strategy, loss: Any, own: bool, caplog: Any) -> None:
    def build() -> Any:
        keras.utils.set_random_seed(0)
        if own:
            model: Any = OwnStep(loss())
            model.compile(keras.optimizers.SGD(0.05))
        else:
            model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
            model.compile(keras.optimizers.SGD(0.05), loss())
        return model

    def use(model: Any) -> dict[str, Any]:
        data = X[:11], X[:11, :4]
        history = model.fit(*data, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        return {**history, "kernel": model.get_weights()[0]}

    # Two replicas have 2, 2 and 2, 1; four of them 1 each and, at the end, 1, 1, 1, 0.
    expected = under(jd.OneDeviceStrategy("CPU:0"), build, use)
    for strategy in (four, jd.MirroredStrategy(devices(2))):
        assert_same(expected, under(strategy, build, use))
    # Nothing ran as Python. How often eager code was traced is counted over all tests of the process.
    assert not [record for record in caplog.records if "traced_reads" not in record.name]


STRATEGIES = {
    "default": jd.get_strategy,
    "OneDevice": lambda: jd.OneDeviceStrategy("CPU:0"),
    "Mirrored": lambda: jd.MirroredStrategy(devices(2)),
    "CentralStorage": lambda: jd.CentralStorageStrategy(devices(2)),
    "FullySharded": lambda: jd.FullyShardedStrategy(devices(2)),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_loop_with_an_optimizer_of_optax(name: str, compiled: bool) -> None:
    strategy = STRATEGIES[name]()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
        optimizer = jd.Optimizer(optax.sgd(0.1), model.trainable_variables)
    kernel = np.asarray(model.get_weights()[0])

    def replica_step(x: Any) -> Any:
        def loss() -> Any:
            return jnp.sum(model(x) ** 2) / 8

        value, gradients = jd.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (batch,)), axis=None)

    (batch,) = strategy.experimental_distribute_dataset([X[:8]])
    loss = float((jd.function(step) if compiled else step)(batch))
    predicted = X[:8] @ kernel
    np.testing.assert_allclose(loss, np.mean(predicted**2), rtol=1e-5)
    expected = kernel - 0.1 * X[:8].T @ (2 * predicted / 8)
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-4, atol=1e-6)


class Clipping(keras.Model):
    """A step of its own, which logs the norm of the gradients and may clip them by it."""

    def __init__(self, clips: bool, logs: str) -> None:
        super().__init__()
        self.clips, self.logs, self.head = clips, logs, keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, state: Any, data: Any) -> Any:
        (trainable, others, slots, metrics), (x, y) = state, data

        def loss(trainable: Any) -> Any:
            return ops.mean(ops.square(self.stateless_call(trainable, others, x)[0] - y))

        value, gradients = jax.value_and_grad(loss)(trainable)
        norm = ops.sqrt(sum(ops.sum(ops.square(one)) for one in gradients))
        if self.clips:
            gradients = [one * ops.minimum(1.0, 0.5 / norm) for one in gradients]
        trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
        logs = {"loss": value, "norm": norm, "total": ops.sum(y)}
        return {name: logs[name] for name in ("loss", self.logs)}, (trainable, others, slots, metrics)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize(
    ("clips", "logs", "told"),
    [(False, "norm", "the log 'norm' of"), (True, "total", "what the optimizer is given of"), (False, "total", "")],
)
def test_norms_of_gradients_are_told(four: jd.Strategy, clips: bool, logs: str, told: str) -> None:
    with four.scope():
        model = Clipping(clips, logs)
        model(np.zeros((1, 3), np.float32))
        model.compile("sgd")
    x = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    with pytest.warns(UserWarning, match=told + r".*no sum and no mean.*HINT") if told else contextlib.nullcontext():
        model.fit(x, x[:, :1], batch_size=5, verbose=0)
