"""Names and places of checkpoints: which a program may give, and which files of a folder are whose.

| name | what it is |
|---|---|
| `ckpt-7` | a complete checkpoint |
| `ckpt-7.orbax-checkpoint-tmp` | one that is being written, or was when its program was killed |
| `ckpt-7.replaced` | the one before of that name, for the moment in which a new one takes its place |
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path

from jaxtribute._src.core.reading import error_number, exists, patiently
from jaxtribute.errors import ArgumentError, ArgumentTypeError, CheckpointError, CheckpointUnreadableError

FILE = "jaxtribute.json"
"""The description of a checkpoint, which is written last."""
UNFINISHED = ".orbax-checkpoint-tmp"
"""Ending of a checkpoint's name until it is complete; Orbax's own tools know it, too."""
REPLACED = ".replaced"

# Without zeros in front, so that no two names have one number.
_NUMBER = "(0|[1-9][0-9]*)"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST_NAME = 200
"""Bytes of a name: file systems take 255, of which the number and an ending need some."""
_REMEDIES = {
    errno.ENOSPC: "free some space on that disk, or save elsewhere",
    errno.EDQUOT: "free some of your quota on that disk, or save elsewhere",
    errno.EROFS: "the disk can only be read; save elsewhere",
    errno.EACCES: "this user may not write there; give a folder that it may write to",
    errno.EPERM: "this user may not write there; give a folder that it may write to",
    errno.ENOTDIR: "a file is where a folder should be; move it away, or save elsewhere",
    errno.EEXIST: "a file is where a folder should be; move it away, or save elsewhere",
    errno.ENOENT: "the folder was deleted or renamed meanwhile; the next save makes it anew",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "the process has too many files open; close some, or raise `ulimit -n`",
}


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
    if len(name.encode()) > _LONGEST_NAME:
        raise ArgumentError(
            f"{what}={name[:40] + '...'!r} has {len(name.encode())} bytes. HINT: choose a name of at most "
            f"{_LONGEST_NAME}, as a number and an ending come behind it."
        )
    return name


def check_prefix(prefix: object, what: str) -> Path:
    """Checks that a value can be a path to which `-` and a number are added, and makes it absolute.

    Raises:
      ArgumentTypeError: no path.
      ArgumentError: the checkpoints would have no name, as in "/" and "folder/"; or otherwise no path.
    """
    path = check_path(prefix, what)
    text = os.fspath(prefix) if isinstance(prefix, os.PathLike) else str(prefix)
    name = re.split(r"[/\\]" if os.sep == "\\" else "/", text)[-1]
    if name in ("", ".", "..", "~"):
        raise ArgumentError(
            f"{what}={prefix!r} names a folder, and the checkpoints in it would have no name but their number. "
            f"HINT: add one, such as {os.path.join(text, 'ckpt')!r}."  # noqa: PTH118  # as it was given
        )
    check_name(path.name, what)
    return path


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
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # "~name" of nobody
        raise ArgumentError(f"{what}={text!r}: {error} HINT: write the folder's full path.") from None
    except FileNotFoundError:
        raise ArgumentError(
            f"{what}={text!r} is relative, and the working folder has been deleted. HINT: give a full path, or change "
            "to a folder that is there (os.chdir)."
        ) from None


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


def check_folder(directory: Path) -> None:
    """Checks that a folder of checkpoints is one, or is not there yet.

    Raises:
      CheckpointError: it is something else.
      CheckpointUnreadableError: the system cannot look there now.
    """
    try:
        # Also below a file, where `exists` would say that there is nothing.
        patiently(lambda: os.scandir(directory)).close()
    except FileNotFoundError:
        return
    except OSError as error:
        raise not_read(directory, error) from error


def standing(path: Path) -> Path:
    """Path of the checkpoint of a name: beside it, if a program was killed while a new one took its place.

    Raises:
      CheckpointUnreadableError: the system cannot look there now.
    """
    # Between its two renames a save has taken the old name away and not given it again.
    replaced = path.with_name(path.name + REPLACED)
    return replaced if not present(path) and present(replaced) else path


def present(path: Path) -> bool:
    """True if there is something at a path.

    Raises:
      CheckpointUnreadableError: the system cannot look there now.
    """
    try:
        return exists(path)
    except OSError as error:
        raise not_read(path, error) from error


def not_read(path: Path, error: BaseException) -> CheckpointError:
    """The error of a checkpoint, or a folder of them, that the system does not give."""
    if error_number(error) == errno.ENOTDIR:
        return CheckpointError(
            f"{path} is no folder: a file is there, or on the way. HINT: move it away, or give another folder."
        )
    return CheckpointUnreadableError(
        f"{path} cannot be read now: {type(error).__name__}: {error}. That says nothing about what it holds, so no "
        "other checkpoint is taken for it. HINT: try again once the disk answers, or may be read; if it never will, "
        "move the checkpoint away, and the one before is taken."
    )


def not_written(path: Path, error: BaseException) -> CheckpointError:
    """The error of a checkpoint that could not be written."""
    return CheckpointError(
        f"{path} was not saved: {type(error).__name__}: {error}. HINT: {remedy(error)}; checkpoints that were complete "
        "before are untouched."
    )


def remedy(error: BaseException) -> str:
    """Says what helps against an error of the system."""
    return _REMEDIES.get(error_number(error) or 0, "see the cause above")


def numbered(directory: Path, name: str) -> dict[int, Path]:
    """The checkpoints of a folder by their numbers, damaged ones too.

    Args:
      directory: the folder, which need not exist.
      name: what their names start with.

    Raises:
      CheckpointError: it is no folder.
      CheckpointUnreadableError: the system cannot list it now.
    """
    return _matching(directory, name, f"(?:{re.escape(REPLACED)})?")


def complete(directory: Path, name: str) -> dict[int, Path]:
    """Those of `numbered` that have their description, which is written last."""
    return {number: path for number, path in numbered(directory, name).items() if present(standing(path) / FILE)}


def left_over(directory: Path, name: str) -> list[Path]:
    """Leftovers in a folder of killed saves of a name, which nobody will need."""
    unfinished = _matching(directory, name, re.escape(UNFINISHED)).values()
    replaced = _matching(directory, name, re.escape(REPLACED)).values()
    leftovers = [path.with_name(path.name + UNFINISHED) for path in unfinished]
    # Beside the new checkpoint the old one is left over; alone it is the checkpoint: see `standing`.
    return leftovers + [path.with_name(path.name + REPLACED) for path in replaced if present(path)]


def remove(path: Path) -> None:
    """Removes a folder, or a link to one, or whatever is there; not being able to is no error."""
    with contextlib.suppress(OSError):
        path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)


def _matching(directory: Path, name: str, ending: str) -> dict[int, Path]:
    """Paths with a number between `name-` and an ending: each without the ending, by the number."""
    try:
        listed = patiently(lambda: [path.name for path in directory.iterdir()])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise not_read(directory, error) from error
    pattern = re.compile(f"({re.escape(name)}-{_NUMBER}){ending}")
    matches = [pattern.fullmatch(entry) for entry in listed]
    return {int(match[2]): directory / match[1] for match in matches if match is not None}


def stem(path: Path) -> str:
    """The name that a checkpoint has in common with others of its program: without the number at its end."""
    return re.sub(f"-{_NUMBER}$", "", path.name)


def number_of(path: Path) -> int | None:
    """The number at the end of a checkpoint's name; None if it has none."""
    match = re.search(f"-{_NUMBER}$", path.name)
    return None if match is None else int(match[1])


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
