"""Tells the files of installed packages from those of the user's own program."""

from __future__ import annotations

import functools
from importlib import metadata
from pathlib import Path

_FOLDERS = frozenset({"site-packages", "dist-packages"})


@functools.cache
def is_installed(file: str) -> bool:
    """True for files that an installer has put where they are, whatever the folder is called.

    Args:
      file: a path.
    """
    path = Path(file)
    if not _FOLDERS.isdisjoint(path.parts):
        return True
    return any(path.relative_to(folder).parts[0] in _installed(folder) for folder in path.parents)


@functools.cache
def _installed(folder: Path) -> frozenset[str]:
    """The packages and modules in a folder that an installer has put there, as `pip install --target` does.

    A program's own project has no list of its files there, though it may be installed for development.
    """
    known = (one for one in metadata.distributions(path=[str(folder)]) if one.read_text("RECORD"))
    return frozenset(file.parts[0] for one in known for file in one.files or ())
