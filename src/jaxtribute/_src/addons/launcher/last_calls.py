"""Calls that the ranks of this machine were in when one of them was aborted by Gloo, which says nothing of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = "JAXTRIBUTE_LAST_CALL"
"""Names the file that a rank keeps its last call in."""
_SIZE = 1 << 12
_ABORTED = re.compile(rb"gloo::(\w+)")
_REASON = re.compile(rb"what\(\): +(?:\[enforce fail at [^\]]*\] *)?(.*)")


class LastCalls:
    """The files of the ranks of one start.

    Args:
      folder: of files that go with it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def environment(self, rank: int) -> dict[str, str]:
        """Makes a rank's file, and tells the rank of it."""
        path = self._folder / f"{rank}.call"
        path.write_bytes(b"\n".ljust(_SIZE))
        return {FILE: str(path)}

    def read(self) -> dict[int, str]:
        """The last calls, by rank, of those that have made any."""
        calls: dict[int, str] = {}
        for path in sorted(self._folder.glob("*.call"), key=_rank_of):
            if call := path.read_bytes().partition(b"\n")[0].decode(errors="replace").rstrip("\0"):
                calls[_rank_of(path)] = call
        return calls


def _rank_of(path: Path) -> int:
    return int(path.stem)


def aborted_by_gloo(lines: Sequence[bytes], calls: Mapping[int, str]) -> str:
    """Says that Gloo has aborted a rank, and which calls the ranks were in; empty if it has not.

    Args:
      lines: of the rank's output.
      calls: by rank.
    """
    text = b"\n".join(lines)
    *_, kind = [None, *_ABORTED.finditer(text)]
    if kind is None:
        return ""
    reason = _REASON.search(text, kind.end())
    told = "" if reason is None else f": {reason[1].decode(errors='replace')}"
    places = "".join(f"\n  rank {rank}: {call}" for rank, call in calls.items())
    return (
        f"as its collective does not fit to those of the others, or broke (Gloo{told}). The last calls were:"
        f"{places or ' not told'}\nHINT: every worker must make the same calls as often as the others, with the same "
        "shapes, so no `if` of the worker's number, such as `if jd.is_main():`, may stand before a step. "
        "JAXTRIBUTE_DEBUG=collectives finds the first call that differs, and names its lines."
    )
