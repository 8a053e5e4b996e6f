"""Records of what this worker does, written by a thread that looks some two to fifty times a second.

The thread that trains only notes its place (`noted.py`): five microseconds for a step and its input. The thread that
looks asks if the devices compute: that is a useful step, whatever Python does meanwhile. Else it asks what Python waits
for.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import jax

from jaxtribute._src.addons.launcher.environment import RESTART
from jaxtribute._src.addons.live import machine
from jaxtribute._src.addons.live.account import Account
from jaxtribute._src.addons.live.files import Lines, Tail, now_file, read_now, worker_file, write_now
from jaxtribute._src.addons.live.looks import OUTSIDE, PARTS, Pace
from jaxtribute._src.addons.live.noted import OBSERVED, Noted
from jaxtribute._src.addons.live.windows import Window, wall
from jaxtribute.extending import Callers, Kinds, Owner, count, subscribe
from jaxtribute.typing import Device, Foreign, Json

_TELL_S, _USE_S = 0.3, 0.9
_GAP_S = 1.0
_NAMED = (Kinds.SAVE.name, Kinds.RESTORE.name, Kinds.WAIT.name, Kinds.CLOSURE.name)
_COMPILES = (
    "/jax/_src/compiler.py",
    "/jax/_src/interpreters/mlir.py",
    "/jax/_src/interpreters/partial_eval.py",
)
_MOST_TEXT = 20_000


class _Usage:
    """Usage of the machine by the process, asked for at most once in a while."""

    def __init__(self) -> None:
        self._devices: list[Device] = []
        self._used: dict[str, Json] = {}
        self._asked = -_USE_S

    def devices(self) -> list[str]:
        """Finds this process's devices; only once a step has run, so that this starts no backend."""
        self._devices = jax.local_devices()
        return list(map(str, self._devices))

    def record(self, now: float) -> dict[str, Json]:
        """Returns the usage."""
        if now - self._asked >= _USE_S:
            self._asked, self._used = now, machine.usage(self._devices)
        return self._used


class _Compiling:
    """Tells whether a thread traces or compiles, by the code that its frames run."""

    def __init__(self) -> None:
        # Known by the code itself: a look goes through many frames, many times a second, and paths compare slowly.
        self._known: dict[Foreign, bool] = {}

    def is_on(self, thread: int | None) -> bool:
        """True if the thread compiles."""
        frame = Callers.frame_of(thread or 0)
        while frame is not None:
            compiles = self._known.get(frame.f_code)
            if compiles is None:
                compiles = self._known[frame.f_code] = frame.f_code.co_filename.endswith(_COMPILES)
            if compiles:
                return True
            frame = frame.f_back
        return False


