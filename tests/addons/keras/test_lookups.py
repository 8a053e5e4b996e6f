"""Lookups of strings and integers, against what Keras's own give on TensorFlow 2.21, as `record_lookups` wrote it."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute.errors import ArgumentError, MissingLibraryError
from jaxtribute.input import InputOptions
from jaxtribute.integrations import keras as ours

RECORDED = json.loads(Path(__file__).with_name("lookups.json").read_text())


def text(values: Any) -> Any:
    array = np.asarray(values)
    return np.vectorize(lambda one: one.decode())(array) if array.dtype == object else array


def read(row: dict[str, Any]) -> dict[str, Any]:
    """What this library's layer gives for a case."""
    layer = getattr(ours, row["kind"])(**row["arguments"])
    try:
        found = text(layer(np.array(row["inputs"])))
    except ArgumentError as error:
        return {"error": str(error)}
    return {
        "values": found.tolist(),
        "shape": list(found.shape),
        "vocabulary": [str(x) for x in layer.get_vocabulary()],
    }


@pytest.mark.parametrize("kind", ["StringLookup", "IntegerLookup", "TextVectorization"])
def test_results_are_those_of_tensorflow(kind: str) -> None:
    rows = [row for row in RECORDED["lookups"] if row["kind"] == kind]
    refused = 0
    for row in rows:
        found = read(row)
        if np.ndim(row["inputs"]) == 3 and row["arguments"]["output_mode"] in ("multi_hot", "count"):
            assert "encodes the second axis" in found["error"]
            refused += 1
            continue
        expected = {**row["result"], "vocabulary": row["vocabulary"]}
        del expected["dtype"]  # JAX's has half the width
        assert found == expected, row
    assert len(rows) - refused > 50


@pytest.mark.parametrize(("kind", "arguments", "tokens", "vocabulary"), RECORDED["adapted"])
def test_vocabularies_of_data_are_those_of_tensorflow(
    kind: str, arguments: dict[str, Any], tokens: list[Any], vocabulary: list[str]
) -> None:
    layer = getattr(ours, kind)(**arguments)
    layer.adapt(np.array(tokens))
    assert [str(token) for token in layer.get_vocabulary()] == vocabulary
    layer.adapt(iter([np.array(tokens[:3]), np.array(tokens[3:])]))
    batched = [str(token) for token in layer.get_vocabulary()]
    assert batched == vocabulary


def test_a_dataset_is_adapted_to_for_some_steps() -> None:
    layer = ours.StringLookup()
    layer.adapt(iter([np.array(["a", "b"]), np.array(["b", "c"]), np.array(["d"])]), steps=2)
    assert layer.get_vocabulary(include_special_tokens=False) == ["b", "c", "a"]


