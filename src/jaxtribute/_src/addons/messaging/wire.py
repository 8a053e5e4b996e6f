"""Messages between processes: a plain header, and the bytes of arrays behind it. Nothing is ever unpickled.

A message is a list of frames. The first is a MessagePack map; under `"#"` it lists dtype and shape of each array, and
the bytes of the small ones. Each large array is a frame of its own, which is neither copied nor encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgpack
import numpy as np

from jaxtribute.errors import ClusterError
from jaxtribute.typing import ArrayLike, HostArray

_INLINE_BYTES = 2048
_SURROGATES = "surrogatepass"
"""Names of files that are not UTF-8 are strings with lone surrogates in Python: they travel as they are."""

Header: TypeAlias = dict[str, Any]
"""The plain part of a message, by the names that sender and receiver agree on; `"t"` says what the message is."""
Frames: TypeAlias = Sequence[Any]
"""A message in frames: bytes, views of arrays' memory, or ZeroMQ's frames, which all give their memory as buffers."""


def pack(header: Header, arrays: Sequence[ArrayLike] = ()) -> Frames:
    """The frames of a message; large arrays are lent to it, so they must not change any more."""
    frames: list[Any] = [b""]
    specs: list[Any] = []
    for given in arrays:
        array = np.asarray(given)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))  # a type's name does not tell the order of bytes
        spec: list[Any] = [array.dtype.name, array.shape]
        if array.nbytes > _INLINE_BYTES:
            array = np.ascontiguousarray(array)
            # A view of bytes: element types such as bfloat16 are unknown to the buffer protocol.
            frames.append(array.reshape(-1).view(np.uint8).data)
        else:
            spec.append(array.tobytes())
        specs.append(spec)
    if specs:
        header = {**header, "#": specs}
    frames[0] = msgpack.packb(header, unicode_errors=_SURROGATES)
    return frames


def unpack(frames: Frames) -> tuple[Header, list[HostArray]]:
    """The header and the arrays, which are read-only views of the frames.

    Raises:
      ClusterError: the frames are no message.
    """
    try:
        header: Header = msgpack.unpackb(frames[0], strict_map_key=False, unicode_errors=_SURROGATES)
        rest = iter(frames[1:])
        arrays = [_array(spec, rest) for spec in header.pop("#", ())]
    except Exception as error:
        raise ClusterError(
            f"a message of {len(frames)} frames cannot be read: {error}. HINT: run the same version everywhere."
        ) from error
    return header, arrays


def _array(spec: Sequence[Any], frames: Iterator[Any]) -> HostArray:
    name, shape, *inline = spec
    array: HostArray = np.frombuffer(inline[0] if inline else next(frames), dtype=np.dtype(name))
    return array.reshape(shape)
