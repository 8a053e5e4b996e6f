"""Names of TensorFlow and what is here for each: found by name, with the reason for those that are absent."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from jaxtribute._src.addons.compat.catalog import members, notes, operations, others
from jaxtribute._src.addons.compat.catalog.distribute import MODULES
from jaxtribute._src.addons.compat.catalog.keras import keras_problem


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
      here: the full name here, such as `jd.Strategy.run`; empty if there is none.
      kind: how they relate.
      note: what differs and why, what to write instead, or why it is absent.
    """

    name: str
    here: str
    kind: Kind
    note: str = ""

    @property
    def unknown(self) -> str:
        """The advice for a name that is absent, and of which no more is known."""
        absent = self.kind is Kind.ABSENT
        return "it has no counterpart in jaxtribute.compat.tf: write it with jax.numpy, or in Python" if absent else ""


_ELSEWHERE = ("tf.math", "tf.nn", "tf.linalg", "tf.random", "tf.image")
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


# Each name is looked up in the library itself, which loads nearly all of it.
@cache
def distribute_entries() -> dict[str, Entry]:
    """All names of `tf.distribute` and their members, by full name, in the order of the documentation."""
    found: dict[str, Entry] = {}
    for prefix, module in MODULES.items():
        for name, below in module.names.items():
            for path in (name, *(f"{name}.{member}" for member in below.split())):
                full = f"{prefix}.{path}"
                found[full] = _entry(full, f"{module.here}.{path}", path)
    return found


def names() -> list[str]:
    """The names of `tf.distribute` without their members."""
    return [f"{prefix}.{name}" for prefix, module in MODULES.items() for name in module.names]


def _entry(full: str, here: str, path: str) -> Entry:
    # Asked of the library itself, so that the table cannot promise what is not there.
    if not exists(here):
        return Entry(full, "", Kind.ABSENT, why_absent(full))
    if path in notes.DIFFERENT:
        return Entry(full, here, Kind.DIFFERENT, notes.DIFFERENT[path])
    return Entry(full, here, Kind.SAME, notes.REMARKS.get(full, notes.REMARKS.get(path, "")))


def entry_of(name: str) -> Entry:
    """Finds the entry of any full name of TensorFlow, such as `tf.data.Dataset.map`."""
    if name in members.ABSENT:
        return Entry(name, "", Kind.ABSENT, members.ABSENT[name])
    known = distribute_entries()
    path = name
    # A member that the table does not list is told of by its class.
    while path.startswith(("tf.distribute.", "tf.compat.v1.distribute.")):
        if path in known:
            return known[path]
        path = path.rpartition(".")[0]
    # Before a look into modules: a library is not loaded only to see whether it has a name.
    for library, note in others.LIBRARIES.items():
        full = in_keras(name)
        if f"{full}.".startswith(f"{library}."):
            problem = keras_problem(full)
            if problem:
                return Entry(name, "", Kind.ABSENT, problem)
            if full in others.DIFFERENT:
                return Entry(name, name, Kind.DIFFERENT, others.DIFFERENT[full])
            return Entry(name, name, Kind.SAME, others.REMARKS.get(full, note))
    if not exists(name):
        return Entry(name, "", Kind.ABSENT, why_absent(name))
    if name in others.DIFFERENT:
        return Entry(name, name, Kind.DIFFERENT, others.DIFFERENT[name])
    return Entry(name, name, Kind.SAME, others.REMARKS.get(name, ""))


def in_keras(name: str) -> str:
    """A name below `tf.metrics` and its like as one below `tf.keras`; any other as it is."""
    head, tail = ".".join(name.split(".")[:2]), name.split(".")[2:]
    return ".".join([others.ALIASES.get(head, head), *tail])


def why_absent(full: str) -> str:
    """The reason for which a name does not exist here, or an empty string if none is known."""
    of, _, member = full.rpartition(".")
    if exists(of) and isinstance(resolve(of), np.dtype):
        full = f"tf.DType.{member}"
    while full:
        for known in (members.ABSENT, operations.ABSENT, others.ABSENT):
            if full in known:
                return known[full]
        # A name below one that is absent is absent for the same reason.
        full = full.rpartition(".")[0]
    # Names that TensorFlow has in another module, too, or never had in this one: `tf.reduce_variance`.
    if of in ("tf", *_ELSEWHERE):
        for module in _ELSEWHERE:
            # No `hasattr`: a module asks here for the reason of its error.
            if callable(vars(resolve(module)).get(member)):
                return f"write `{module}.{member}`"
    return ""


def explain_absent(module: str, prefix: str, name: str) -> AttributeError:
    """Returns the error for `name` of the module that stands for TensorFlow's `prefix`."""
    # Python asks modules for names of its own, such as `__path__`; looking those up would load the whole table.
    reason = "" if name.startswith("__") else why_absent(f"{prefix}.{name}")
    told = f"module {module!r} has no {name!r}"
    if not reason:
        return AttributeError(f"{told}. HINT: docs/migration.md lists what exists of {prefix}.", name=name)
    return AttributeError(f"{told}. HINT: {reason}.", name=name)
