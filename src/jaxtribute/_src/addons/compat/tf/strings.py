"""`tf.strings` on the host: arrays of bytes, as datasets hold them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxtribute._src.addons.compat.tf.conversion import TensorLike, as_tensor, host_array
from jaxtribute._src.addons.compat.tf.texts import with_texts
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.extending import settings
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
    """Makes letters small, those of ASCII alone unless `encoding` is "utf-8". Source: `tf.strings.lower`."""
    return _each(str.lower if encoding else lambda text: text.encode().lower(), input)


def upper(input: TensorLike, encoding: str = "") -> Any:
    """Makes letters large, those of ASCII alone unless `encoding` is "utf-8". Source: `tf.strings.upper`."""
    return _each(str.upper if encoding else lambda text: text.encode().upper(), input)


def strip(input: TensorLike) -> Any:
    """Drops white space of ASCII at both ends. Source: `tf.strings.strip`."""
    return _each(lambda text: text.encode().strip(), input)


def regex_replace(input: TensorLike, pattern: str, rewrite: str, replace_global: bool = True) -> Any:
    r"""Replaces what matches, by the rules of Python's `re`; `\0` in `rewrite` is the whole match.

    Source: `tf.strings.regex_replace`.
    """
    # Pairs first, so that the second of two backslashes begins nothing.
    template = re.sub(r"(\\\\)|\\0", lambda found: found[1] or r"\g<0>", rewrite)
    compiled = re.compile(pattern)
    return _each(lambda text: compiled.sub(template, text, count=0 if replace_global else 1), input)


def regex_full_match(input: TensorLike, pattern: str) -> Any:
    """Tells which strings match as a whole. Source: `tf.strings.regex_full_match`."""
    return _each(lambda text: re.fullmatch(pattern, text) is not None, input, bool)


def length(input: TensorLike, unit: str = "BYTE") -> Any:
    """Counts bytes, or characters for the unit "UTF8_CHAR". Source: `tf.strings.length`."""
    return _each(lambda text: len(text.encode() if unit == "BYTE" else text), input, np.int32)


def to_number(input: TensorLike, out_type: DType = np.float32) -> Any:
    """Reads numbers.

    Raises:
      ArgumentError: an integer that `out_type` does not hold.
      ValueError: a text is no number of the kind that `out_type` is of.

    Source: `tf.strings.to_number`.
    """
    wanted = np.dtype(out_type)
    if not np.issubdtype(wanted, np.integer):
        return as_tensor(_each(float, input, np.float64), wanted)
    numbers = _each(int, input)
    for one in numbers.ravel():
        settings.check_range(np.asarray(one), wanted, "a text")
    return as_tensor(numbers.astype(wanted), wanted)


def join(inputs: TensorLike, separator: str = "") -> Any:
    """Joins arrays of strings, element by element. Source: `tf.strings.join`."""
    parts = np.broadcast_arrays(*[host_array(part) for part in inputs])
    rows = zip(*[part.ravel() for part in parts], strict=True)
    made = np.empty(parts[0].size, object)
    made[:] = [separator.encode().join(row) for row in rows]
    return with_texts(made.reshape(parts[0].shape))
