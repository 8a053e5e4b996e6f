"""A little of `tf.io`."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.tf.examples import FixedLenFeature as FixedLenFeature
from jaxtribute._src.addons.compat.tf.examples import FixedLenSequenceFeature as FixedLenSequenceFeature
from jaxtribute._src.addons.compat.tf.examples import TFRecordOptions as TFRecordOptions
from jaxtribute._src.addons.compat.tf.examples import TFRecordWriter as TFRecordWriter
from jaxtribute._src.addons.compat.tf.examples import decode_image as decode_image
from jaxtribute._src.addons.compat.tf.examples import parse_example as parse_example
from jaxtribute._src.addons.compat.tf.examples import parse_single_example as parse_single_example
from jaxtribute._src.addons.compat.tf.examples import parse_tensor as parse_tensor
from jaxtribute._src.addons.compat.tf.examples import read_file as read_file
from jaxtribute._src.addons.compat.tf.examples import serialize_tensor as serialize_tensor
from jaxtribute._src.core.types import DType, Nest
from jaxtribute.compat.tf import gfile as gfile

decode_bmp = decode_gif = decode_jpeg = decode_png = decode_image


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
    strings = np.asarray(input_bytes, dtype=object)
    dtype = np.dtype(out_type).newbyteorder("<" if little_endian else ">")
    rows = [np.frombuffer(string, dtype).astype(out_type) for string in strings.ravel()]
    return np.stack(rows).reshape(*strings.shape, -1)


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.io", name)
