"""A job under the launcher in surroundings of its own, and a look at what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
MARK = "JAXTRIBUTE_SOAK"
WAIT_S = 600.0
GONE_S = 30.0
_POLL_S = 0.02


class StuckError(AssertionError):
    """Something did not come in time."""


class Job:
    """A program under `jaxtribute launch`, started again where its launcher is ended.

    Args:
      shape: the launcher's arguments.
      program: a file beside this one.
      rng: what chance decides by.
      cache: a folder for compiled programs, which many jobs share.
    """

    def __init__(self, shape: Sequence[str], program: str, rng: random.Random, cache: Path) -> None:
        self.rng = rng
        self.base = Path(tempfile.mkdtemp(prefix="s-"))  # short: sockets are below it
        self.folder, self.temporary = self.base / "job", self.base / "t"
        for folder in (self.folder, self.temporary, self.folder / "orders"):
            folder.mkdir()
        self.mark = uuid.uuid4().hex
        self.lines: list[str] = []
        self.ports: set[int] = set()
        self.arguments: list[str] = []
        self._command = [sys.executable, "-m", "jaxtribute.cli", "launch", *shape]
        self._program = str(HERE / program)
        self._environment = {
            **os.environ,
            MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "JAXTRIBUTE_SILENCE_S": "15",
            "JAXTRIBUTE_TIMEOUT_S": "60",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "PYTHONPATH": os.pathsep.join(
                [str(HERE.parent), str(HERE.parent / "support"), os.environ.get("PYTHONPATH", "")]
            ),
        }

    def start(self) -> None:
        """Starts the launcher."""
        self.process = self.other()
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def other(self, *more: str) -> subprocess.Popen[str]:
        """Starts a launcher of the same program in the same folder, with these arguments besides."""
        return subprocess.Popen(
            [*self._command, *more, self._program, str(self.folder), *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=self._environment,
            start_new_session=True,
        )

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.lines.append(line[:2000])

    def await_(self, ready: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
        """Waits until something is so.

        Raises:
          StuckError: it takes too long.
        """
        end = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > end:
                raise StuckError(f"{what}: not within {timeout_s} s\n{self.told()}")
            time.sleep(_POLL_S)

    def told(self, lines: int = 60) -> str:
        """The last lines that it has printed."""
        return "".join(self.lines[-lines:])

    def count(self, text: str) -> int:
        """How many lines hold a text."""
        return sum(text in line for line in list(self.lines))

    @property
    def running(self) -> bool:
        """True if the launcher runs."""
        return self.process.poll() is None

    def processes(self, holding: str = "") -> list[psutil.Process]:
        """The processes of this job, also those whose parents are gone; those whose command holds a text."""
        found: list[psutil.Process] = []
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = one.environ().get(MARK) == self.mark and one.status() != psutil.STATUS_ZOMBIE
                if ours and holding in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def ranks(self, program: str) -> list[psutil.Process]:
        """The processes that a launcher has started to run the program, and nothing that those have left behind."""
        launchers = {one.pid for one in self.processes("jaxtribute.cli")}
        return [one for one in self.processes(program) if one.pid not in launchers and one.ppid() in launchers]

    def look(self) -> list[tuple[str, int]]:
        """Where the processes of this job listen; the ports are looked for at the end."""
        pids = {one.pid for one in self.processes()}
        found: list[tuple[str, int]] = [(one.laddr.ip, one.laddr.port) for one in _listening() if one.pid in pids]
        self.ports |= {port for _, port in found}
        return found

    def end_launcher(self, number: signal.Signals) -> int:
        """Ends the launcher; returns its exit code, once all processes of the job have ended."""
        self.look()
        self.process.send_signal(number)
        self.await_(lambda: not self.running, f"the launcher ends after {number.name}")
        self.await_(lambda: not self.processes(), f"processes end with the launcher after {number.name}", GONE_S)
        self._reader.join(GONE_S)
        return self.process.returncode

    def wait(self) -> int:
        """Waits for the end; returns the exit code."""
        self.await_(lambda: not self.running, "the job ends")
        self._reader.join(GONE_S)
        return self.process.returncode

    def left(self) -> list[str]:
        """What is there after the end that should not be: processes, ports, temporary files."""
        with contextlib.suppress(StuckError):
            self.await_(lambda: not self.processes(), "processes end", GONE_S)
        found = [f"process {one.pid}: {' '.join(one.cmdline())[:200]}" for one in self.processes()]
        ports = [one.laddr.port for one in _listening() if one.pid is None and one.laddr.port in self.ports]
        found += [f"port {port}" for port in ports]
        return found + [f"file {path}" for path in self.temporary.rglob("*")][:20]

    def close(self) -> None:
        """Ends whatever runs, and removes all files."""
        for one in self.processes():
            with contextlib.suppress(psutil.Error):
                one.kill()
        shutil.rmtree(self.base, ignore_errors=True)


def _listening() -> list[Any]:
    return [one for one in psutil.net_connections("inet") if one.status == psutil.CONN_LISTEN]
