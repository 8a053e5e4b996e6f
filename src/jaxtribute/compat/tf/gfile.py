"""`tf.io.gfile`: files of this machine, by TensorFlow's names."""

from __future__ import annotations

import glob as globbing
import os
import shutil
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import IO, Any

StrPath = str | PathLike[str]


def exists(path: StrPath) -> bool:
    """Returns whether there is such a file or folder. Source: `tf.io.gfile.exists`."""
    return Path(path).exists()


def isdir(path: StrPath) -> bool:
    """Returns whether it is a folder. Source: `tf.io.gfile.isdir`."""
    return Path(path).is_dir()


def join(path: StrPath, *paths: StrPath) -> str:
    """Joins parts of a path. Source: `tf.io.gfile.join`."""
    return str(Path(path, *paths))


def makedirs(path: StrPath) -> None:
    """Makes a folder and those above it, where they are not there. Source: `tf.io.gfile.makedirs`."""
    Path(path).mkdir(parents=True, exist_ok=True)


def listdir(path: StrPath) -> list[str]:
    """Returns the names in a folder, in order. Source: `tf.io.gfile.listdir`."""
    return sorted(entry.name for entry in Path(path).iterdir())


def glob(pattern: StrPath | Sequence[StrPath]) -> list[str]:
    """Returns the files that match a pattern or several, in order. Source: `tf.io.gfile.glob`."""
    patterns = [pattern] if isinstance(pattern, (str, PathLike)) else pattern
    return sorted(path for one in patterns for path in globbing.glob(os.fspath(one)))  # noqa: PTH207 (may be absolute)


def rename(src: StrPath, dst: StrPath, overwrite: bool = False) -> None:
    """Renames a file.

    Raises:
      FileExistsError: `dst` is there, and is not to be overwritten.

    Source: `tf.io.gfile.rename`.
    """
    _check_free(dst, overwrite)
    Path(src).replace(dst)


def copy(src: StrPath, dst: StrPath, overwrite: bool = False) -> None:
    """Copies a file; errors as for `rename`. Source: `tf.io.gfile.copy`."""
    _check_free(dst, overwrite)
    shutil.copyfile(src, dst)


def remove(path: StrPath) -> None:
    """Deletes a file. Source: `tf.io.gfile.remove`."""
    Path(path).unlink()


def rmtree(path: StrPath) -> None:
    """Deletes a folder with all that is in it. Source: `tf.io.gfile.rmtree`."""
    shutil.rmtree(path)


def GFile(name: StrPath, mode: str = "r") -> IO[Any]:  # noqa: N802 (TensorFlow's name)
    """Opens a file, as Python's `open`. Source: `tf.io.gfile.GFile`."""
    return Path(name).open(mode, encoding=None if "b" in mode else "utf-8")


def _check_free(path: StrPath, overwrite: bool) -> None:
    if not overwrite and Path(path).exists():
        raise FileExistsError(f"{os.fspath(path)} is there already. HINT: pass overwrite=True.")