def test_a_vocabulary_may_be_a_file_and_begin_with_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("[UNK]\nyes\nno\n")
    layer = ours.StringLookup(vocabulary=str(tmp_path / "words"))
    assert layer.get_vocabulary() == ["[UNK]", "yes", "no"]
    assert layer.vocabulary_size() == 3
    assert layer([["no", b"maybe"]]).tolist() == [[2, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ours.StringLookup(vocabulary=[]), "is empty"),
        (lambda: ours.StringLookup(vocabulary=["a", "b", "a"]), "'a' is in the vocabulary twice"),
        (lambda: ours.StringLookup(vocabulary=["a", "m"], mask_token="m"), "mask_token 'm' stands among"),
        (lambda: ours.StringLookup(vocabulary=["a", "[UNK]"], invert=True), r"oov_token '\[UNK\]' stands among"),
        (lambda: ours.StringLookup(vocabulary=["a", "b"], max_tokens=2), "has 3 tokens"),
        (lambda: ours.StringLookup(num_oov_indices=2), "num_oov_indices is 2"),
        (lambda: ours.IntegerLookup(num_oov_indices=-1), "num_oov_indices is -1"),
        (lambda: ours.IntegerLookup(max_tokens=1), "max_tokens is 1"),
        (lambda: ours.IntegerLookup(output_mode="tf_idf"), "output_mode is 'tf_idf'"),
        (lambda: ours.IntegerLookup(output_mode="count", invert=True), "invert=True"),
        (lambda: ours.IntegerLookup(pad_to_max_tokens=True), "pad_to_max_tokens"),
        (lambda: ours.IntegerLookup(oov_method="farmhash"), "oov_method='farmhash'"),
        (lambda: ours.TextVectorization(output_mode="tf_idf"), "output_mode is 'tf_idf'"),
        (lambda: ours.TextVectorization(standardize="upper"), "standardize is 'upper'"),
        (lambda: ours.TextVectorization(split="lines"), "split is 'lines'"),
        (lambda: ours.TextVectorization(ngrams=0), "ngrams is 0"),
        (lambda: ours.TextVectorization(ragged=True), "ragged=True is not supported"),
        (lambda: ours.TextVectorization(output_mode="count", output_sequence_length=3), "no output_sequence_length 3"),
        (lambda: ours.TextVectorization(nonsense=1), "no argument 'nonsense'"),
        (lambda: ours.TextVectorization(vocabulary=["a"])([["a", "b"]]), r"shape \(1, 2\) cannot be cut"),
        (lambda: ours.TextVectorization()(["a"]), "has no vocabulary"),
        (lambda: ours.StringLookup(sparse=True), "sparse=True is not supported"),
        (lambda: ours.StringLookup(**json.loads('{"salt": 3}')), "salt=3 is not supported"),
        (lambda: ours.StringLookup(nonsense=1), "no argument 'nonsense'"),
        (lambda: ours.StringLookup()(["a"]), "has no vocabulary"),
        (lambda: ours.StringLookup(vocabulary=["a"], num_oov_indices=0)(["b"]), "'b' is not in the vocabulary"),
    ],
)
def test_what_cannot_be_right_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_values_that_are_not_known_are_refused() -> None:
    layer = ours.IntegerLookup(vocabulary=[5, 6])
    with pytest.raises(ArgumentError, match="on the host"):
        jd.function(layer)(np.array([5]))


def test_a_layer_is_made_again_of_its_config() -> None:
    layer = ours.StringLookup(vocabulary=["a", "b"], mask_token="", output_mode="multi_hot")
    again = ours.StringLookup.from_config(layer.get_config())
    assert again([["b", "", "q"]]).tolist() == layer([["b", "", "q"]]).tolist() == [[1, 0, 1]]


def test_texts_are_changed_and_cut_by_functions() -> None:
    layer = ours.TextVectorization(
        standardize=lambda texts: np.char.replace(texts, "x", "a"),
        split=lambda texts: [text.split("-") for text in texts],
        vocabulary=["a", "b"],
    )
    assert layer([b"x-b-c", "b"]).tolist() == [[2, 3, 1], [3, 0, 0]]


def test_texts_are_vectorized_in_a_dataset_and_in_a_model() -> None:
    layer = ours.TextVectorization(vocabulary=["yes", "no"], output_sequence_length=2)
    again = ours.TextVectorization.from_config(layer.get_config())
    text = keras.Input((1,), dtype="string")
    model = keras.Model(text, again(text))
    assert model.output_shape == (None, 2)
    assert model(np.array([["Yes!"], ["no way"]], object)).tolist() == [[2, 0], [3, 1]]
    assert layer([]).shape == (0, 2)


def model_of_words(vocabulary: list[str]) -> tuple[keras.Model, keras.Model]:
    words = keras.Input((3,), dtype="string", name="words")
    label = keras.Input((1,), dtype="string", name="label")
    lookup = ours.StringLookup(vocabulary=vocabulary)
    other = ours.StringLookup(vocabulary=["yes", "no"], num_oov_indices=0)
    return keras.Model({"words": words}, lookup(words)), keras.Model(label, other(label))


def test_models_of_strings_take_batches_and_single_examples() -> None:
    features, label = model_of_words(["a", "b"])
    assert features.output_shape == (None, 3)
    assert features(np.array([["a", "b", "c"]])).tolist() == [[1, 2, 0]]
    assert features({"words": np.array([[b"b", b"b", b"x"]])}).tolist() == [[2, 2, 0]]
    assert features(np.array(["b", "a", "x"], object)).tolist() == [2, 1, 0]
    assert label(np.array(["no"], object)).tolist() == [[1]]
    assert label(np.array([["no"], ["yes"]], object)).tolist() == [[1], [0]]


