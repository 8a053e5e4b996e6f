"""`DistributedEmbedding`, whose tables lie over the replicas, trains as Keras's own weights do on one device."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ShapeError
from jaxtribute.integrations.keras import DistributedEmbedding, FeatureConfig, TableConfig
from samples import ALL_CASES

BATCH = 8
DECAY: Any = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
STRATEGIES = {
    "two": lambda: jd.MirroredStrategy(2),
    "one": lambda: jd.OneDeviceStrategy("cpu:0"),
    "sharded": lambda: jd.FullyShardedStrategy(2),
    "three": lambda: jd.MirroredStrategy(3),
    "four": lambda: jd.MirroredStrategy(4),
}


def data(examples: int = 16) -> tuple[dict[str, Any], Any]:
    """Ids of three features, two of which share a table."""
    rng = np.random.default_rng(0)
    seen = np.where(rng.random((examples, 3)) < 0.2, -1, rng.integers(0, 9, (examples, 3)))
    x = {"user": rng.integers(0, 30, examples), "seen": seen, "item": rng.integers(0, 9, (examples, 1))}
    return {name: ids.astype("int32") for name, ids in x.items()}, rng.normal(size=(examples, 1)).astype("float32")


def _first(shape: Any, dtype: Any = None) -> Any:
    """Numbers that are the same each time."""
    return np.random.default_rng(shape[0]).normal(size=shape).astype(dtype or "float32")


first: Any = _first


def made(optimizer: Any, placement: str = "auto", **options: Any) -> Any:
    """A model of two tables and three features."""
    kind: dict[str, Any] = {"optimizer": optimizer, "placement": placement, "initializer": first}
    users = TableConfig("users", 30, 2, **kind)
    items = TableConfig("items", 9, 4, combiner=options.get("combiner", "mean"), **kind)
    features = {
        "user": FeatureConfig("user", users, (BATCH,), (BATCH, 2)),
        "seen": FeatureConfig("seen", items, (BATCH, 3), (BATCH, 4)),
        "item": FeatureConfig("item", items, (None, 1), (None, 4)),
    }
    inputs = {
        "user": keras.Input((), dtype="int32", name="user"),
        "seen": keras.Input((3,), dtype="int32", name="seen"),
        "item": keras.Input((1,), dtype="int32", name="item"),
    }
    found = DistributedEmbedding(features, name="tables")(inputs)
    joined = keras.layers.Concatenate()([found["user"], found["seen"] * found["item"]])
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=first)(joined))
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def trained(model: Any, epochs: int = 2) -> tuple[Any, Any]:
    """The history of a training, and the tables after it."""
    history = model.fit(*data(), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history
    return history, model.get_layer("tables").get_embedding_tables()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("how", ["eager", "evaluated", "compiled"])
def test_nothing_of_a_tables_size_is_made_in_a_step(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, width = 30_011, 3
    with jd.MirroredStrategy(2).scope():
        table = TableConfig("words", rows, width, optimizer="sgd", initializer=first)
        inputs = keras.Input((2,), dtype="int32")
        found = DistributedEmbedding(FeatureConfig("ids", table, (BATCH, 2), (BATCH, width)))(inputs)
        model: Any = keras.Model(inputs, keras.layers.Dense(1)(found))
        model.compile("sgd", "mse", run_eagerly=how != "compiled")
    x, y = np.arange(2 * BATCH, dtype="int32").reshape(BATCH, 2), np.ones((BATCH, 1), "float32")
    model.train_on_batch(x, y)
    model.test_on_batch(x, y)
    made: list[Any] = []
    for name in ("zeros", "broadcast_to", "full"):
        plain: Any = getattr(jax.numpy, name)

        def noting(*args: Any, plain: Any = plain, **options: Any) -> Any:
            made.append(array := plain(*args, **options))
            return array

        monkeypatch.setattr(jax.numpy, name, noting)
    (model.test_on_batch if how == "evaluated" else model.train_on_batch)(x, y)
    assert not [one.shape for one in made if one.size >= rows * width]


@pytest.mark.parametrize("name", STRATEGIES if ALL_CASES else ["three"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"] if ALL_CASES else ["adagrad"])
def test_fit_does_what_keras_does_with_dense_gradients(
    name: str, optimizer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The model's optimizer and the tables' are of one kind, which leaves rows without a gradient alone.

    Batches that three replicas do not divide are padded.
    """

    def rated() -> Any:
        return keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.1}})

    combiner = "sqrtn" if name in ("three", "sharded") else "sum"
    expected_history, expected = trained(made(rated(), "default_device", combiner=combiner))
    strategy = STRATEGIES[name]()
    with strategy.scope():
        model = made(rated(), combiner=combiner)
    history, tables = trained(model)
    for key, values in expected_history.items():
        np.testing.assert_allclose(history[key], values, rtol=2e-5)
    for key, table in expected.items():
        np.testing.assert_allclose(tables[key], table, rtol=2e-5, atol=1e-6)
    x, y = data()
    results = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    np.testing.assert_allclose(results[0], np.mean((model.predict(x, batch_size=BATCH, verbose=0) - y) ** 2), rtol=1e-5)
    assert not caplog.records


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.Adam(0.1),
        keras.optimizers.SGD(DECAY, momentum=0.9, nesterov=True),
    ],
    ids=["adam", "nesterov"],
)
def test_rows_are_updated_as_keras_does(optimizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Of a table all of whose rows are in each batch a lazy update is the dense one.

    Nothing pads a model with a `Lambda`: two replicas have two examples, and the third has none.
    """

    def model(placement: str) -> Any:
        again = type(optimizer).from_config(optimizer.get_config())
        table = TableConfig("rows", 4, 3, first, again, "sum", placement)
        layer = DistributedEmbedding(FeatureConfig("all", table, (4,), (4, 3)), name="tables")
        found = keras.Sequential([keras.Input((), dtype="int32"), layer, keras.layers.Lambda(lambda x: x.sum(-1))])
        found.compile(type(optimizer).from_config(optimizer.get_config()), "mse")
        return found

    def after(model: Any) -> Any:
        x, y = np.tile(np.arange(4, dtype="int32"), 5), first((20,))
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        return model.get_layer("tables").get_embedding_tables()["rows"]

    expected = after(model("default_device"))
    with jd.MirroredStrategy(3).scope():
        found = after(model("auto"))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
    assert not caplog.records


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scoped", [True, False])
def test_saved_models_go_on(scoped: bool, tmp_path: Path) -> None:
    """The tables' optimizers, too; weights can be got and set."""
    strategy = jd.MirroredStrategy(2)
    with strategy.scope() if scoped else nullcontext():
        model = made(keras.optimizers.Adam(0.1))
    trained(model)
    model.save(tmp_path / "m.keras")
    custom = {"_first": first}
    with strategy.scope() if scoped else nullcontext():
        again: Any = keras.models.load_model(tmp_path / "m.keras", custom_objects=custom)
    weights = model.get_weights()
    history, tables = trained(model, 1)
    history_again, tables_again = trained(again, 1)
    assert history_again == history
    for name, table in tables.items():
        np.testing.assert_array_equal(tables_again[name], table)
    again.set_weights(weights)
    for one, other in zip(again.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("scoped", [True, False])
def test_weights_go_into_a_scope_and_out_of_it(scoped: bool, tmp_path: Path) -> None:
    """By the names of the tables: Keras numbers weights, and of those that train and do not apart."""

    def model(inside: bool, rows: int = 5) -> Any:
        with jd.MirroredStrategy(2).scope() if inside else nullcontext():
            one = TableConfig("one", rows, 2, "uniform", "adagrad", placement="default_device")
            two = TableConfig("two", 5, 2, "uniform", "adagrad")
            features = [FeatureConfig(name, table, (None,), (None, 2)) for name, table in (("b", two), ("a", one))]
            inputs = [keras.Input((), dtype="int32", name=name) for name in "ba"]
            return keras.Model(inputs, DistributedEmbedding(features, name="tables")(inputs))

    saved = model(scoped)
    saved.save_weights(tmp_path / "m.weights.h5")
    again = model(not scoped)
    again.load_weights(tmp_path / "m.weights.h5")
    expected, found = (one.get_layer("tables").get_embedding_tables() for one in (saved, again))
    for name in ("one", "two"):
        np.testing.assert_array_equal(found[name], expected[name])
    with pytest.raises(ArgumentError, match=r"one of the layer tables has shape \(7, 2\), and was saved"):
        model(scoped, 7).get_layer("tables").load_own_variables({"two": expected["two"], "one": expected["one"]})
    with pytest.raises(ArgumentError, match=r"two of the layer tables .* not saved"):
        again.get_layer("tables").load_own_variables({"one": expected["one"]})


def test_weights_of_single_ids_count() -> None:
    """A weight of 0 gives zeros, whatever the combiner; a mean over one other is the row."""
    for combiner, factors in (("sum", [2, 0, -1]), ("mean", [1, 0, 1]), ("sqrtn", [1, 0, -1])):
        table = TableConfig("t", 5, 2, initializer=first, combiner=combiner)
        layer = DistributedEmbedding(FeatureConfig("a", table, (None,), (None, 2)))
        found = layer(np.arange(3), np.asarray([2.0, 0.0, -1.0], "float32"))
        np.testing.assert_allclose(found, first((5, 2))[:3] * np.asarray(factors)[:, None], rtol=1e-6)


@pytest.mark.parametrize("scoped", [True, False])
def test_floating_ids_are_not_rounded(scoped: bool) -> None:
    """Under mixed precision, too, whose outputs have its dtype; those that could be wrong are refused by name."""
    table = TableConfig("t", 400, 2, initializer=first)
    with jd.MirroredStrategy(1).scope() if scoped else nullcontext():
        layer = DistributedEmbedding(FeatureConfig("a", table, (None,), (None, 2)), dtype="mixed_bfloat16")
        found = layer(np.asarray([257.0, 301.0], "float32"))
    assert found.dtype == layer.compute_dtype == "bfloat16"
    np.testing.assert_allclose(np.asarray(found, "float32"), first((400, 2))[[257, 301]], rtol=1e-2)
    large = DistributedEmbedding(FeatureConfig("a", TableConfig("t", 4_000, 2, first), (None,), (None, 2)))
    with pytest.raises(ArgumentError, match=r"feature a have dtype float16.* 4,000 rows .*HINT"):
        large(np.zeros(2, "float16"))


def test_a_learning_rate_that_is_changed_later_is_refused_by_name() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    with jd.MirroredStrategy(1).scope():
        table = TableConfig("t", 4, 2, first, optimizer)
        model: Any = keras.Sequential([DistributedEmbedding(FeatureConfig("a", table, (None,), (None, 2)))])
        model.compile("sgd", "mse")
    data = np.arange(4, dtype="int32"), np.zeros((4, 2), "float32")
    model.fit(*data, verbose=0)
    optimizer.learning_rate = 0.01
    with pytest.raises(ArgumentError, match=r"table t's optimizer is 0\.0\d+, and was 0\.1.*HINT"):
        model.fit(*data, verbose=0)


def test_ragged_ids_and_weights() -> None:
    table = TableConfig("t", 5, 2, initializer=first, combiner="mean")
    layer = DistributedEmbedding({"a": FeatureConfig("a", table, (None, 3), (None, 2))})
    ids = np.empty(2, object)
    ids[:] = [np.array([1, 2, 3, 4]), np.array([0])]
    empty_first = np.empty(2, object)
    empty_first[:] = [[], [1]]
    assert layer.preprocess({"a": empty_first})["preprocessed_inputs"]["inputs"]["a"].dtype == np.int32
    weights = np.empty(2, object)
    weights[:] = [np.array([1.0, 2.0, 1.0, 9.0], "float32"), np.array([0.5], "float32")]
    rows = first((5, 2))
    # Longer lists than the configuration says are cut.
    expected = [(rows[1] + 2 * rows[2] + rows[3]) / 4, rows[0]]
    np.testing.assert_allclose(layer({"a": ids}, {"a": weights})["a"], expected, rtol=1e-6)
    for lists in (ids, [[1, 2, 3, 4], [0]]):
        found = layer(layer.preprocess({"a": lists}))["a"]
        np.testing.assert_allclose(found, [rows[1:4].mean(0), rows[0]], rtol=1e-6)


def test_frozen_tables_stay() -> None:
    with jd.MirroredStrategy(2).scope():
        model = made("sgd")
        model.get_layer("tables").trainable = False
        model.compile("sgd", "mse")
    before = model.get_layer("tables").get_embedding_tables()
    _, after = trained(model, 1)
    for name, table in before.items():
        np.testing.assert_array_equal(after[name], table)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("initializer", ["uniform", "glorot_uniform", "he_normal", "zeros", "random_normal"])
def test_first_rows_are_as_the_initializer_has_them(initializer: str) -> None:
    keras.utils.set_random_seed(0)  # the largest of many normal numbers may be much larger than that of others
    with jd.MirroredStrategy(2).scope():
        table = TableConfig("t", 3000, 8, initializer=initializer)
        layer = DistributedEmbedding(FeatureConfig("a", table, (None,), (None, 8)))
    found = layer.get_embedding_tables()["t"]
    drawn: Any = keras.initializers.get(initializer)
    expected = np.asarray(drawn((3000, 8)))
    np.testing.assert_allclose([found.mean(), found.std()], [expected.mean(), expected.std()], rtol=0.05, atol=2e-3)
    np.testing.assert_allclose([found.min(), found.max()], [expected.min(), expected.max()], rtol=0.35, atol=1e-3)


def test_what_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="SparseCores"):
        TableConfig("t", 5, 2, placement="sparsecore")
    with pytest.raises(ArgumentError, match=r"output_shape \(8, 3\)"):
        FeatureConfig("f", TableConfig("t", 5, 2), (8,), (8, 3))
    with pytest.raises(ArgumentError, match="two tables are named 't'"):
        DistributedEmbedding([FeatureConfig("f", TableConfig("t", 5, 2), (8,), (8, 2)) for _ in range(2)])
    with jd.MirroredStrategy(2).scope():
        for optimizer, why in ((keras.optimizers.Adam(weight_decay=0.1), "weight_decay=0.1"), ("ftrl", "Ftrl")):
            with pytest.raises(ArgumentError, match=rf"table t .*{why}.*HINT"):
                DistributedEmbedding(FeatureConfig("f", TableConfig("t", 5, 2, optimizer=optimizer), (8,), (8, 2)))
        layer = DistributedEmbedding(FeatureConfig("f", TableConfig("t", 5, 2), (8, 3), (8, 2)))
        with pytest.raises(ShapeError, match=r"input_shape is \(8, 3\)"):
            layer(np.zeros((8, 4), "int32"))

        class Own(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.tables, self.dense = layer, keras.layers.Dense(1)

            def call(self, inputs: Any) -> Any:
                return self.dense(self.tables(inputs))

            def train_step(self, state: Any, data: Any) -> Any:
                return super().train_step(state, data)

        model: Any = Own()
        model.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match="train_step of Own's own"):
        model.fit(np.zeros((8, 3), "int32"), np.zeros((8, 1)), verbose=0)


def on_worker(folder: str) -> Any:
    """Trains on a worker of a cluster, saves, and goes on with what was saved."""
    # Keras is not strict with ranks and dtypes, and its variables are NumPy's old way.
    warnings.simplefilter("ignore", DeprecationWarning)
    jax.config.update("jax_numpy_rank_promotion", "allow")
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    strategy = jd.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = made(keras.optimizers.Adagrad(0.1))
    history, tables = trained(model)
    model.save(f"{folder}/m.keras")
    with strategy.scope():
        again: Any = keras.models.load_model(f"{folder}/m.keras", custom_objects={"_first": first})
    return history, tables, again.get_layer("tables").get_embedding_tables()


@pytest.mark.slow
def test_workers_do_the_same(multi_process: Any, tmp_path: Path) -> None:
    with jd.OneDeviceStrategy("cpu:0").scope():
        expected_history, expected = trained(made(keras.optimizers.Adagrad(0.1)))
    for history, tables, again in multi_process(workers=2, devices=1).run(
        on_worker, args=(str(tmp_path),), timeout_s=300
    ):
        np.testing.assert_allclose(history["loss"], expected_history["loss"], rtol=2e-5)
        for name, table in expected.items():
            np.testing.assert_allclose(tables[name], table, rtol=2e-5, atol=1e-6)
            np.testing.assert_array_equal(again[name], tables[name])
