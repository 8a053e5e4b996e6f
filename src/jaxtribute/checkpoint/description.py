"""`jaxtribute.json`: what a checkpoint is, beside Orbax's own files; and how it differs from what is expected."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jaxtribute
from jaxtribute.checkpoint.forms import Spec
from jaxtribute.errors import CheckpointError

FILE = "jaxtribute.json"
_FORMAT = 1


@dataclass(frozen=True)
class Description:
    """What a checkpoint says of itself.

    Attributes:
      values: what is saved, by name.
      iterators: the names of iterators whose positions are saved.
      workers: the processes that wrote it.
      written_at: when it was complete, in seconds since 1970.
    """

    values: Mapping[str, Spec]
    iterators: tuple[str, ...]
    workers: int
    written_at: float

    def write(self, directory: Path) -> None:
        """Writes the file into a checkpoint."""
        entries = {
            "format": _FORMAT,
            "jaxtribute": jaxtribute.__version__,
            "written_at": self.written_at,
            "workers": self.workers,
            "iterators": self.iterators,
            "values": {name: spec.as_json() for name, spec in self.values.items()},
        }
        (directory / FILE).write_text(json.dumps(entries, indent=1) + "\n")

    @classmethod
    def of(cls, values: Mapping[str, Spec], iterators: Mapping[str, Any], workers: int) -> Description:
        """The description of a checkpoint that is written now."""
        return cls(dict(values), tuple(iterators), workers, time.time())

    @classmethod
    def read(cls, directory: Path) -> Description:
        """Reads the file of a checkpoint.

        Raises:
          CheckpointError: there is no complete checkpoint, or a later version has written it.
        """
        try:
            entries: dict[str, Any] = json.loads((directory / FILE).read_text())
        except FileNotFoundError:
            raise CheckpointError(
                f"{directory} is no checkpoint of this library: it has no {FILE}. HINT: pass the path that save() "
                "returned, or manager.latest_checkpoint."
            ) from None
        if entries["format"] > _FORMAT:
            raise CheckpointError(
                f"{directory} was written by jaxtribute {entries['jaxtribute']} in format {entries['format']}, and "
                f"this version reads up to {_FORMAT}. HINT: restore it with that version."
            )
        values = {name: Spec.from_json(entry) for name, entry in entries["values"].items()}
        return cls(values, tuple(entries["iterators"]), entries["workers"], entries["written_at"])

    def without(self, name: str) -> Description:
        """The description but for one value."""
        return replace(self, values={key: spec for key, spec in self.values.items() if key != name})


@dataclass(frozen=True)
class Differences:
    """How a checkpoint differs from what it is restored into.

    Attributes:
      missing: what is expected and not in the checkpoint.
      unexpected: what is in the checkpoint and not expected.
      unlike: what is in both with another shape or dtype.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    unlike: tuple[str, ...]

    @classmethod
    def between(cls, saved: Description, values: Mapping[str, Spec], iterators: Mapping[str, Any]) -> Differences:
        """Compares names, shapes and dtypes."""
        here, there = {**values, **dict.fromkeys(iterators)}, {**saved.values, **dict.fromkeys(saved.iterators)}
        unlike: list[str] = []
        for name in here.keys() & there.keys():
            mine, theirs = _kind(here[name]), _kind(there[name])
            if mine != theirs:
                unlike.append(f"{name}: {theirs} in the checkpoint, {mine} here")
        return cls(
            tuple(f"{name}: {_kind(here[name])}" for name in sorted(here.keys() - there.keys())),
            tuple(f"{name}: {_kind(there[name])}" for name in sorted(there.keys() - here.keys())),
            tuple(sorted(unlike)),
        )

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.unlike)

    def __str__(self) -> str:
        parts = {
            "not in the checkpoint": self.missing,
            "only in the checkpoint": self.unexpected,
            "of another shape or dtype": self.unlike,
        }
        lines = [f"  {title}:\n" + "\n".join(f"    {one}" for one in found) for title, found in parts.items() if found]
        return "\n".join(lines)


def _kind(spec: Spec | None) -> str:
    """What values must have in common to be restored into each other."""
    return "an iterator's position" if spec is None else str(spec)