@pytest.mark.parametrize("method", ["predict", "evaluate", "fit"])
@pytest.mark.parametrize("strings", [["a", "b"], [b"a", b"b"], np.array(["a", "b"], object)])
def test_strings_are_refused_where_devices_compute(method: str, strings: Any) -> None:
    features, _ = model_of_words(["a", "b"])
    features.compile(loss="mse")
    with pytest.raises(ArgumentError, match=r"x holds strings.*HINT"):
        getattr(features, method)({"words": np.asarray(strings)}, **({} if method == "predict" else {"y": np.ones(2)}))


def _on_host(strategy: jd.Strategy, batch: Any) -> Any:
    return strategy.experimental_distribute_dataset([batch], InputOptions(experimental_fetch_to_device=False))


STRINGS: dict[str, Callable[[Any, jd.Strategy, Any, Any], Any]] = {
    "y": lambda model, _, x, y: model.fit(x, y, verbose=0),
    "weights": lambda model, _, x, y: model.fit(x, x[:, 0], sample_weight=y, verbose=0),
    "validation": lambda model, _, x, y: model.fit(x, x[:, 0], validation_data=(x, y), verbose=0),
    "dataset of tf": lambda model, _, x, y: model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(2), verbose=0),
    "generator": lambda model, _, x, y: model.fit((one for one in [(x, y)]), shuffle=False, verbose=0),
    "on the host": lambda model, strategy, x, y: model.evaluate(_on_host(strategy, (x, y)), verbose=0),
    "a batch": lambda model, _, x, y: model.train_on_batch(x, y),
    "another batch": lambda model, _, x, y: model.test_on_batch(x, y=y),
}
"""Calls of a model's methods, given the model, its strategy, numbers and strings."""


@pytest.mark.parametrize("strings", [["a", "b"], np.array(["a", "b"], object)], ids=["str", "object"])
@pytest.mark.parametrize("case", STRINGS)
def test_strings_are_refused_by_name_wherever_a_batch_has_them(case: str, strings: Any) -> None:
    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        model: Any = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match=r"(y|sample_weight) holds strings.*HINT"):
        STRINGS[case](model, strategy, np.ones((2, 1)), np.asarray(strings))


@pytest.mark.slow
def test_a_model_of_strings_is_saved_with_its_vocabulary(tmp_path: Path) -> None:
    features, _ = model_of_words(["a", "b"])
    features.save(tmp_path / "words.keras")
    again: Any = keras.models.load_model(tmp_path / "words.keras")
    assert again(np.array([["b", "a", "q"]])).tolist() == [[2, 1, 0]]


def test_a_models_other_inputs_are_checked_as_ever() -> None:
    x = keras.Input((3,))
    with pytest.raises(ValueError, match=r"incompatible|shape"):
        keras.Model(x, keras.layers.Dense(1)(x))(np.ones((2, 4)))


NEEDING_TENSORFLOW: dict[str, dict[str, Any]] = {
    "IntegerLookup": {},
    "StringLookup": {"vocabulary": ["a"]},
    "TextVectorization": {"output_sequence_length": 4},
    "Hashing": {"num_bins": 8},
    "HashedCrossing": {"num_bins": 8},
}


@pytest.mark.parametrize("name", NEEDING_TENSORFLOW)
def test_layers_of_keras_that_need_tensorflow_say_what_to_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = getattr(keras.layers, name)
    monkeypatch.setattr(inspect.getmodule(layer), "tf", SimpleNamespace(available=False))

    class Own(layer):
        """A layer of the user's that is made of one."""

    lookup = name if hasattr(ours, name) else "StringLookup"
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        for kind in (layer, Own):
            with pytest.raises(MissingLibraryError, match=rf"{name} needs TensorFlow.*integrations\.keras\.{lookup}"):
                kind(**NEEDING_TENSORFLOW[name])
    with pytest.raises(ImportError, match=f"Layer {name} requires TensorFlow"):
        layer(**NEEDING_TENSORFLOW[name])  # plain Keras says what it says
