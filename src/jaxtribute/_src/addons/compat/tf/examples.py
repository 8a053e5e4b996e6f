"""`tf.train.Example` and the reading of it, on protobuf, and files of TFRecords."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxtribute._src.addons.compat.tf.absences import telling_absent
from jaxtribute._src.addons.compat.tf.conversion import TensorLike, host_array
from jaxtribute._src.addons.compat.tf.specs import as_dtype
from jaxtribute.errors import ArgumentError, InputError, MissingLibraryError
from jaxtribute.typing import DType

_FIELDS: dict[str, list[tuple[str, int, int, str, bool]]] = {
    # Name, number, type (12 bytes, 2 float, 3 int64, 5 int32, 11 message), type's name, repeated. Source: example.proto
    "BytesList": [("value", 1, 12, "", True)],
    "FloatList": [("value", 1, 2, "", True)],
    "Int64List": [("value", 1, 3, "", True)],
    "Feature": [
        ("bytes_list", 1, 11, "BytesList", False),
        ("float_list", 2, 11, "FloatList", False),
        ("int64_list", 3, 11, "Int64List", False),
    ],
    "Features": [("feature", 1, 11, "Features.FeatureEntry", True)],
    "Example": [("features", 1, 11, "Features", False)],
    "Dim": [("size", 1, 3, "", False)],
    "Shape": [("dim", 2, 11, "Dim", True)],
    # Source: tensor.proto; numbers lie in `tensor_content` as `tf.io.serialize_tensor` writes them.
    "Tensor": [
        ("dtype", 1, 5, "", False),
        ("tensor_shape", 2, 11, "Shape", False),
        ("tensor_content", 4, 12, "", False),
        ("string_val", 8, 12, "", True),
    ],
}
_PACKAGE = "jaxtribute.compat"
_DTYPES = {1: "f4", 2: "f8", 3: "i4", 4: "u1", 5: "i2", 6: "i1", 7: "O", 9: "i8", 10: "?", 17: "u2", 19: "f2"}
"""Numbers of TensorFlow's types in a Tensor. Source: types.proto"""


@functools.cache
def _classes() -> dict[str, Any]:
    """Protobuf's classes of the messages, by their names.

    Raises:
      MissingLibraryError: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise MissingLibraryError(
            "tf.train.Example and tensors in files are messages of protobuf, which is not installed. HINT: pip install "
            "protobuf."
        ) from error
    file = descriptor_pb2.FileDescriptorProto(name="jaxtribute/example.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, type_name, repeated in fields:
            full = f".{_PACKAGE}.{type_name}" if type_name else None
            message.field.add(name=field, number=number, type=kind, label=3 if repeated else 1, type_name=full)
            if name == "Feature":  # one of the three lists
                message.field[-1].oneof_index = 0
        if name == "Feature":
            message.oneof_decl.add(name="kind")
        if name == "Features":
            entry = message.nested_type.add(name="FeatureEntry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=9, label=1)
            entry.field.add(name="value", number=2, type=11, label=1, type_name=f".{_PACKAGE}.Feature")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _FIELDS}


def __getattr__(name: str) -> Any:
    if name in _FIELDS:
        return _classes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Example:
    """A record of named features; protobuf's message, whose methods it has.

    Args:
      features: the `Features`.

    Source: `tf.train.Example`.
    """

    def __init__(self, features: Any = None) -> None:
        self._message: Any = _classes()["Example"](features=features)

    @classmethod
    def FromString(cls, data: TensorLike) -> Example:  # noqa: N802 (protobuf's name)
        """Reads an example. Source: `google.protobuf.message.Message.FromString`."""
        made = cls()
        made.ParseFromString(data)
        return made

    def ParseFromString(self, data: TensorLike) -> int:  # noqa: N802 (protobuf's name)
        """Reads an example into this one. Source: `google.protobuf.message.Message.ParseFromString`."""
        # A record of a dataset is an array of no axes, which protobuf does not take.
        return self._message.ParseFromString(np.asarray(data, dtype=object).item())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def __repr__(self) -> str:
        return repr(self._message)


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature of one shape in all examples. Source: `tf.io.FixedLenFeature`."""

    shape: Any
    dtype: Any
    default_value: Any = None


