"""Writes down what Keras's lookups give on TensorFlow: `python record_lookups.py`, where TensorFlow 2.21 is installed.

python tests/addons/keras/record_lookups.py > tests/addons/keras/lookups.json
"""

import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

WORDS = ["b", "a", "", "z", "c", "z"]
SHAPES = ([6], [3, 2], [6, 1], [2, 1, 3])


def cases() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """A layer's class, its arguments, and what it is called with."""
    words = {"StringLookup": (["c", "a", "b"], WORDS, ""), "IntegerLookup": ([30, 10, 20], [20, 10, 0, 7, 30, -4], 0)}
    for kind, (vocabulary, tokens, mask) in words.items():
        for mode, masked, known, shape in itertools.product(
            ("int", "one_hot", "multi_hot", "count"), (False, True), (0, 1, 2), SHAPES
        ):
            if known == 2 and kind == "StringLookup":
                continue
            arguments = {"vocabulary": vocabulary, "output_mode": mode, "num_oov_indices": known}
            if masked:
                arguments["mask_token"] = mask
            inside = [token if known or token in vocabulary else vocabulary[0] for token in tokens]
            yield kind, arguments, np.array(inside).reshape(shape).tolist()
        yield (
            kind,
            {"vocabulary": vocabulary, "output_mode": "count", "max_tokens": 9, "pad_to_max_tokens": True},
            tokens,
        )
        yield kind, {"vocabulary": vocabulary}, tokens[0]
        for masked in ({}, {"mask_token": mask}):
            yield kind, {"vocabulary": vocabulary, "invert": True, **masked}, [[0, 1, 2], [3, 4, 9]]


def texts() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """`TextVectorization`, its arguments, and what it is called with."""
    kind = "TextVectorization"
    rows = ["The cat, sat! The mat.", "", "  a\tdog\u00a0B \n c  ", "\u00c9t\u00e9 don't-stop", "cat cat cat"]
    vocabulary = ["the", "cat", "sat", "a", "b", "cat sat", "t", "\u00e9t\u00e9", "dont-stop", "the cat sat", "cat cat"]
    for standardize, split, ngrams in itertools.product(
        (None, "lower", "strip_punctuation", "lower_and_strip_punctuation"),
        ("whitespace", "character", None),
        (None, 2, [2, 3]),
    ):
        given: dict[str, Any] = {"standardize": standardize, "split": split, "vocabulary": vocabulary}
        if ngrams is not None:
            given["ngrams"] = ngrams
        inputs = [rows[:2], rows[3:]] if split is None else rows
        for further in (
            {},
            {"output_sequence_length": 3},
            {"output_mode": "multi_hot"},
            {"output_mode": "count", "max_tokens": 20, "pad_to_max_tokens": True},
        ):
            yield kind, {**given, **further}, inputs
    for inputs in ("The cat", [["The cat"], ["a b cat"]], ["", ""]):
        yield kind, {"vocabulary": vocabulary}, inputs
        yield kind, {"vocabulary": vocabulary, "output_sequence_length": 2}, inputs
        yield kind, {"vocabulary": vocabulary, "output_mode": "count"}, inputs


def shown(value: Any) -> dict[str, Any]:
    """A result as JSON holds it."""
    array = np.asarray(value)
    if array.dtype == object:
        array = np.vectorize(lambda text: text.decode())(array)
    return {"values": array.tolist(), "dtype": str(np.asarray(value).dtype), "shape": list(array.shape)}


def as_given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as a program gives them: JSON has lists for tuples."""
    return {name: tuple(value) if name == "ngrams" and value != 2 else value for name, value in arguments.items()}


def recorded() -> list[dict[str, Any]]:
    """Each case with its result, and the error's class where there is one."""
    found = []
    for kind, arguments, inputs in itertools.chain(cases(), texts()):
        layer = getattr(keras.layers, kind)(**as_given(arguments))
        row = {"kind": kind, "arguments": arguments, "inputs": inputs}
        try:
            row["result"] = shown(layer(np.array(inputs)))
            row["vocabulary"] = [str(token) for token in layer.get_vocabulary()]
        except Exception as error:  # noqa: BLE001 (of any kind)
            row["error"] = type(error).__name__
        found.append(row)
    return found


def adapted() -> Iterator[tuple[str, dict[str, Any], Any, list[str]]]:
    """Vocabularies that layers take from data."""
    data = {"StringLookup": ["x", "y", "y", "z", "z", "w", ""], "IntegerLookup": [5, 7, 7, 9, 9, 3, 0]}
    options: list[dict[str, Any]] = [{}, {"max_tokens": 5}, {"ngrams": 2, "standardize": None}, {"split": "character"}]
    for arguments in options:
        layer = keras.layers.TextVectorization(**arguments)
        words = ["The cat, the mat.", "a cat", "", "dog Dog a"]
        layer.adapt(np.array(words))
        yield "TextVectorization", arguments, words, layer.get_vocabulary()
    for kind, tokens in data.items():
        for arguments in ({}, {"max_tokens": 4}, {"mask_token": tokens[-1]}, {"num_oov_indices": 0}):
            layer = getattr(keras.layers, kind)(**arguments)
            layer.adapt(np.array(tokens))
            yield kind, arguments, tokens, [str(token) for token in layer.get_vocabulary()]


if __name__ == "__main__":
    json.dump({"lookups": recorded(), "adapted": list(adapted())}, sys.stdout)
