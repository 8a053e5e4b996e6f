"""The checkpoints of one name in a folder, in the order in which they were saved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from jaxtribute._src.core.checkpoint.description import entries_of
from jaxtribute._src.core.checkpoint.files import FILE, not_read, number_of, numbered, present, standing, stem
from jaxtribute._src.core.checkpoint.turns import TURN, Turn
from jaxtribute._src.core.reading import passing, patiently
from jaxtribute._src.regular_files import read_small
from jaxtribute.errors import CheckpointError, CheckpointUnreadableError

Identity = tuple[int, int]
"""Tells a checkpoint from a later one of the same name."""


def identity_of(path: Path) -> Identity | None:
    """The identity of a checkpoint, from the file of it that was written last; None if it cannot be seen."""
    try:
        stat = patiently((standing(path) / FILE).stat)
    except (OSError, CheckpointUnreadableError):
        return None
    return stat.st_ino, stat.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint of a folder.

    Attributes:
      path: its path.
      number: the number in its name.
      complete: whether it has its description, which is written last.
      described: whether its description is as it was written.
      turn: its place among the saves; None of an earlier version's, or if both files that tell it are damaged.
      written_at: when it was complete, in seconds since 1970, by a clock that may have been set since.
    """

    path: Path
    number: int
    complete: bool
    described: bool
    turn: Turn | None
    written_at: float

    @property
    def known(self) -> bool:
        """True if its files tell its turn, or that it has none."""
        return self.described or self.turn is not None

    @classmethod
    def read(cls, path: Path, number: int) -> Entry:
        """Reads what the files of a checkpoint tell.

        Raises:
          CheckpointUnreadableError: they cannot be read now.
        """
        place, turns = standing(path), list[Turn | None]()
        complete, described, written_at = present(place / FILE), False, _touched_at(place)
        try:
            entries = entries_of(place)
            turns.append(Turn.parse(entries.get("turn")))
            written_at, described = float(entries.get("written_at", written_at)), True
        except CheckpointUnreadableError:
            raise
        except (CheckpointError, ArithmeticError, TypeError, ValueError):
            pass  # damaged, or deleted just now
        turns.append(_turn_of(place))
        # The larger of both: one of them may be of an older checkpoint, if a disk has mixed them up.
        turn = max((turn for turn in turns if turn is not None), key=lambda turn: turn.number, default=None)
        return cls(path, number, complete, described, turn, written_at)


def _touched_at(place: Path) -> float:
    try:
        return place.stat().st_mtime
    except OSError:
        return 0.0


def _turn_of(place: Path) -> Turn | None:
    try:
        return Turn.from_text(patiently(lambda: read_small(place / TURN)))
    except (OSError, MemoryError) as error:
        if passing(error):
            raise not_read(place, error) from error
    return None


class Series:
    """The checkpoints of one name in a folder.

    Args:
      directory: the folder, which need not exist.
      name: what their names start with.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._read: dict[Path, tuple[Identity, Entry]] = {}

    def entries(self) -> list[Entry]:
        """The checkpoints in the order in which they were saved, the last at the end.

        Those of earlier versions, which had no turns, come first, by their numbers. One that does not tell its turn any
        more counts as the last if its number is the highest, as it mostly is then, and else as the first.

        Raises:
          CheckpointError: there is no folder, but a file.
          CheckpointUnreadableError: the folder, or what orders it, cannot be read now.
        """
        listed: list[Entry] = []
        read: dict[Path, tuple[Identity, Entry]] = {}
        for number, path in numbered(self._directory, self._name).items():
            identity = identity_of(path)
            known = self._read.get(path)
            entry = known[1] if known is not None and known[0] == identity else Entry.read(path, number)
            if not present(standing(path)):
                continue  # another process has just deleted it
            listed.append(entry)
            if identity is not None and entry.known:
                read[path] = identity, entry
        self._read = read
        highest = max((entry.number for entry in listed if entry.known), default=-1)

        def order(entry: Entry) -> tuple[int, int, int]:
            if not entry.known:
                return (2 if entry.number > highest else 0), 0, entry.number
            return 1, entry.turn.number if entry.turn is not None else 0, entry.number

        return sorted(listed, key=order)

    def line(self) -> tuple[list[Entry], list[Entry]]:
        """The last checkpoint and those that its training has come through, the last first; and all others.

        Raises:
          CheckpointError: it cannot be told which one was saved last; or as for `entries`.
        """
        entries = self.entries()
        newest: Entry | None = None
        line, others = list[Entry](), list[Entry]()
        for entry in reversed(entries):
            if newest is None or newest.turn is None or newest.turn.came_through(entry.turn, entry.number):
                line.append(entry)
            else:
                others.append(entry)
            if newest is None and entry.known:
                newest = entry
                if entry.turn is None:
                    self._check_unordered(entry, entries)
        return line, others

    def _check_unordered(self, highest: Entry, entries: list[Entry]) -> None:
        """Checks that the highest number of an earlier version's checkpoints was also written last."""
        last = max((entry for entry in entries if entry.known), key=lambda entry: entry.written_at)
        if last.written_at > highest.written_at:
            raise CheckpointError(
                f"it is not known which checkpoint of {self._directory / self._name}-* was saved last: {highest.path} "
                f"has the highest number, and {last.path} the latest time. An earlier version saved them, which had no "
                "order: a training may have gone back to an earlier one, or the clock was set. HINT: restore "
                "the one that you mean, checkpoint.restore(path), and save; or move away what you do not need."
            )


class Past:
    """Checkpoints that the values of a program come from: the last of each name that it has saved or restored."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], Turn] = {}
        self._series: dict[tuple[str, str], Series] = {}
        self.begun: Path | None = None  # what processes that join later restore as well

    def next(self, path: Path) -> Turn | None:
        """The turn of a save at a path; None if the name has no number.

        Raises:
          CheckpointUnreadableError: the folder, or what orders it, cannot be read now.
        """
        if number_of(path) is None:
            return None
        place = _series(path)
        series = self._series.setdefault(place, Series(Path(place[0]), place[1]))
        turns = [entry.turn.number for entry in series.entries() if entry.turn is not None]
        return Turn.next(self._turns.get(place), turns)

    def saved(self, path: Path, turn: Turn | None) -> None:
        """Notes a checkpoint that holds the values as they are."""
        if turn is not None:
            self._turns[_series(path)] = turn

    def restored(self, path: Path, turn: Turn | None) -> None:
        """Notes that the values are those of a checkpoint now."""
        number = number_of(path)
        self._turns.clear()
        if turn is not None:
            self._turns[_series(path)] = turn
        elif number is not None:
            self._turns[_series(path)] = Turn(0, (), number)


def _series(path: Path) -> tuple[str, str]:
    """The folder and the name that the checkpoints of a manager have in common, by whatever path it was given."""
    return os.path.realpath(path.parent), stem(path)
