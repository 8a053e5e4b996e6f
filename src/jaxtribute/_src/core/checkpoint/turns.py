"""The order in which checkpoints of a name were saved, and which of them a training has come through.

Each checkpoint has a turn: one more than any that was there when it was completed. Numbers in names do not tell the
order, as a training that goes back to an earlier one saves under smaller ones, and clocks do not, as they are set.

A turn also tells the line: the saves that its training has come through. After 1, 2, 3, back to 1, and 4, the line of 4
is `((1, 1), (4, 4))`, and 2 and 3 are of a line that was given up. If 4 is damaged, only 1 may stand in for it.

The turn is in the description and in a file of its own, `turn.json`, so that it is known if one of both is damaged.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from jaxtribute._src.json_reading import parse_json

TURN = "turn.json"
"""The file of a checkpoint that holds its turn once more."""
_NONE = -1


@dataclass(frozen=True, slots=True)
class Turn:
    """Place of a checkpoint among the saves of its name.

    Attributes:
      number: counts the saves.
      line: the saves that its training has come through, as runs from the first to the last, itself included.
      unordered: those that have no turn, of earlier versions, belong to the line up to this number in their names.
    """

    number: int
    line: tuple[tuple[int, int], ...]
    unordered: int = _NONE

    @classmethod
    def next(cls, before: Turn | None, present: list[int]) -> Turn:
        """The turn of a save.

        Args:
          before: the turn that its training comes from; None of one that began again.
          present: the turns of the checkpoints that are there.
        """
        number = max(present, default=0) + 1
        # What nobody can fall back to any more need not be told.
        line = [run for run in before.line if run[1] >= min(present, default=0)] if before is not None else []
        if line and line[-1][1] == number - 1:
            line[-1] = (line[-1][0], number)
        else:
            line.append((number, number))
        return cls(number, tuple(line), _NONE if before is None else before.unordered)

    @classmethod
    def parse(cls, entries: Any) -> Turn | None:
        """Reads what `entries` gave; None of anything else."""
        try:
            runs = tuple((int(first), int(last)) for first, last in entries["line"])
            return cls(int(entries["number"]), runs, int(entries["unordered"]))
        except (ArithmeticError, KeyError, TypeError, ValueError):
            return None

    @classmethod
    def from_text(cls, text: str | bytes) -> Turn | None:
        """Reads what `as_text` gave; None if that is not what the file holds."""
        try:
            entries = parse_json(text)
            checksum = entries.pop("checksum")
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        turn = cls.parse(entries)
        return turn if turn is not None and turn.checksum == checksum else None

    @property
    def checksum(self) -> int:
        """The checksum of the file."""
        return zlib.crc32(json.dumps(self.entries(), sort_keys=True).encode())

    def entries(self) -> dict[str, Any]:
        """The turn as JSON can hold it."""
        return asdict(self)

    def as_text(self) -> str:
        """The text of the file."""
        return json.dumps({"checksum": self.checksum, **self.entries()}) + "\n"

    def came_through(self, turn: Turn | None, number: int) -> bool:
        """True if its training has come through another checkpoint, of the turn and of the number in its name."""
        if turn is None:
            return number <= self.unordered
        return any(first <= turn.number <= last for first, last in self.line)