@dataclass(frozen=True)
class FixedLenSequenceFeature:
    """A feature of any number of entries, each of one shape. Source: `tf.io.FixedLenSequenceFeature`."""

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


def parse_single_example(serialized: TensorLike, features: Mapping[str, Any]) -> dict[str, Any]:
    """Reads an example.

    Args:
      serialized: its bytes.
      features: a `FixedLenFeature` or `FixedLenSequenceFeature` for each name.

    Returns:
      A NumPy array for each name, of the feature's shape.

    Raises:
      InputError: the bytes are no example, or a feature is missing, or has another length or type.
      ArgumentError: another kind of feature.

    Source: `tf.io.parse_single_example`.
    """
    data = np.asarray(serialized, dtype=object).item()
    try:
        found = Example.FromString(data).features.feature
    except Exception as error:
        raise InputError(f"{data[:20]!r} is no tf.train.Example. HINT: what wrote the record?") from error
    return {name: _feature(name, found, wanted) for name, wanted in features.items()}


def parse_example(serialized: TensorLike, features: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a batch of examples: arrays with a first axis for the examples. Source: `tf.io.parse_example`."""
    rows = [parse_single_example(one, features) for one in np.asarray(serialized, dtype=object).ravel()]
    return {name: np.stack([row[name] for row in rows]) for name in features}


def _feature(name: str, found: Mapping[str, Any], wanted: Any) -> Any:
    if not isinstance(wanted, (FixedLenFeature, FixedLenSequenceFeature)):
        raise ArgumentError(f"the feature {name!r} is {wanted!r}. HINT: give a tf.io.FixedLenFeature.")
    dtype = np.dtype(as_dtype(wanted.dtype))
    sequence = isinstance(wanted, FixedLenSequenceFeature)
    shape = (*([-1] if sequence else []), *np.atleast_1d(np.asarray(wanted.shape, int)))
    kind = found[name].WhichOneof("kind") if name in found else None
    if kind is None:
        if wanted.default_value is None and not sequence:
            raise InputError(f"an example has no {name!r}, but {sorted(found)}. HINT: give a default_value.")
        default = [] if wanted.default_value is None else wanted.default_value
        return np.asarray(default, dtype) if sequence else np.broadcast_to(np.asarray(default, dtype), shape)
    expected = {"f": "float_list", "i": "int64_list"}.get(dtype.kind, "bytes_list")
    if kind != expected:
        raise InputError(f"{name!r} holds a {kind}, and {expected} is asked for. HINT: see the feature's dtype.")
    values = np.empty(len(getattr(found[name], kind).value), dtype)
    values[:] = list(getattr(found[name], kind).value)
    try:
        return values.reshape(shape)
    except ValueError as error:
        raise InputError(f"{name!r} has {values.size} values, not shape {shape}. HINT: see the shape.") from error


def serialize_tensor(tensor: TensorLike) -> bytes:
    """Writes an array as bytes. Source: `tf.io.serialize_tensor`."""
    array = host_array(tensor)
    number = next((one for one, code in _DTYPES.items() if np.dtype(code) == array.dtype), None)
    if number is None:
        raise ArgumentError(f"an array of {array.dtype} cannot be serialized. HINT: cast it first.")
    proto = _classes()["Tensor"](dtype=number)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if array.dtype == object:
        proto.string_val.extend(array.ravel().tolist())
    else:
        proto.tensor_content = array.tobytes()
    return proto.SerializeToString()


def parse_tensor(serialized: TensorLike, out_type: DType) -> Any:
    """Reads an array that `serialize_tensor` wrote.

    Raises:
      InputError: its type is another one.

    Source: `tf.io.parse_tensor`.
    """
    proto = _classes()["Tensor"].FromString(np.asarray(serialized, dtype=object).item())
    dtype, wanted = np.dtype(_DTYPES[proto.dtype]), np.dtype(as_dtype(out_type))
    if dtype != wanted:
        raise InputError(f"the tensor is of {dtype}, and {wanted} is asked for. HINT: see out_type.")
    shape = [one.size for one in proto.tensor_shape.dim]
    if dtype.kind == "O":
        return np.array([*proto.string_val], object).reshape(shape)
    return np.frombuffer(proto.tensor_content, dtype).reshape(shape)


def read_file(filename: TensorLike) -> Any:
    """Reads a file whole, as an array of no axes that holds its bytes. Source: `tf.io.read_file`."""
    name = np.asarray(filename, dtype=object).item()
    return np.array(Path(name.decode() if isinstance(name, bytes) else name).read_bytes(), dtype=object)


def decode_image(
    contents: TensorLike, channels: int = 0, dtype: DType = np.uint8, expand_animations: bool = False
) -> Any:
    """Reads a picture: JPEG, PNG, GIF, BMP; uint8 of shape (height, width, channels), float32 in [0, 1] if asked.

    Args:
      contents: the bytes of its file.
      channels: 1, 3 or 4; 0 for those of the file.
      dtype: uint8 or float32.
      expand_animations: accepted for compatibility; of an animation the first picture is read.

    Raises:
      MissingLibraryError: Pillow is not installed.

    Source: `tf.io.decode_image`.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingLibraryError("reading pictures needs Pillow. HINT: pip install pillow.") from error
    picture = Image.open(io.BytesIO(np.asarray(contents, dtype=object).item()))
    modes = {1: "L", 3: "RGB", 4: "RGBA"}
    # Palettes and the like have no channels of their own.
    mode = modes.get(channels) or (picture.mode if picture.mode in modes.values() else "RGB")
    array = np.asarray(picture.convert(mode))
    array = array[:, :, None] if array.ndim == 2 else array
    return array.astype(np.float32) / 255 if np.dtype(dtype) == np.float32 else array


@telling_absent("tf.io.TFRecordOptions")
@dataclass(frozen=True, slots=True)
class TFRecordOptions:
    """Compression of a file of records: `"GZIP"`, `"ZLIB"`, or none. Source: `tf.io.TFRecordOptions`."""

    compression_type: Literal["GZIP", "ZLIB", ""] | None = None
    compression_level: int | None = None


_WINDOWS = {"GZIP": zlib.MAX_WBITS | 16, "ZLIB": zlib.MAX_WBITS}
"""Argument of zlib for each of the two formats."""


def check_compression(kind: str | None) -> None:
    """Checks the compression of a file of records, which None and `""` stand for if there is none.

    Raises:
      ArgumentError: it is another one than GZIP and ZLIB.
    """
    if kind and kind not in _WINDOWS:
        raise ArgumentError(f"compression_type={kind!r} is not known. HINT: it is 'GZIP', 'ZLIB' or None.")


class TFRecordWriter:
    """Writes records to a file.

    Args:
      path: the file.
      options: how it is compressed, or the name of the compression; None or `""` for none.

    Raises:
      ArgumentError: another compression.

    Source: `tf.io.TFRecordWriter`.
    """

    def __init__(self, path: str, options: TFRecordOptions | str | None = None) -> None:
        kind = options.compression_type if isinstance(options, TFRecordOptions) else options
        check_compression(kind)
        level = options.compression_level if isinstance(options, TFRecordOptions) else None
        self._packed = zlib.compressobj(-1 if level is None else level, wbits=_WINDOWS[kind]) if kind else None
        self._stream = Path(path).open("wb")  # noqa: SIM115 (closed by close())

    def write(self, record: bytes) -> None:
        """Adds a record. Source: `tf.io.TFRecordWriter.write`."""
        data = np.asarray(record, dtype=object).item()
        length = struct.pack("<Q", len(data))
        whole = length + _masked(length) + data + _masked(data)
        self._stream.write(self._packed.compress(whole) if self._packed else whole)

    def flush(self) -> None:
        """Hands what is written to the system. Source: `tf.io.TFRecordWriter.flush`."""
        self._stream.flush()

    def close(self) -> None:
        """Ends the file. Source: `tf.io.TFRecordWriter.close`."""
        if self._packed and not self._stream.closed:
            self._stream.write(self._packed.flush())
        self._stream.close()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _table() -> list[int]:
    """The table of CRC-32C, by its reflected polynomial."""
    table: list[int] = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _table()


def _masked(data: bytes) -> bytes:
    """The checksum that a file of TFRecords holds of `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
