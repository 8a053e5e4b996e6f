"""Private folders for the sockets and keys of one machine's processes: short enough, and not left behind.

The name of a Unix socket has at most 107 characters, and Ray takes some 70 of them below its folder. The folder of
`TMPDIR`, which macOS and Slurm make long, is therefore used only if it is short. A process that is killed leaves its
folder; the next one of the same user removes it. An owner holds a lock on a file in its folder, which the system frees
however the owner ends: unlike a process's number, it means the same in all containers that share the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

from jaxtribute.errors import ClusterError

_LOG = logging.getLogger(__name__)
_PREFIX, _OWNER = "jd-", ".jaxtribute-owner"
_SOCKET_CHARACTERS = 107
_BELOW = len("/jd-12345678/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.10")
"""Characters of the longest name that Ray gives a socket, below the folder of temporary files."""


class Folder:
    """A folder that this user alone can read; removed by `close`, or else by the next `Folder` of the same user.

    Attributes:
      path: the folder.

    Raises:
      ClusterError: there is no folder for temporary files with a short name.
    """

    def __init__(self) -> None:
        base = short_base((tempfile.gettempdir(), "/tmp", "/var/tmp", os.environ.get("XDG_RUNTIME_DIR"), "/dev/shm"))
        remove_abandoned(base)
        self.path: str = tempfile.mkdtemp(prefix=_PREFIX, dir=base)  # readable by this user alone
        self._lock = _own(Path(self.path))

    @staticmethod
    def machine_name() -> str:
        """Name of this machine since its last start: processes that have it can meet in a folder."""
        return machine_name()

    def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def machine_name() -> str:
    """Name of this machine since its last start: no other has it, not one that sees the same folders either."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return socket.gethostname()


def short_base(folders: Iterable[str | None]) -> Path:
    """Returns the first of some folders that can be written and has a name short enough for sockets below it.

    Raises:
      ClusterError: there is none.
    """
    named = [folder for folder in folders if folder]
    for folder in named:
        path = Path(folder).absolute()
        if len(os.fsencode(path)) + _BELOW <= _SOCKET_CHARACTERS and os.access(path, os.W_OK | os.X_OK):
            return path
    raise ClusterError(
        f"none of {named} can hold sockets: their names have at most {_SOCKET_CHARACTERS} characters, of which "
        f"{_BELOW} are needed below the folder. HINT: set TMPDIR to a folder with a short name that can be written."
    )


def remove_abandoned(base: Path) -> list[Path]:
    """Removes the folders of this user whose owners have ended; returns them."""
    removed: list[Path] = []
    for path in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(path / _OWNER, os.O_RDWR | os.O_NOFOLLOW)  # not there: none of ours, or being made
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _empty(path):
                    removed.append(path)
            finally:
                os.close(descriptor)
    if removed:
        _LOG.info("removed what processes that were killed have left: %s", ", ".join(map(str, removed)))
    return removed


def _empty(path: Path) -> bool:
    """Removes a folder, its lock at last: processes of its owner may still be ending, and write meanwhile."""
    for entry in path.iterdir():
        if entry.name == _OWNER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    if any(entry.name != _OWNER for entry in path.iterdir()):
        return False
    (path / _OWNER).unlink()
    path.rmdir()
    return True


def _own(folder: Path) -> int:
    """Locks a file in a new folder; returns its descriptor, or -1 where the disk has no locks."""
    made = folder / f"{_OWNER}-new"
    descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        made.unlink()
        return -1
    made.rename(folder / _OWNER)  # under this name it has been locked from the first
    return descriptor
