"""Tells the launcher's own process from others: it starts programs, and needs nothing that makes programs."""

from __future__ import annotations

import sys
from pathlib import Path

_COMMANDS = ("jaxtribute", "jaxtribute.cli")


def launches() -> bool:
    """True if this process is `jaxtribute launch`, from the script or as `python -m`."""
    return _is("launch")


def examines() -> bool:
    """True if this process is `jaxtribute doctor`, which says what settings are wrong, and must come to do so."""
    return _is("doctor")


def _is(command: str) -> bool:
    # While Python looks for a module `sys.argv` has "-m" for its name; the words of the command line have it.
    words = sys.orig_argv[-len(sys.argv) :]
    return words[1:2] == [command] and Path(words[0]).name in _COMMANDS
