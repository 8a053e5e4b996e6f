"""Strings of datasets: bytes that compare with Python's strings, and are added to them, as TensorFlow's do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxtribute.errors import ArgumentTypeError


def with_texts(leaf: Any) -> Any:
    """A leaf of an element; bytes, and arrays of them, as such that know Python's strings."""
    if isinstance(leaf, bytes):
        return Text(leaf)
    return leaf.view(Texts) if is_text(leaf) else leaf


def is_text(value: object) -> bool:
    """True for arrays of strings."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "O"


def combined(name: str, x: Any, y: Any) -> Any:
    """The result of `tf.equal`, `tf.not_equal` or `tf.add` on arrays of strings.

    Raises:
      ArgumentTypeError: there is no such operation on strings, or one of both is not of strings.
    """
    operation = {"equal": "__eq__", "not_equal": "__ne__", "add": "__add__"}.get(name)
    if operation is None:
        raise ArgumentTypeError(f"tf.{name} of strings. HINT: use tf.strings, or Python's str.")
    if not is_text(x) or not is_text(y):
        number = y if is_text(x) else x
        raise ArgumentTypeError(f"tf.{name} of strings and {number!r}. HINT: tf.strings.to_number makes numbers.")
    return getattr(x.view(Texts), operation)(y)


class Text(np.bytes_):  # of Python's bytes alone, NumPy does not know subclasses
    """One string. Python's are taken for their UTF-8."""

    def __eq__(self, other: object) -> Any:
        return bytes.__eq__(self, _encoded(other))

    def __ne__(self, other: object) -> Any:
        return bytes.__ne__(self, _encoded(other))

    # As of the bytes: a dictionary of bytes is a table of such strings.
    __hash__ = bytes.__hash__

    def __add__(self, other: Any) -> Any:
        added = _encoded(other)
        return Text(bytes(self) + added) if isinstance(added, bytes) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        added = _encoded(other)
        return Text(added + bytes(self)) if isinstance(added, bytes) else NotImplemented


class Texts(np.ndarray[Any, Any]):
    """An array of strings, as objects."""

    def __eq__(self, other: object) -> Any:
        return np.equal(np.asarray(self), _array(other)) if _may_be_texts(other) else super().__eq__(other)

    def __ne__(self, other: object) -> Any:
        return np.not_equal(np.asarray(self), _array(other)) if _may_be_texts(other) else super().__ne__(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __add__(self, other: Any) -> Any:
        return _joined(self, other) if _may_be_texts(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return _joined(other, self) if _may_be_texts(other) else NotImplemented

    def __getattr__(self, name: str) -> Any:
        """A method of bytes, of an array that is one string."""
        if name.startswith("__") or not hasattr(bytes, name):
            raise AttributeError(f"'Texts' object has no attribute {name!r}", name=name, obj=self)
        if self.ndim:
            raise AttributeError(
                f"{name!r} is a method of one string, and these are of shape {self.shape}. HINT: write "
                f"[text.{name}() for text in texts], or tf.strings.",
                name=name,
            )
        return getattr(self.item(), name)

    def __getitem__(self, key: Any) -> Any:
        return with_texts(super().__getitem__(key))

    def __iter__(self) -> Iterator[Any]:
        return map(with_texts, super().__iter__())


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _may_be_texts(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_may_be_texts, value))
    return isinstance(value, (str, bytes)) or (isinstance(value, np.ndarray) and value.dtype.kind in "OSU")


def _array(value: Any) -> np.ndarray[Any, Any]:
    from jaxtribute._src.addons.compat.tf.conversion import host_array

    return host_array(value)


def _joined(first: Any, second: Any) -> Texts:
    left, right = np.broadcast_arrays(_array(first), _array(second))
    made = np.empty(left.size, object)
    made[:] = [bytes(one) + bytes(other) for one, other in zip(left.ravel(), right.ravel(), strict=True)]
    return made.reshape(left.shape).view(Texts)
