"""`tf.strings` on the host: arrays of bytes, as datasets hold them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxtribute._src.addons.compat.tf.conversion import TensorLike, as_tensor, host_array
from jaxtribute._src.addons.compat.tf.texts import with_texts
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.typing import DType


def _each(function: Callable[[str], Any], value: TensorLike, kind: Any = object) -> Any:
    array = host_array(value)
    if array.dtype.kind != "O":
        raise ArgumentTypeError(f"{array.dtype} is no type of strings. HINT: tf.strings works on strings alone.")
    flat: list[Any] = []
    for one in array.ravel():
        result = function(one.decode() if isinstance(one, bytes) else str(one))
        flat.append(result.encode() if isinstance(result, str) else result)
    made = np.empty(len(flat), kind)
    made[:] = flat
    return with_texts(made.reshape(array.shape))


def lower(input: TensorLike, encoding: str = "") -> Any:
    """Makes letters small. Source: `tf.strings.lower`."""
    return _each(str.lower, input)


def upper(input: TensorLike, encoding: str = "") -> Any:
    """Makes letters large. Source: `tf.strings.upper`."""
    return _each(str.upper, input)


def strip(input: TensorLike) -> Any:
    """Drops white space at both ends. Source: `tf.strings.strip`."""
    return _each(str.strip, input)


def regex_replace(input: TensorLike, pattern: str, rewrite: str, replace_global: bool = True) -> Any:
    """Replaces what matches, by the rules of Python's `re`. Source: `tf.strings.regex_replace`."""
    compiled = re.compile(pattern)
    return _each(lambda text: compiled.sub(rewrite, text, count=0 if replace_global else 1), input)


def regex_full_match(input: TensorLike, pattern: str) -> Any:
    """Tells which strings match as a whole. Source: `tf.strings.regex_full_match`."""
    return _each(lambda text: re.fullmatch(pattern, text) is not None, input, bool)


def length(input: TensorLike, unit: str = "BYTE") -> Any:
    """Counts bytes, or characters for the unit "UTF8_CHAR". Source: `tf.strings.length`."""
    return _each(lambda text: len(text.encode() if unit == "BYTE" else text), input, np.int32)


def to_number(input: TensorLike, out_type: DType = np.float32) -> Any:
    """Reads numbers. Source: `tf.strings.to_number`."""
    return as_tensor(_each(float, input, np.float64), out_type)


def join(inputs: TensorLike, separator: str = "") -> Any:
    """Joins arrays of strings, element by element. Source: `tf.strings.join`."""
    parts = np.broadcast_arrays(*[host_array(part) for part in inputs])
    rows = zip(*[part.ravel() for part in parts], strict=True)
    made = np.empty(parts[0].size, object)
    made[:] = [separator.encode().join(row) for row in rows]
    return with_texts(made.reshape(parts[0].shape))
