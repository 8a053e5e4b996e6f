"""Reading JSON that anybody may have written: what is in it, or an error that says why there is nothing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from jaxtribute._src.regular_files import LARGEST, read_small

if TYPE_CHECKING:
    from jaxtribute._src.core.types import Json


def parse_json(text: str | bytes) -> Json:
    """Reads JSON.

    Args:
      text: JSON, which anybody may have written.

    Raises:
      ValueError: it is none, or Python does not read it: numbers of thousands of digits, very many brackets.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("there are too many brackets within brackets") from None


def read_json(path: str | os.PathLike[str], most: int = LARGEST) -> Any:
    """Reads a file of JSON, in which each name of an object stands once. Never waits.

    Args:
      path: the file.
      most: bytes that such a file may have.

    Raises:
      IrregularError: the file is no regular one, or too large.
      OSError: it cannot be read.
      ValueError: it holds no JSON, or a name twice; it is named.
    """
    content = read_small(path, most)
    try:
        return json.loads(content.decode(), object_pairs_hook=_once)
    except RecursionError:
        raise ValueError(f"{path} is no JSON that can be read: too many brackets within brackets") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of two entries of one name nobody knows which is meant."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands in it twice")
    return made
