"""A share of the slow tests: one in so many, others at each commit and with each Python."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from longest import seconds_of


def turn(root: Path) -> str:
    """Whose turn it is: a commit and a Python; a tree without Git is always the same commit."""
    asked = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return f"{asked.stdout.strip()} {sys.version_info.minor}"


def share(items: Sequence[pytest.Item], parts: int, whose: str) -> set[pytest.Item]:
    """One in `parts` of the items, about as long in all as any other share.

    Args:
      items: the tests to choose from.
      parts: how many shares there are.
      whose: says which of them it is.
    """
    # In pieces of neighbours by their length, of which each share has one.
    longest = sorted(items, key=lambda item: (-seconds_of(item), zlib.crc32(item.nodeid.encode())))
    pieces = (longest[start : start + parts] for start in range(0, len(longest), parts))
    mine = (zlib.crc32(f"{whose} {number}".encode()) % parts for number in range(len(longest)))
    return {piece[place] for piece, place in zip(pieces, mine, strict=False) if place < len(piece)}
