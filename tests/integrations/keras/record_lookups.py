"""Writes down what Keras's lookups give on TensorFlow: `python record_lookups.py`, where TensorFlow 2.21 is installed.

python tests/integrations/keras/record_lookups.py > tests/integrations/keras/lookups.json
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


def shown(value: Any) -> dict[str, Any]:
    """A result as JSON holds it."""
    array = np.asarray(value)
    if array.dtype == object:
        array = np.vectorize(lambda text: text.decode())(array)
    return {"values": array.tolist(), "dtype": str(np.asarray(value).dtype), "shape": list(array.shape)}


def recorded() -> list[dict[str, Any]]:
    """Each case with its result, and the error's class where there is one."""
    found = []
    for kind, arguments, inputs in cases():
        layer = getattr(keras.layers, kind)(**arguments)
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
    for kind, tokens in data.items():
        for arguments in ({}, {"max_tokens": 4}, {"mask_token": tokens[-1]}, {"num_oov_indices": 0}):
            layer = getattr(keras.layers, kind)(**arguments)
            layer.adapt(np.array(tokens))
            yield kind, arguments, tokens, [str(token) for token in layer.get_vocabulary()]


if __name__ == "__main__":
    json.dump({"lookups": recorded(), "adapted": list(adapted())}, sys.stdout)
