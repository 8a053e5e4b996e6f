"""Models whose batches may be padded: listed layers compute each row by itself, and nothing else is taken to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.keras import row_wise
from jaxtribute._src.addons.keras.row_wise import is_row_wise
from keras_models import keras

L = keras.layers
FLAT, LINE, PLANE, SPACE = (8,), (6, 8), (6, 6, 4), (4, 4, 4, 4)
GIVEN: dict[str, dict[str, Any]] = {
    "Activation": {"activation": "softmax"},
    "AlphaDropout": {"rate": 0.3},
    "EinsumDense": {"equation": "abc,cd->abd", "output_shape": (6, 5)},
    "Embedding": {"input_dim": 10, "output_dim": 4},
    "GaussianDropout": {"rate": 0.3},
    "GaussianNoise": {"stddev": 0.3},
    "GroupNormalization": {"groups": 2},
    "MultiHeadAttention": {"num_heads": 2, "key_dim": 4, "dropout": 0.2},
    "GroupQueryAttention": {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 4},
    "Normalization": {"mean": 0.3, "variance": 2.0},
    "Permute": {"dims": (2, 1)},
    "RepeatVector": {"n": 3},
    "Rescaling": {"scale": 0.5},
    "Reshape": {"target_shape": (-1,)},
    "Dot": {"axes": (2, 2)},
    "Dense": {"units": 5, "activation": "gelu"},
    "PReLU": {"alpha_initializer": "ones"},
}
INPUTS = {"Dense": FLAT, "RepeatVector": FLAT, "Embedding": FLAT}
TWICE = {*"Add Average Concatenate Dot Maximum Minimum Multiply Subtract".split()}
SEVERAL = {*"AdditiveAttention Attention GroupQueryAttention MultiHeadAttention".split()}
INSIDE = {*"GRUCell InputLayer LSTMCell SimpleRNNCell StackedRNNCells".split()}
"""What does not stand in a model by itself."""


def arguments(name: str) -> dict[str, Any]:
    if name.startswith("Av") and name != "Average":
        return {"pool_size": 2}
    if "Dropout" in name:
        return {"rate": 0.3}
    if name.startswith(("Conv", "SeparableConv")):
        return {"filters": 4, "kernel_size": 3}
    if name.startswith("Depthwise"):
        return {"kernel_size": 3}
    if name in ("GRU", "LSTM", "SimpleRNN"):
        return {"units": 4, "recurrent_dropout": 0.2, "return_sequences": name == "GRU"}
    return {}


def shape_for(name: str) -> tuple[int, ...]:
    return next((shape for end, shape in (("2D", PLANE), ("3D", SPACE)) if end in name), INPUTS.get(name, LINE))


def made(name: str) -> Any:
    if name == "RNN":
        return L.RNN(L.StackedRNNCells([L.GRUCell(3), L.LSTMCell(4), L.SimpleRNNCell(2)]), return_sequences=True)
    if name == "Bidirectional":
        return L.Bidirectional(L.GRU(3))
    if name == "TimeDistributed":
        return L.TimeDistributed(L.Dense(3, "softmax"))
    return getattr(L, name)(**GIVEN.get(name, arguments(name)))


def called(name: str, x: Any) -> Any:
    layer = made(name)
    if name in TWICE:
        return layer([x, 2 * x + 1])
    if name in SEVERAL:
        return layer([x, 2 * x + 1]) if name.endswith("eAttention") or name == "Attention" else layer(x, 2 * x + 1)
    return layer(x)


STANDING = sorted(
    {name for name in dir(L) if isinstance(getattr(L, name), type) and getattr(L, name) in row_wise.INFERRING} - INSIDE
)


def compiled(model: Any) -> Any:
    model.compile("sgd", "mse", metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def outputs() -> Callable[[dict[tuple[int, ...], Any]], list[Any]]:
    """Every listed layer in one model, in training; the same random numbers each time."""
    keras.utils.set_random_seed(3)
    inputs: dict[tuple[int, ...], Any] = {
        shape: keras.Input(shape, name=f"x{len(shape)}{shape[0]}") for shape in (FLAT, LINE, PLANE, SPACE)
    }
    names = [name for name in STANDING if name != "BatchNormalization"]
    model = keras.Model(list(inputs.values()), [called(name, inputs[shape_for(name)]) for name in names])
    assert is_row_wise(model, "predict")
    values = [[v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]]
    return jax.jit(lambda x: model.stateless_call(*values, [x[shape] for shape in inputs], training=True)[0])


def test_a_row_changes_no_output_of_another_one(outputs: Any) -> None:
    rng = np.random.default_rng(0)
    before = {shape: rng.uniform(1, 9, (4, *shape)).astype(np.float32) for shape in (FLAT, LINE, PLANE, SPACE)}
    after = {shape: value.copy() for shape, value in before.items()}
    for value in after.values():
        value[1] = 10 - value[1]
    names = [name for name in STANDING if name != "BatchNormalization"]
    pair = ([np.asarray(value) for value in outputs(x)] for x in (before, after))
    for name, one, other in zip(names, *pair, strict=True):
        rest = [0, 2, 3]
        np.testing.assert_allclose(one[rest], other[rest], rtol=1e-6, atol=1e-6, err_msg=name)
        if "Dropout" not in name:  # which may leave nothing of it
            assert not np.allclose(one[1], other[1], rtol=1e-3), name


@pytest.mark.quick_cases(21, whole=True)
@pytest.mark.parametrize("name", STANDING)
def test_a_listed_layer_is_known(name: str) -> None:
    x = keras.Input(shape_for(name))
    model = compiled(keras.Model(x, called(name, x)))
    built(model)
    assert is_row_wise(model, "test")
    assert is_row_wise(model, "train") == (name != "BatchNormalization")


def built(model: Any, *, y: Any = None) -> Any:
    """The model with its losses and metrics made, as `fit` makes them."""
    x = [np.zeros((2, *i.shape[1:]), i.dtype) for i in model.inputs]
    labels = [np.zeros((2, *o.shape[1:]), np.float32) for o in model.outputs] if y is None else [y]
    model._symbolic_build(data_batch=tuple(part[0] if len(part) == 1 else part for part in (x, labels)))
    return model


class OwnDense(L.Dense):
    pass


class OwnModel(keras.Model):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs) * 2


class OwnMetric(keras.metrics.Mean):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(y_pred - keras.ops.mean(y_pred))


def around(layer: Any, shape: tuple[int, ...] = FLAT, dtype: str = "float32") -> Any:
    x = keras.Input(shape, dtype=dtype)
    return built(compiled(keras.Model(x, L.Dense(2)(layer(x)))))


def masked(layer: Any, dtype: str) -> Any:
    return around(lambda x: L.LSTM(3)(layer(x)), LINE if dtype == "float32" else FLAT, dtype)


def only(layer: Any) -> Any:
    x = keras.Input(FLAT)
    return keras.Model(x, layer(x))


def with_loss(loss: Any, metrics: Any = (), **kwargs: Any) -> Any:
    model = keras.Sequential([keras.Input((8,)), L.Dense(3, "softmax")])
    model.compile("sgd", loss, metrics=list(metrics), **kwargs)
    name = str(getattr(loss, "name", loss))
    of_classes = any(part in name for part in ("sparse", "circle", "generalized"))
    return built(model, y=np.zeros(2, np.int32) if of_classes else np.zeros((2, 3), np.float32))


def replaced(model: Any, name: str) -> Any:
    setattr(model, name, getattr(model, name))
    return model


def with_added_loss() -> Any:
    model = around(L.Dense(3))
    model.layers[1].add_loss(model.layers[1].bias[0])
    return model


def fixed_batch() -> Any:
    x = keras.Input(batch_shape=(16, 8))
    return built(compiled(keras.Model(x, L.Dense(3)(x))))


def several_axes() -> Any:
    x, y = keras.Input((4, 4)), keras.Input((4,))
    return built(compiled(keras.Model([x, y], L.Add()([x, y]))))


def rank_one() -> Any:
    x = keras.Input((1,))
    return built(compiled(keras.Model(x, L.Reshape(())(x))))


UNLISTED: dict[str, Callable[[], Any]] = {
    "batch statistics": lambda: around(L.BatchNormalization()),
    "a layer of the user's": lambda: around(OwnDense(3)),
    "a function of the user's": lambda: around(L.Lambda(lambda x: x)),
    "an activation of the user's": lambda: around(L.Dense(3, activation=lambda x: x)),
    "a mask": lambda: masked(L.Masking(), "float32"),
    "a mask of words": lambda: masked(L.Embedding(10, 4, mask_zero=True), "int32"),
    "noise for all rows": lambda: around(L.Dropout(0.5, noise_shape=(1, 8))),
    "an activity regularizer": lambda: around(L.Dense(3, activity_regularizer="l2")),
    "a layer of losses": lambda: around(L.ActivityRegularization(0.1)),
    "a loss that was added": with_added_loss,
    "a softmax over rows": lambda: around(L.Softmax(axis=0)),
    "a norm over rows": lambda: around(L.UnitNormalization(axis=0)),
    "an axis from the end": lambda: around(L.LayerNormalization(axis=-2), LINE),
    "an axis of rows by another name": lambda: around(L.Softmax(axis=-2)),
    "spectral norms": lambda: around(L.SpectralNormalization(L.Dense(3))),
    "an operation over rows": lambda: around(lambda x: x - keras.ops.mean(x, axis=0, keepdims=True)),
    "rows the other way round": lambda: around(lambda x: keras.ops.flip(x, axis=0)),
    "an array for each row": lambda: around(lambda x: x + np.ones((2, 8), np.float32)),
    "axes that differ": several_axes,
    "a fixed batch": fixed_batch,
    "one number for each row": rank_one,
    "training at any time": lambda: around(lambda x: L.BatchNormalization()(x, training=True)),
    "a method that was replaced": lambda: replaced(around(L.Dense(3)), "compute_loss"),
    "a layer's that was": lambda: around(replaced(L.Dense(3), "call")),
    "a model within": lambda: around(keras.Sequential([OwnDense(3)])),
    "a model of the user's": lambda: OwnModel(*(lambda x: (x, L.Dense(3)(x)))(keras.Input((8,)))),
    "a loss of the user's": lambda: with_loss(lambda y, p: keras.ops.mean(p, axis=-1)),
    "a loss without axes": lambda: with_loss(keras.losses.Dice()),
    "a loss of pairs": lambda: with_loss(keras.losses.Circle()),
    "labels of a whole batch": lambda: with_loss("hinge"),
    "no reduction": lambda: with_loss(keras.losses.MeanSquaredError(reduction=None)),
    "a class that is ignored": lambda: with_loss(keras.losses.SparseCategoricalCrossentropy(ignore_class=0)),
    "a loss along rows": lambda: with_loss(keras.losses.CosineSimilarity(axis=0)),
    "a metric of thresholds": lambda: with_loss("mse", [keras.metrics.AUC()]),
    "a metric of the user's": lambda: with_loss("mse", [OwnMetric()]),
    "a function as a metric": lambda: with_loss("mse", [lambda y, p: keras.ops.mean(p, axis=-1)]),
    "a weighted one": lambda: with_loss("mse", weighted_metrics=[keras.metrics.Precision()]),
}


@pytest.mark.quick_cases(36, whole=True)
@pytest.mark.parametrize("what", UNLISTED)
def test_what_is_not_listed_goes_the_other_way(what: str) -> None:
    assert not is_row_wise(UNLISTED[what](), "train")


def test_what_joins_rows_is_not_listed() -> None:
    assert not is_row_wise(only(lambda x: L.Concatenate(axis=0)([x, x])), "predict")
    assert not is_row_wise(only(lambda x: L.Concatenate(axis=-2)([x, x])), "predict")
    assert not is_row_wise(only(lambda x: L.LSTM(3)(x[..., None], mask=x > 0)), "predict")
    assert is_row_wise(only(lambda x: L.Concatenate()([x, x])), "predict")
    assert not row_wise.is_listed(L.LSTM(3, stateful=True), "train")
    equations = {
        "abc,cd->abd": True,
        "...x,xy->...y": True,
        "abc,cd->bad": False,
        "ab,ac->bc": False,
        "ab,bc->c": False,
    }
    assert {equation: row_wise.keeps_rows(equation) for equation in equations} == equations


def test_outside_of_training_batch_statistics_are_numbers() -> None:
    model = around(L.BatchNormalization())
    assert is_row_wise(model, "test")
    assert is_row_wise(model, "predict")
    again = UNLISTED["training at any time"]()
    assert not is_row_wise(again, "test")


def test_attention_over_rows_is_not_listed() -> None:
    assert not is_row_wise(only(lambda x: L.AdditiveAttention()([x, 2 * x])), "predict")
    assert not is_row_wise(only(lambda x: L.Attention()([x, x])), "predict")
    inputs = keras.Input((2, 3, 4))
    for axes, expected in ((0, False), (1, True), ((1, 2), True)):
        outputs = L.MultiHeadAttention(1, 4, attention_axes=axes)(inputs, inputs)
        assert is_row_wise(keras.Model(inputs, outputs), "predict") is expected


@pytest.mark.parametrize("what", ["loss", "metric"])
def test_replaced_methods_of_losses_and_metrics_are_seen(what: str) -> None:
    loss, metric = keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError()
    model = around(L.Dense(3))
    model.compile("sgd", loss, metrics=[metric])
    model.train_on_batch(np.ones((2, 8), np.float32), np.ones((2, 2), np.float32))
    assert is_row_wise(model, "train")
    if what == "loss":
        loss.call = lambda y, p: y - p
    else:
        metric.update_state = lambda *_: None
    assert not is_row_wise(model, "train")


def test_operations_on_tensors_that_compute_each_element() -> None:
    def skipped(x: Any) -> Any:
        return keras.ops.relu(x * 2 + L.Dense(8)(x)) / np.full(8, 3, np.float32)

    assert is_row_wise(around(skipped), "train")


@pytest.mark.parametrize("name", sorted(row_wise.LOSSES))
def test_a_listed_loss_is_known(name: str) -> None:
    arguments: dict[str, Any] = {"q": 0.5} if name == "categorical_generalized_cross_entropy" else {}
    function = getattr(keras.losses, name)
    wrapper: Any = keras.losses.MeanSquaredError.__base__  # the class of all losses that are made of a function
    loss = wrapper(function, name=name, **arguments)
    assert is_row_wise(with_loss(loss), "train")


def test_padding_is_for_several_replicas_of_one_process(four: jd.Strategy) -> None:
    from jaxtribute._src.addons.keras.padding import Padding

    model = around(L.Dense(3))
    assert Padding.of(model, four, "train") is not None
    assert Padding.of(model, jd.OneDeviceStrategy("CPU:1"), "train") is None
