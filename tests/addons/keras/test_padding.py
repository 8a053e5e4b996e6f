"""Batches that are padded: losses, histories, weights and metrics of plain Keras, and one program for all batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.keras import meeting, row_wise, steps
from jaxtribute._src.addons.keras.padding import Batches, Padding
from jaxtribute.integrations.keras import Verify
from keras_models import assert_same, crossentropy, keras, trained

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(37, 8)).astype(np.float32)
Y = RNG.integers(0, 3, 37).astype(np.int32)
WEIGHTS = RNG.uniform(0.1, 2, 37).astype(np.float32)
TIGHT = 2e-6


def classifier(**compiled: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.Input((8,)), L.Dense(6, "tanh", kernel_regularizer="l2"), L.Dense(3, bias_regularizer="l1")]
    model = keras.Sequential(layers)
    compiled = {"optimizer": keras.optimizers.SGD(0.1), "loss": crossentropy(), "metrics": ["accuracy"], **compiled}
    model.compile(**compiled)
    return model


def alike(four: jd.Strategy, build: Callable[[], Any], use: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """What `use` makes of a model, the same under four replicas as by plain Keras."""
    expected = use(build())
    with four.scope():
        model = build()
    found = use(model)
    assert_same(expected, found, TIGHT)
    return found


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The numbers of rows of a replica and of all, for each training or evaluation program that is traced."""
    told: list[Any] = []
    original = meeting.share_of

    def share_of(context: Any, rows: int, total: int, *rest: Any) -> Any:
        told.append((rows, total))
        return original(context, rows, total, *rest)

    monkeypatch.setattr(steps, "share_of", share_of)
    return told


# One program each for training, evaluation and prediction, whatever the last batch is.
def test_a_partial_batch_needs_no_program_of_its_own(four: jd.Strategy, traced: list[Any]) -> None:
    def use(model: Any) -> dict[str, Any]:
        result = trained(model, X, Y, batch_size=16, validation_data=(X[:21], Y[:21], WEIGHTS[:21]))
        result["predictions"] = model.predict(X[:21], batch_size=16, verbose=0)
        return result | {"steps": model.optimizer.iterations.numpy()}

    found = alike(four, lambda: classifier(optimizer=keras.optimizers.Adam(0.01)), use)
    assert found["steps"] == 6
    assert found["predictions"].shape == (21, 3)
    # Training, evaluation, prediction.
    assert traced == [(4, 16)] * 3


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "options",
    [
        {"sample_weight": WEIGHTS, "batch_size": 16},
        {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}, "batch_size": 16},
        {"batch_size": 6},
        {"batch_size": 3, "sample_weight": WEIGHTS},
        {"batch_size": 64},
        {"batch_size": 16, "steps_per_epoch": 2},
        {"batch_size": 16, "validation_split": 0.3},
    ],
    ids=str,
)
def test_fits_are_those_of_one_device(four: jd.Strategy, options: dict[str, Any]) -> None:
    def build() -> Any:
        loss = crossentropy(reduction="mean_with_sample_weight")
        return classifier(loss=loss, weighted_metrics=["accuracy"], steps_per_execution=2)

    alike(four, build, lambda model: trained(model, X, Y, **options))


def batches(*sizes: int) -> Callable[[], Iterator[Any]]:
    def generate() -> Iterator[Any]:
        start = 0
        for size in sizes:
            yield X[start : start + size], Y[start : start + size]
            start += size

    return generate


def test_batches_of_a_generator_have_any_number_of_rows(four: jd.Strategy, traced: list[Any]) -> None:
    def use(model: Any) -> dict[str, Any]:
        result = trained(
            model, batches(8, 5, 1, 3, 8, 7)(), epochs=1, batch_size=None, shuffle=False, steps_per_epoch=6
        )
        result["later"] = np.asarray(model.train_on_batch(X[:5], Y[:5]))
        return result | {"one": np.asarray(model.test_on_batch(X[:1], Y[:1]))}

    alike(four, classifier, use)
    # A program for full batches, which came first, and one for all others; and those of `train_on_batch`, whose batches
    # have another structure, and of `test_on_batch`.
    assert sorted(traced) == [(1, 4), (2, 8), (2, 8), (2, 8)]


