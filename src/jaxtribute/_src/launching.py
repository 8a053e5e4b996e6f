"""Tells the launcher's own process from others: it starts programs, and needs nothing that makes programs."""

from __future__ import annotations

import sys
from pathlib import Path

_COMMANDS = ("jaxtribute", "jaxtribute.cli")
_LOOKING = ("doctor", "top", "serve", "migrate", "--version", "--help", "-h")


def launches() -> bool:
    """True if this process is `jaxtribute launch`, from the script or as `python -m`."""
    return _is("launch")


def examines() -> bool:
    """True if this process is `jaxtribute doctor`, which says what settings are wrong, and must come to do so."""
    return _is("doctor")


def looks_on() -> bool:
    """True if this process is one of the library's commands that train nothing: it is no part of a run."""
    return _is(*_LOOKING)


def _is(*commands: str) -> bool:
    # While Python looks for a module `sys.argv` has "-m" for its name; the words of the command line have it.
    words = sys.orig_argv[-len(sys.argv) :]
    return len(words) > 1 and words[1] in commands and Path(words[0]).name in _COMMANDS
