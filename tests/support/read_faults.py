"""A disk whose files cannot be read for a while; tests of checkpoints use it, of one process and of workers."""

from __future__ import annotations

import errno
import io
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from jaxtribute._src.core.checkpoint.files import FILE

FOLDERS = ("/run", "/run/ckpt-3", FILE, "turn.json", "manifest.ocdbt", "/d/")
"""Parts of the paths of `run/ckpt-3` that a restore reads."""


class Disk:
    """A disk on which some files cannot be read, so many times.

    Args:
      error: the name of the error.
      names: what the paths of such files contain.
      times: how often each of them fails.
    """

    def __init__(self, patch: pytest.MonkeyPatch, error: str, names: str, times: float) -> None:
        self._number, self._names, self._times = getattr(errno, error), names, times
        self.failed: dict[str, int] = {}
        for owner, name in ((io, "open"), (os, "stat"), (os, "scandir"), (os, "listdir"), (os, "open")):
            patch.setattr(owner, name, self._failing(getattr(owner, name)))
        for name in ("stat", "read_bytes", "read_text", "open", "iterdir"):
            patch.setattr(pathlib.Path, name, self._failing(getattr(pathlib.Path, name)))

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def fail(path: Any = ".", *args: Any, **options: Any) -> Any:
            text = "" if isinstance(path, int) else os.fspath(path)
            count = self.failed.get(text, 0)
            if self._names in text and count < self._times:
                self.failed[text] = count + 1
                raise OSError(self._number, os.strerror(self._number), text)
            return call(path, *args, **options)

        return fail