def losses() -> dict[str, Any]:
    """A loss of each listed function, by the name of the output that it is for."""
    found: dict[str, Any] = {}
    for name in sorted(row_wise.LOSSES):
        arguments = {"q": 0.5} if name == "categorical_generalized_cross_entropy" else {}
        function = getattr(keras.src.losses.losses, name)
        found[name] = lambda reduction, function=function, name=name, arguments=arguments: (
            keras.src.losses.losses.LossFunctionWrapper(function, reduction=reduction, name=name, **arguments)
        )
    return found


REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight")


# A quarter of the listed losses in each case, an output for each; and metrics of all kinds.
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("rows", "quarter", "weighted"), [(1, 0, False), (3, 1, True), (15, 2, False), (5, 3, True)])
def test_every_listed_loss_and_metric(four: jd.Strategy, rows: int, quarter: int, weighted: bool) -> None:
    made, names = losses(), sorted(row_wise.LOSSES)[quarter::4]
    accuracies = ["accuracy", "top_k_categorical_accuracy", "categorical_accuracy", "binary_accuracy"]
    shape = (3, 5)

    def build() -> Any:
        keras.utils.set_random_seed(0)
        x = keras.Input(shape)
        model = keras.Model(x, [L.Dense(5, "softmax", name=name)(x) for name in names])

        def metrics() -> list[Any]:
            listed: dict[str, Any] = {name: [accuracies[i % 4], "mse"] for i, name in enumerate(names)}
            means = keras.metrics.RootMeanSquaredError(), keras.metrics.CosineSimilarity()
            sparse = keras.metrics.SparseTopKCategoricalAccuracy(2), keras.metrics.SparseCategoricalCrossentropy()
            classes = [keras.metrics.SparseCategoricalAccuracy()]
            special = {
                "huber": list(means),
                "sparse_categorical_crossentropy": list(sparse),
                "categorical_generalized_cross_entropy": classes,
            }
            return [special.get(name, metrics) for name, metrics in listed.items()]

        model.compile(
            keras.optimizers.SGD(0.001),
            [made[name](REDUCTIONS[(i + quarter) % 4]) for i, name in enumerate(names)],
            metrics=metrics(),
            weighted_metrics=metrics() if weighted else None,
            loss_weights=[0.1 + 0.1 * i for i, _ in enumerate(names)],
        )
        return model

    rng = np.random.default_rng(rows)
    x = rng.normal(size=(16 + rows, *shape)).astype(np.float32)
    y: list[Any] = [rng.dirichlet(np.ones(5), (16 + rows, 3)).astype(np.float32) for _ in names]
    for name in ("sparse_categorical_crossentropy", "categorical_generalized_cross_entropy"):
        if name in names:
            y[names.index(name)] = rng.integers(0, 5, (16 + rows, 3)).astype(np.int32)
    weights = [rng.uniform(0.1, 2, (16 + rows, 3)).astype(np.float32) for _ in names] if weighted else None

    def use(model: Any) -> dict[str, Any]:
        result = trained(model, x, y, sample_weight=weights, batch_size=16)
        told = model.evaluate(x, y, sample_weight=weights, batch_size=16, verbose=0, return_dict=True)
        return result | {f"evaluated {name}": np.asarray(value) for name, value in told.items()}

    alike(four, build, use)


def network() -> Any:
    """Layers of many kinds, each once."""
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 6, 2))
    y = L.Conv2D(4, 3, padding="same", activation="relu")(x)
    y = L.Add()([y, L.Conv2DTranspose(4, 2, 2)(L.MaxPooling2D()(y))])
    y = L.GroupNormalization(2)(y) * 0.5 + keras.ops.tanh(y)
    y = L.Reshape((6, 24))(y)
    y = L.LayerNormalization()(L.Add()([y, L.MultiHeadAttention(2, 4)(y, y)]))
    y = L.Concatenate()([L.LSTM(5)(y), L.Bidirectional(L.GRU(3))(y), L.GlobalAveragePooling1D()(y)])
    model = keras.Model(x, L.Dense(3)(y))
    model.compile(keras.optimizers.SGD(0.05), crossentropy(), metrics=["accuracy"])
    return model


