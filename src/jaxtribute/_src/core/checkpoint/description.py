"""`jaxtribute.json`: what a checkpoint is, beside Orbax's own files; and how it differs from what is expected.

The file comes last, and holds the checksums of all others, and one of itself.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxtribute._src.core.checkpoint.files import FILE, not_read, present, write_text
from jaxtribute._src.core.checkpoint.forms import Spec
from jaxtribute._src.core.checkpoint.turns import Turn
from jaxtribute._src.core.checksums import Mark
from jaxtribute._src.core.reading import passing, patiently
from jaxtribute._src.json_reading import parse_json
from jaxtribute._src.regular_files import read_small
from jaxtribute.errors import CheckpointDamagedError, CheckpointError

_FORMAT = 2
_WITHOUT_CHECKSUM = 1


@dataclass(frozen=True)
class Description:
    """Description of a checkpoint, stored in it.

    Attributes:
      values: what is saved, by name.
      iterators: the names of iterators whose positions are saved.
      workers: the processes that wrote it.
      written_at: when it was complete, in seconds since 1970.
      files: the marks of all other files of the checkpoint, by name.
      turn: its place among the saves of its name; None of one without a number, or of an earlier version.
    """

    values: Mapping[str, Spec]
    iterators: tuple[str, ...]
    workers: int
    written_at: float
    files: Mapping[str, Mark] = field(default_factory=dict[str, Mark])
    turn: Turn | None = None

    def write(self, directory: Path) -> None:
        """Writes the file into a checkpoint, through to the disk."""
        entries = {
            "format": _FORMAT,
            "jaxtribute": version("jaxtribute"),
            "written_at": self.written_at,
            "workers": self.workers,
            "turn": None if self.turn is None else self.turn.entries(),
            "iterators": list(self.iterators),
            "values": {name: spec.as_json() for name, spec in self.values.items()},
            "files": {name: list(mark) for name, mark in self.files.items()},
        }
        write_text(directory / FILE, json.dumps({"checksum": _checksum(entries), **entries}, indent=1) + "\n")

    @classmethod
    def of(cls, values: Mapping[str, Spec], iterators: Mapping[str, Any], workers: int) -> Description:
        """The description of a checkpoint that is written now, before its files are known."""
        return cls(dict(values), tuple(iterators), workers, time.time())

    @classmethod
    def read(cls, directory: Path) -> Description:
        """Reads the file of a checkpoint.

        Raises:
          CheckpointDamagedError: the file is missing, or not as it was written.
          CheckpointUnreadableError: the file cannot be read now.
          CheckpointError: there is no such folder, or another version has written the checkpoint.
        """
        entries = entries_of(directory)
        if entries["format"] != _FORMAT:
            raise CheckpointError(
                f"{directory} was written by jaxtribute {entries['jaxtribute']} in format {entries['format']!r}, and "
                f"this version reads format {_FORMAT}. HINT: restore it with that version."
            )
        try:
            values = {name: Spec.from_json(entry) for name, entry in entries["values"].items()}
            files = {name: (int(size), int(checksum)) for name, (size, checksum) in entries["files"].items()}
            turn, written_at = Turn.parse(entries.get("turn")), float(entries["written_at"])
            return cls(values, tuple(entries["iterators"]), int(entries["workers"]), written_at, files, turn)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise damaged(directory, f"{FILE} is no description: {type(error).__name__}: {error}") from None

    def without(self, name: str) -> Description:
        """The description but for one value."""
        return replace(self, values={key: spec for key, spec in self.values.items() if key != name})


@dataclass(frozen=True)
class Differences:
    """Differences between a checkpoint and the objects into which it is restored.

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
        # None stands for an iterator, of which only the name is compared.
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
        lines: list[str] = []
        for title, names in parts.items():
            if names:
                lines.append(f"  {title}:")
                lines.extend(f"    {line}" for line in names)
        return "\n".join(lines)


def _kind(spec: Spec | None) -> str:
    """Properties that two values must share if one is to be restored into the other."""
    return "an iterator's position" if spec is None else str(spec)


def entries_of(directory: Path) -> dict[str, Any]:
    """Contents of a checkpoint's file, of whatever version, if the file is as it was written.

    Raises:
      CheckpointDamagedError: the file is missing, or not as it was written.
      CheckpointUnreadableError: it cannot be read now.
      CheckpointError: there is no such folder.
    """
    try:
        content = patiently(lambda: read_small(directory / FILE))
    except (FileNotFoundError, NotADirectoryError):
        if not present(directory / "."):
            raise CheckpointError(
                f"{directory} is no checkpoint: there is no such folder. HINT: pass the path that save() returned, "
                "or manager.latest_checkpoint."
            ) from None
        raise CheckpointDamagedError(
            f"{directory} is no checkpoint of this library, or a damaged one: it has no {FILE}. HINT: pass the path "
            "that save() returned, or manager.latest_checkpoint."
        ) from None
    except (OSError, MemoryError) as error:
        if passing(error):
            raise not_read(directory, error) from error
        raise damaged(directory, f"{FILE} cannot be read: {error}") from error
    try:
        entries = parse_json(content)
        checksum = entries.pop("checksum", None)
        # The first format had no checksum; it is refused by its number later, not called damaged.
        sound = checksum == _checksum(entries) or (checksum is None and entries["format"] == _WITHOUT_CHECKSUM)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise damaged(directory, f"{FILE} cannot be read: {type(error).__name__}: {error}") from None
    if not sound:
        raise damaged(directory, f"{FILE} does not hold what was written")
    return entries


def damaged(directory: Path, problem: str) -> CheckpointDamagedError:
    """The error of a checkpoint that is not as it was written."""
    return CheckpointDamagedError(
        f"{directory} is damaged: {problem}. HINT: restore an earlier checkpoint; "
        "manager.restore_or_initialize() does so by itself."
    )


def _checksum(entries: Mapping[str, Any]) -> int:
    """The checksum of a description's entries, whatever the order and the spaces."""
    return zlib.crc32(json.dumps(entries, sort_keys=True).encode())
