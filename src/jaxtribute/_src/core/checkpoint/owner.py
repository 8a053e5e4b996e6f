"""One job at a time saves under a name in a folder: two would mix their files, and resume from each other's.

Other files of a job, such as the records of a run, are owned in the same way. The job's first process has a file
`.NAME.owner` there, with the host and the process, and touches it every few seconds: this works on every file system,
over the network too. The file of a process that is gone is taken over, at once on the same machine; from another one
only once it has not been touched for a minute, by the file system's own clock. Within a process several objects may
save under a name, as when a notebook's cell is run twice: see `Seat`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from jaxtribute._src.core.checkpoint.files import not_read
from jaxtribute._src.core.folders import machine_name
from jaxtribute._src.core.reading import passing, patiently
from jaxtribute._src.json_reading import parse_json
from jaxtribute._src.regular_files import IrregularError, read_small, text_of
from jaxtribute.errors import CheckpointError, JaxtributeError

_LOG = logging.getLogger(__name__)
_TOUCHED_EVERY_S = 10.0
_STALE_S = 60.0
_GRACE_S = 5.0
"""Seconds that a living process may take to end, such as that of a job that is just being started again."""
_POLL_S = 0.25
_WORD_S = 0.75


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, told from every other one.

    Attributes:
      host: the name of its machine.
      pid: its number there.
      started: when it was started, as its system counts; empty if that is not known.
      machine: the machine since its last start, and the container: where `pid` means something.
      program: what it runs.
    """

    host: str
    pid: int
    started: str
    machine: str
    program: str

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process."""
        machine = machine_name()
        with contextlib.suppress(OSError):
            machine += f" {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115  # it names no file
        return cls(socket.gethostname(), os.getpid(), _started(os.getpid()), machine, sys.argv[0])

    @classmethod
    def parse(cls, text: str | bytes) -> ProcessIdentity | None:
        """Reads what `asdict` gave, as JSON; None of anything else, such as half of it."""
        try:
            process = cls(**parse_json(text))
        except (ValueError, TypeError):
            return None
        return process if isinstance(process.pid, int) else None  # pyright: ignore[reportUnnecessaryIsInstance]

    def same(self, other: ProcessIdentity | None) -> bool:
        """True if both are one process."""
        return other is not None and (self.machine, self.pid, self.started) == (other.machine, other.pid, other.started)

    def ended(self, here: str) -> bool:
        """True if it is known to have ended, seen from the machine `here`; False if that cannot be seen."""
        if self.machine != here:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # another user's
        # Numbers of processes are used again: one of another start is another process.
        now = _started(self.pid)
        return bool(now) and now != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} ({self.program or 'python'})"


_NOBODY = ProcessIdentity("", 0, "", "", "")
Refusal: TypeAlias = Callable[[ProcessIdentity, Path], JaxtributeError]


def _saves_there(other: ProcessIdentity, file: Path) -> CheckpointError:
    return CheckpointError(
        f"{other} saves under the same name in the same folder; it holds {file}. Two jobs would write into each "
        "other's checkpoints, and resume from them. HINT: end the other job, or give each a directory or a "
        "checkpoint_name of its own; to read only, call jd.latest_checkpoint and Checkpoint.restore."
    )


class Seat:
    """Place in a process that its objects share which save under one name in one folder.

    They save one after the other, whichever threads they do it in, and the file is there as long as any of them is.
    Of managers of different checkpoints the one that was made last takes over when it first saves: those made before
    save no more, as the states of two trainings would come to lie in one series.

    Args:
      file: the file that says which process it is.
      refusal: the error for a file that another living process has.
    """

    def __init__(self, file: Path, refusal: Refusal) -> None:
        self.file = file
        self._refusal = refusal
        self.saving = threading.Lock()
        self._users = 0
        self._stop: threading.Event | None = None
        self._owner = ProcessIdentity.own()
        self._manager = -1
        self._saved: weakref.ref[object] | None = None
        # Garbage is collected at any place, also in the thread that holds it: see `leave`.
        self._lock = threading.RLock()

    def join(self) -> None:
        """Makes this process the owner of the file, and counts one more object that needs it."""
        with self._lock:
            self._users += 1
            try:
                self._claim()
            except BaseException:
                self.leave()
                raise

    def renew(self) -> None:
        """Makes this process the owner again if the file is gone."""
        with self._lock:
            self._claim()

    def leave(self) -> None:
        """Counts one object less; without any the file goes, and other processes may save."""
        if os.getpid() != self._owner.pid:
            return  # in a process that was forked from it: also the lock may be held for ever here
        with self._lock:
            self._users -= 1
            if not self._users and self._stop is not None:
                self._stop.set()
                self._stop = None
                _unlink(self.file, self._owner)

    def take_over(self, manager: int, checkpoint: object) -> None:
        """Lets a manager save.

        Args:
          manager: counts the managers as they were made.
          checkpoint: what it saves.

        Raises:
          CheckpointError: one that was made later has saved another checkpoint.
        """
        with self._lock:
            self.check(manager, checkpoint)
            if manager > self._manager:
                self._manager = manager
                self._saved = weakref.ref(checkpoint)

    def check(self, manager: int, checkpoint: object) -> None:
        """Checks that a manager may save; otherwise as `take_over`."""
        if manager < self._manager and (self._saved is None or self._saved() is not checkpoint):
            raise CheckpointError(
                f"{self.file.parent}: a CheckpointManager that was made later in this process has saved another "
                f"Checkpoint under the same name ({self.file.name.removeprefix('.').removesuffix('.owner')}), and has "
                "taken over, as when a notebook's cell is run again. HINT: save with the new manager; or give one of "
                "both a directory or a checkpoint_name of its own."
            )

    def _claim(self) -> None:
        own = self._owner
        while not own.same(_parsed(self.file)):
            if _created(self.file, own):
                break
            other = _await_end(self.file, own, self._refusal)
            if other is not None and not own.same(other):
                _remove(self.file, other)
        if self._stop is None:
            self._stop = threading.Event()
            arguments = (self.file, own, self._stop)
            threading.Thread(target=_renew, args=arguments, name="jaxtribute-owner", daemon=True).start()


_seats: dict[Path, Seat] = {}
"""The seats of this process, by their files. They stay: a manager that was taken over from is refused for good."""
_managers = itertools.count()
# In a forked process a lock that another thread held would be held for ever; and that process owns nothing.
os.register_at_fork(after_in_child=_seats.clear)


class Owner:
    """An object of this process that saves under a name.

    Args:
      directory: the folder.
      name: what the checkpoints' names start with.
      checkpoint: what a manager saves; None for a single save, which never takes over.
      refusal: makes the error for a folder and name that another process has, of that process and its file.
    """

    def __init__(
        self, directory: Path, name: str, checkpoint: object | None = None, refusal: Refusal = _saves_there
    ) -> None:
        self._directory, self._name = directory, name
        self._checkpoint, self._refusal = checkpoint, refusal
        self._manager = next(_managers)
        self._seat: Seat | None = None
        self._closing: weakref.finalize[..., Owner] | None = None

    @property
    def seat(self) -> Seat:
        """The seat that it shares with other objects of this process, by whatever path they name the folder."""
        file = Path(os.path.realpath(self._directory)) / f".{self._name}.owner"
        seat = _seats.get(file)
        return seat if seat is not None else _seats.setdefault(file, Seat(file, self._refusal))

    def claim(self) -> None:
        """Makes this process the owner; waits if it is not known yet whether another one still is.

        Raises:
          CheckpointError: another process is; it is named.
          OSError: nothing can be written there.
        """
        with contextlib.suppress(FileExistsError):  # where it is no folder, the next line says so
            self._directory.mkdir(parents=True, exist_ok=True)
        seat = self.seat
        if self._seat is seat and self._closing is not None and self._closing.alive:
            seat.renew()
            return
        self.release()
        seat.join()
        # At the latest when Python ends; the seat does not hold this object, which would then never be garbage.
        self._seat, self._closing = seat, weakref.finalize(self, seat.leave)

    def take_over(self) -> None:
        """Lets this object save; others that were made before save no more.

        Raises:
          CheckpointError: another one has taken over.
        """
        if self._checkpoint is not None:
            self.seat.take_over(self._manager, self._checkpoint)

    def check_manager(self) -> None:
        """Checks that no other manager of this process has taken over.

        Raises:
          CheckpointError: one has.
        """
        if self._checkpoint is not None:
            self.seat.check(self._manager, self._checkpoint)

    def check(self) -> None:
        """Checks that no other process has taken over, as after this one had been stopped for minutes.

        Raises:
          CheckpointError: one has; it is named.
        """
        other = _parsed(self.seat.file)
        if other is not None and not ProcessIdentity.own().same(other):
            raise CheckpointError(
                f"{self._directory / self._name}-* now belong to {other}, which took them over while this process did "
                "not run. HINT: end one of both jobs, or give them folders or names of their own."
            )

    def release(self) -> None:
        """Lets other processes save; does nothing if `claim` was not called."""
        if self._closing is not None:
            self._closing()


def _created(file: Path, own: ProcessIdentity) -> bool:
    """Creates the file, unless it is there."""
    try:
        # The system creates it or fails, over the network too: of two processes that come at once, one gets it.
        with file.open("x") as made:
            try:
                made.write(json.dumps(asdict(own)))
                made.flush()
                os.fsync(made.fileno())
            except BaseException:
                file.unlink(missing_ok=True)  # as of a disk that is full: an empty file would be waited for
                raise
    except FileExistsError:
        return False
    return True


def _await_end(file: Path, own: ProcessIdentity, refusal: Refusal) -> ProcessIdentity | None:
    """Waits until the process that a file names is known to have ended, and returns it; None if the file is gone.

    A file that says nothing, of a process that is just writing it or of a disk that was full, is waited for likewise.

    Raises:
      JaxtributeError: the process is alive; what `refusal` makes.
    """
    first, told = None, False
    start = time.monotonic()
    while True:
        other = _parsed(file)
        if other is not None and (own.same(other) or other.ended(own.machine)):
            return other
        try:
            touched = file.stat().st_mtime_ns
            age_s = _age_s(file, touched)
        except FileNotFoundError:
            return None
        if age_s > _STALE_S:
            return other or _NOBODY
        if not told and time.monotonic() > start + _WORD_S:
            told = True
            text = "%s: waits %.0f s at most, as %s may save there. HINT: delete the file if no job does."
            _LOG.warning(text, file, _STALE_S - age_s, other or "a process that has not written its name")
        # Another machine's process cannot be looked at, only its file: touched while this one waits, it is alive.
        first = first or touched
        alive = other is not None and (touched != first or other.machine == own.machine)
        if other is not None and alive and time.monotonic() > start + _GRACE_S:
            raise refusal(other, file)
        time.sleep(_POLL_S)


def _age_s(file: Path, touched_ns: int) -> float:
    """The seconds since a file was touched, by the clock of its file system: machines' own clocks may differ."""
    probe = file.with_name(f"{file.name}.{socket.gethostname()}.{os.getpid()}")
    probe.touch()
    try:
        return (probe.stat().st_mtime_ns - touched_ns) / 1e9
    finally:
        probe.unlink(missing_ok=True)