class Recorder:
    """Writes what this process does into the folder of a run.

    Args:
      directory: the run's folder, made if need be.
      rank: this worker's.
      role: of the process, one of those that files are named by.
      owner: what keeps other jobs from the folder, until this recorder is closed; None if something else does.

    Attributes:
      noted: what the thread that trains notes.

    Raises:
      OSError: the folder cannot be written to.
    """

    def __init__(self, directory: Path, rank: int, role: str = "worker", owner: Owner | None = None) -> None:
        self._owner = owner
        self._now = now_file(directory, rank, role)
        path = worker_file(directory, rank, role)
        self._again = path.exists() or bool(count(RESTART, 0))
        self._lines = Lines(path)
        self._keep_last_window(path)
        started = time.monotonic()
        self.noted = Noted(str(directory.absolute()), role != "worker")
        self._account = Account(self.noted.places, started)
        self._usage, self._compiling = _Usage(), _Compiling()
        self._devices_told = self._failed = False
        self._stop = threading.Event()
        self._looker = threading.Thread(target=self._look, name="jaxtribute-live", daemon=True)
        self._lines.write({"k": "start", "t": wall(started), "rank": rank} | machine.description())

    def start(self) -> None:
        """Starts to observe, until the program ends."""
        self._leave = subscribe(self.noted, *OBSERVED)
        jax.monitoring.register_event_duration_secs_listener(self.noted.note_compiling)
        self._shown = sys.excepthook
        sys.excepthook = self._note_exception
        atexit.register(self.close)
        # A child has the observer and the file, and must not write there as if it were this worker.
        os.register_at_fork(after_in_child=self._stop.set)
        self._looker.start()

    def close(self) -> None:
        """Writes what is left and the end; further calls do nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._leave()
        jax.monitoring.unregister_event_duration_listener(self.noted.note_compiling)
        if self._looker.is_alive():
            self._looker.join()
        atexit.unregister(self.close)
        # Somebody may have put a hook on top of this one, and calls it.
        if sys.excepthook == self._note_exception:
            sys.excepthook = self._shown
        try:
            self._account.divide(time.monotonic())
            self._write_window(self._account.window)
            self._lines.write({"k": "end", "t": wall(time.monotonic()), "failed": self._failed})
            self._now.unlink(missing_ok=True)
        except OSError:
            pass  # the run's folder is full or gone, and the program has ended anyway
        self._lines.close()
        if self._owner is not None:
            self._owner.release()

    def _note_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._shown(kind, error, trace)
        text = "".join(traceback.format_exception(kind, error, trace))[-_MOST_TEXT:]
        self._failed = True
        with suppress(OSError):  # it stands on the program's output
            self._lines.write({"k": "fail", "t": wall(time.monotonic()), "trace": text})

    def _look(self) -> None:
        last = told = time.monotonic()
        pace, before = Pace(), (OUTSIDE, "other")
        while True:
            length = pace.pause_s()
            time.sleep(length)  # a third of the work of waiting for the event
            if self._stop.is_set():
                return
            now = time.monotonic()
            try:
                # What is seen began somewhere between the looks: each has half of the time. A thread that could not
                # run would have looked after its pause.
                gap = now - last >= _GAP_S
                finding = self.noted.places.place, self._part_of_gap() if gap else self._part()
                self.noted.places.look(now)
                turn = last + (length if gap else now - last) / 2
                self._add(before, last, turn)
                self._add(finding, turn, now)
                if now - told > _TELL_S:
                    told = now
                    self._tell(now)
            except OSError as error:
                self._leave()  # or what is noted would grow, and nobody take it
                sys.stderr.write(f"jaxtribute: the run is no longer recorded in {self._now.parent}: {error}\n")
                return
            pace.saw(finding[1])
            last, before = now, finding

    def _part_of_gap(self) -> str:
        """The part of a time in which this thread did not run: a call that holds Python up, or a stopped process."""
        return self.noted.part() or "other"

    def _part(self) -> str:
        """The part of the time that this moment belongs to."""
        if self._again and not self.noted.steps:
            return "recovery"
        if self.noted.computing():
            return "step"
        part = self.noted.part()
        if part is not None:
            return part
        if self._compiling.is_on(self.noted.thread):
            return "compile"
        return PARTS[self.noted.places.place]

    def _add(self, finding: tuple[int, str], start: float, stop: float) -> None:
        for window in self._account.add(finding, start, stop):
            self._write_window(window)

    def _write_window(self, window: Window) -> None:
        self._write_later()
        self.noted.fill(window)
        self._lines.write(self._record(window))
        self.noted.forget_ended_tasks()

    def _record(self, window: Window) -> dict[str, Json]:
        """A window, and what else is told at its end."""
        if not self._devices_told and self.noted.steps:
            self._devices_told = True
            self._lines.write({"k": "devices", "devices": self._usage.devices()})
        usage = self._usage.record(time.monotonic())
        return window.record() | usage | self.noted.position() | self.noted.figures()

    def _write_later(self) -> None:
        while self.noted.later:
            self._lines.write(self.noted.later.popleft())

    def _tell(self, now: float) -> None:
        """Replaces the small file that says what this worker does now."""
        self._write_later()
        window = self._account.window
        self._account.divide(now)
        self.noted.fill(window)
        inside = list(self.noted.inside)
        bucket = self._part()
        waits = [event for event in inside if event.kind == Kinds.WAIT.name]
        first = inside[0] if inside else None
        if first is not None and first.kind == Kinds.CLOSURE.name and waits:
            first = waits[0]
        doing = "python" if first is None else first.kind
        if bucket == "compile":
            doing = "compile"
        elif doing == Kinds.DISPATCH.name or (first is None and bucket == "step"):
            doing = "step"
        record: dict[str, Json] = {
            "t": wall(now),
            "event": doing,
            "bucket": bucket,
            "since": None if first is None else wall(first.start_s),
            "for": first.name if first is not None and first.kind in _NAMED else "",
            "absent": list(waits[0].arguments) if waits else None,
            "where": Callers.located(Callers.frame_of(self.noted.thread or 0)),
            "steps": self.noted.steps,
            "window": self._record(window),
        }
        write_now(self._now, record)

    def _keep_last_window(self, path: Path) -> None:
        """Puts the last window of a program that was killed among the others."""
        told = read_now(self._now)
        window = None if told is None else told.get("window")
        if isinstance(window, dict):
            written = [record for record in Tail(path).new() if record.get("k") == "w"]
            if not written or written[-1].get("t") != window.get("t"):
                self._lines.write(window)
        self._now.unlink(missing_ok=True)
