"""Entries of the table of names: existence here, the name to use, and differences."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """Relation of a name of TensorFlow to this library."""

    SAME = "same"
    RENAMED = "renamed"
    DIFFERENT = "different"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Entry:
    """A name of TensorFlow, and what is here.

    Attributes:
      name: its full name, such as `tf.distribute.Strategy.run`.
      here: the full name here, such as `jd.Strategy.run`; empty where there is none.
      kind: how they relate.
      note: what differs and why, what to write instead, or why it is absent.
    """

    name: str
    here: str
    kind: Kind
    note: str = ""


_ROOTS = {"jd": "jaxtribute", "tf": "jaxtribute.compat.tf", "v1": "jaxtribute.compat.v1"}


def resolve(path: str) -> Any:
    """Returns the object of that full name, where `jd`, `tf` and `v1` stand for this library's modules.

    Raises:
      AttributeError: there is none.
    """
    root, *parts = path.split(".")
    found: Any = importlib.import_module(_ROOTS[root])
    for part in parts:
        found = getattr(found, part)
    return found


def exists(path: str) -> bool:
    """Returns whether there is an object of that full name; what only an extra's library can load is believed."""
    try:
        resolve(path)
    except AttributeError:
        return False
    except ImportError:
        return True
    return True