def _remove(file: Path, other: ProcessIdentity) -> None:
    """Removes the file of a process that has ended, unless another one has taken its place meanwhile."""
    # Renamed first, then looked at: two that have seen the same dead owner may both come here, and the second would
    # remove the file that the first has made since. It finds that out, and puts the file back.
    aside = file.with_name(f"{file.name}.{socket.gethostname()}.{os.getpid()}.old")
    try:
        file.rename(aside)
    except FileNotFoundError:
        return  # one that waited, too, was faster
    holder = ProcessIdentity.parse(text_of(aside))
    if holder is not None and not holder.same(other):
        aside.rename(file)
    else:
        aside.unlink(missing_ok=True)


def _renew(file: Path, own: ProcessIdentity, stop: threading.Event) -> None:
    """Touches the file until `stop` is set."""
    while not stop.wait(_TOUCHED_EVERY_S):
        with contextlib.suppress(OSError):  # the disk may be back next time
            if own.same(ProcessIdentity.parse(text_of(file))):
                os.utime(file)


def _unlink(file: Path, own: ProcessIdentity) -> None:
    with contextlib.suppress(OSError):
        if own.same(ProcessIdentity.parse(text_of(file))):
            file.unlink(missing_ok=True)


def _parsed(file: Path) -> ProcessIdentity | None:
    """The process that a file names; None if there is no file, or it says nothing.

    Raises:
      CheckpointError: it cannot be read now, or is something else than a file, so that nobody knows.
    """
    try:
        return ProcessIdentity.parse(patiently(lambda: read_small(file, 1 << 16)))
    except (OSError, MemoryError) as error:
        if passing(error):
            raise not_read(file, error) from error
        if isinstance(error, IrregularError) or file.is_symlink():
            raise CheckpointError(f"{file} is to say which process saves there: {error}. HINT: move it away.") from None
        return None


def _started(pid: int) -> str:
    """Start of a process, in ticks since the machine was started; empty if that is not known.

    That of one which has ended, and only waits for its parent to notice, is "ended".
    """
    fields = text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return ""
    return "ended" if fields[0] in "ZX" else fields[19]