@pytest.mark.slow
def test_a_network_of_many_kinds_of_layers(four: jd.Strategy, traced: list[Any]) -> None:
    x = RNG.normal(size=(11, 6, 6, 2)).astype(np.float32)
    alike(four, network, lambda model: trained(model, x, Y[:11], batch_size=8))
    assert traced == [(2, 8)]


def test_what_is_not_known_is_cut_as_before(four: jd.Strategy, traced: list[Any]) -> None:
    class Own(L.Dense):
        pass

    def build() -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8,)), Own(3)])
        model.compile(keras.optimizers.SGD(0.1), crossentropy())
        return model

    alike(four, build, lambda model: trained(model, X[:13], Y[:13], batch_size=8, epochs=1))
    assert (2, 8) in traced
    assert (0, 5) in traced


def test_padding_copies_a_row_and_counts_the_others(four: jd.Strategy) -> None:
    padding = Padding(four, "train")
    padded = padding((X[:5], Y[:5]), iter(()))
    assert padded is not None
    assert (padded.rows, int(padded.count.numpy())) == (5, 5)
    np.testing.assert_array_equal(padded.batch[0], np.concatenate([X[:5], X[:1], X[:1], X[:1]]))
    # A full batch has no rows to be added, and its program is the one for padded ones.
    full = padding((X[:8], Y[:8]), iter(()))
    assert full is not None
    assert full.rows == 8
    assert padding((X[:16], Y[:16]), iter(())) is None
    # The way of all others says what is wrong with them.
    assert padding((X[:5], Y[:4]), iter(())) is None
    assert padding((X[:0], Y[:0]), iter(())) is None
    assert padding((X[:5].astype(object), Y[:5]), iter(())) is None


def test_a_partial_batch_is_foreseen() -> None:
    def batches_of(rows: int, size: int) -> Batches:
        adapter = keras.src.trainers.data_adapters.get_data_adapter(X[:rows], Y[:rows], batch_size=size)
        return Batches(adapter.get_numpy_iterator(), adapter)

    assert (batches_of(37, 16).rows, batches_of(37, 16).uneven) == (16, True)
    assert (batches_of(32, 16).rows, batches_of(32, 16).uneven) == (16, False)
    assert (batches_of(5, 16).rows, batches_of(5, 16).uneven) == (None, False)
    assert [len(x) for x, _ in batches_of(37, 16)] == [16, 16, 5]


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_a_padded_step_is_verified(reduction: str) -> None:
    """On one device as well, where the step is padded likewise, losses and regularizers are those of true rows."""
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(1, kernel_regularizer="l2")])
        model.compile("sgd", keras.losses.MeanSquaredError(reduction=reduction))
    model.fit(X[:5], X[:5, :1], batch_size=5, verbose=0, callbacks=[Verify()])


def test_labels_that_broadcast_over_rows_are_not_padded(four: jd.Strategy) -> None:
    x = np.ones((6, 1, 4), np.float32)

    def padded(loss: str, labels: Any) -> bool:
        with four.scope():
            model = keras.Sequential([keras.Input((1, 4)), keras.layers.Dense(3, activation="softmax")])
            model.compile("sgd", loss)
        model.train_on_batch(x, np.zeros((6, 1, 3), np.float32) if loss == "mse" else np.zeros((6, 1), np.int32))
        padding = Padding.of(model, four, "train")
        assert padding is not None
        return padding((x, labels), iter(())) is not None

    assert padded("mse", np.zeros((6, 1, 3), np.float32))
    assert not padded("mse", np.zeros((6, 3), np.float32))
    assert padded("sparse_categorical_crossentropy", np.zeros((6, 1), np.int32))
    assert not padded("sparse_categorical_crossentropy", np.zeros(6, np.int32))
