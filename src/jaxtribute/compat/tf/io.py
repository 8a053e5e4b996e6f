"""A little of `tf.io`."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.core.types import DType, Nest
from jaxtribute.compat.tf import gfile as gfile


def decode_raw(input_bytes: bytes | Nest, out_type: DType, little_endian: bool = True, name: str | None = None) -> Any:
    """Reads bytes as numbers.

    Args:
      input_bytes: a string of bytes, or an array of strings of one length.
      out_type: the numbers' type.
      little_endian: the order of their bytes.
      name: accepted for compatibility.

    Returns:
      A NumPy array of the shape of `input_bytes`, with one more axis.

    Source: `tf.io.decode_raw`.
    """
    del name
    strings = np.asarray(input_bytes, dtype=object)
    dtype = np.dtype(out_type).newbyteorder("<" if little_endian else ">")
    rows = [np.frombuffer(string, dtype).astype(out_type) for string in strings.ravel()]
    return np.stack(rows).reshape(*strings.shape, -1)


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.io", name)
