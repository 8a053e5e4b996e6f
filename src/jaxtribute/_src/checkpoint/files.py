"""Names and places of checkpoints: which a program may give, and which files of a folder are whose.

| name | what it is |
|---|---|
| `ckpt-7` | a complete checkpoint |
| `ckpt-7.orbax-checkpoint-tmp` | one that is being written, or was when its program was killed |
| `ckpt-7.replaced` | the one before of that name, for the moment in which a new one takes its place |
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from jaxtribute.errors import ArgumentError, ArgumentTypeError

FILE = "jaxtribute.json"
"""The description of a checkpoint, which is written last."""
UNFINISHED = ".orbax-checkpoint-tmp"
"""Ending of a checkpoint's name until it is complete; Orbax's own tools know it, too."""
REPLACED = ".replaced"

# Without zeros in front, so that no two names have one number.
_NUMBER = "(0|[1-9][0-9]*)"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_name(name: object, what: str) -> str:
    """Checks that a name can be part of the name of a file, in one folder, on every system.

    Args:
      name: the name.
      what: the argument that it was given as, for the error.

    Raises:
      ArgumentTypeError: not a string.
      ArgumentError: empty, a path, or with characters that cannot be in a name.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{what}={name!r} is a {type(name).__name__}. HINT: pass a string such as 'ckpt'.")
    check_text(name, what)
    if "/" in name or "\\" in name or name in (".", ".."):
        raise ArgumentError(f"{what}={name!r} is a path. HINT: give a name alone; the folder is given on its own.")
    if name.endswith((UNFINISHED, REPLACED)):
        raise ArgumentError(
            f"{what}={name!r} ends like a checkpoint that is not complete, and would be deleted as one. "
            "HINT: choose another name."
        )
    return name


def check_path(path: object, what: str) -> Path:
    """Checks that a value can be a path, and makes it absolute.

    Args:
      path: a string or an object with `__fspath__` that gives one.
      what: the argument that it was given as, for the error.

    Raises:
      ArgumentTypeError: something else, such as None or bytes.
      ArgumentError: empty, or with characters that cannot be in a path.
    """
    text = path.__fspath__() if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise ArgumentTypeError(
            f"{what}={path!r} is a {type(path).__name__}. HINT: pass a path, as a string or a pathlib.Path."
        )
    check_text(text, what)
    return Path(text).expanduser().absolute()


def check_text(text: str, what: str) -> None:
    """Checks that a text can be written to files and sent to other processes.

    Raises:
      ArgumentError: empty, with control characters, or with what UTF-8 cannot hold.
    """
    if not text.strip():
        raise ArgumentError(f"{what}={text!r} is empty. HINT: give a name; '.' is the current folder.")
    if _CONTROL.search(text):
        raise ArgumentError(f"{what}={text!r} has a control character in it. HINT: leave it out.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{what}={text!r} cannot be written in UTF-8. HINT: rename it.") from None


def standing(path: Path) -> Path:
    """Path of the checkpoint of a name: beside it, if a program was killed while a new one took its place."""
    # Between its two renames a save has taken the old name away and not given it again.
    replaced = path.with_name(path.name + REPLACED)
    return replaced if not path.exists() and replaced.exists() else path


def numbered(directory: Path, name: str) -> dict[int, Path]:
    """The checkpoints of a folder by their numbers, damaged ones too.

    Args:
      directory: the folder, which need not exist.
      name: what their names start with.
    """
    return _matching(directory, name, f"(?:{re.escape(REPLACED)})?")


def complete(directory: Path, name: str) -> dict[int, Path]:
    """Those of `numbered` that have their description, which is written last."""
    return {number: path for number, path in numbered(directory, name).items() if (standing(path) / FILE).exists()}


def left_over(directory: Path, name: str) -> list[Path]:
    """Leftovers in a folder of killed saves of a name, which nobody will need."""
    unfinished = _matching(directory, name, re.escape(UNFINISHED)).values()
    replaced = _matching(directory, name, re.escape(REPLACED)).values()
    found = [path.with_name(path.name + UNFINISHED) for path in unfinished]
    # Beside the new checkpoint the old one is left over; alone it is the checkpoint: see `standing`.
    return found + [path.with_name(path.name + REPLACED) for path in replaced if path.exists()]


def _matching(directory: Path, name: str, ending: str) -> dict[int, Path]:
    """Paths with a number between `name-` and an ending: each without the ending, by the number."""
    if not directory.is_dir():
        return {}
    pattern = re.compile(f"({re.escape(name)}-{_NUMBER}){ending}")
    matches = [pattern.fullmatch(path.name) for path in directory.iterdir()]
    return {int(match[2]): directory / match[1] for match in matches if match is not None}


def stem(path: Path) -> str:
    """The name that a checkpoint has in common with others of its program: without the number at its end."""
    return re.sub(f"-{_NUMBER}$", "", path.name)


def write_text(path: Path, text: str) -> None:
    """Writes a file through to the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync(directory: Path) -> None:
    """Has the disk remember which files a folder has."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
