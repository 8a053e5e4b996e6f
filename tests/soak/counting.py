"""Counts on parameter servers, while it does to its own cluster what it is told: the soak's second part.

    python counting.py FOLDER FAULT...

It counts to a number, saves, lets each fault happen while it counts on, and checks the counters after each: every
function that ended well has counted once, and no other. What it has done is in `FOLDER/done`: started again after it
was ended itself, it goes on there. At the end it writes `FOLDER/result`.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import jaxtribute as jd
from damages import DAMAGES, damage
from jaxtribute.errors import ClusterError

STEPS = 12
"""Functions that are scheduled around each fault."""
WORKERS = 2


def strategy_of(mirrored: bool) -> jd.ParameterServerStrategy:
    """The cluster that the launcher has described; its servers may have mirrors."""
    return jd.ParameterServerStrategy(jd.cluster_resolver.TFConfigClusterResolver(), replicas=int(mirrored))


class Unpicklable:
    """Raises where it is pickled."""

    def __reduce__(self) -> Any:
        raise SystemExit(3)


class Deadly:
    """Ends the process that reads it, as an import of a broken library does; the chief lives."""

    def __reduce__(self) -> Any:
        return _ended_unless, (os.getpid(),)


def _ended_unless(chief: int) -> None:
    if os.getpid() != chief:
        os._exit(1)


class Counting:
    """The cluster, its counters, and how far they should have come.

    Args:
      folder: for saves and notes.
      rng: what chance decides by.
      mirrored: whether servers have mirrors.
    """

    def __init__(self, folder: Path, rng: random.Random, *, mirrored: bool) -> None:
        self.folder, self.rng, self.mirrored = folder, rng, mirrored
        self.strategy = strategy_of(mirrored)
        self.coordinator = jd.coordinator.ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            count = self.count = jd.Variable(0, name="count")
            table = self.table = jd.Variable(np.zeros((300, 4), np.float32), name="table")
        self.expected = self.saved = 0

        def step(x: Any) -> None:
            count.assign_add(1)
            table.assign_add(x)

        self._step = jd.function(step)

    def schedule(self, number: int = STEPS) -> None:
        """Schedules that many counts."""
        for _ in range(number):
            self.coordinator.schedule(self._step, (np.ones((300, 4), np.float32),))
        self.expected += number

    def check(self, *, text: str = "the counters are exact") -> None:
        """Waits for all, and compares the counters."""
        self.coordinator.join()
        count, table = int(self.count), self.table.numpy()
        assert count == self.expected, f"{text}: {count}, not {self.expected}"
        assert (table == self.expected).all(), f"{text}: {np.unique(table)}, not {self.expected}"

    def save(self) -> Path:
        """Saves; what is lost later begins from here."""
        path = self.coordinator.save(self.folder / "saves")
        self.saved = self.expected
        return path

    def restore(self) -> None:
        """Goes back to the newest save that is whole."""
        found = self.coordinator.latest_save(self.folder / "saves")
        assert found is not None
        self.coordinator.restore(found)
        self.expected = self.saved

    def pids(self, job: str) -> list[int]:
        count = WORKERS if job == "worker" else 1
        return [self.strategy.process_of(job, index) for index in range(count)]

    def fails(self, function: Callable[[], Any], text: str, **options: Any) -> None:
        """Schedules a function that fails with an error of some text; nothing else is lost by it."""
        self.check()
        remote = self.coordinator.schedule(function, **options)
        said = said_by(remote.fetch, BaseException)
        assert text in said, f"{said!r}, not {text!r}"
        said_by(self.coordinator.join, BaseException)  # the same once more


def said_by(call: Callable[[], object], kind: type[BaseException]) -> str:
    """The error that a call ends with, as text; empty without one."""
    try:
        call()
    except AssertionError:
        raise
    except kind as error:
        return f"{type(error).__name__}: {error}"
    return ""


Fault = Callable[[Counting], None]


def to_worker(number: signal.Signals) -> Fault:
    def act(counting: Counting) -> None:
        counting.schedule()
        time.sleep(counting.rng.uniform(0, 0.3))
        os.kill(counting.rng.choice(counting.pids("worker")), number)

    return act


def all_workers(counting: Counting) -> None:
    counting.schedule()
    for pid in counting.pids("worker"):
        os.kill(pid, signal.SIGKILL)


def stopped(job: str, seconds: float) -> Fault:
    def act(counting: Counting) -> None:
        counting.schedule()
        pid = counting.rng.choice(counting.pids(job))
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
        timer.start()
        counting.schedule()
        counting.coordinator.join()
        timer.join()

    return act


def server(counting: Counting) -> None:
    """Kills a server: its mirror takes its place, or what was saved."""
    counting.schedule()
    os.kill(counting.pids("ps")[0], signal.SIGKILL)
    if counting.mirrored:
        counting.check(text="after a server was killed that has a mirror")
        return
    said = said_by(counting.check, ClusterError)
    assert not said or "HINT" in said, said  # nothing where all was done before anybody noticed
    counting.restore()


def once(end: Callable[[], None]) -> Fault:
    """A function that ends its process the first time it runs."""

    def act(counting: Counting) -> None:
        mark = counting.folder / f"ended-{counting.rng.random()}"

        def suicidal() -> int:
            if not mark.exists():
                mark.touch()
                end()
            return 5

        counting.schedule()
        remote = counting.coordinator.schedule(suicidal)
        counting.schedule()
        assert remote.fetch() == 5
        mark.unlink()

    return act


def always(counting: Counting) -> None:
    counting.fails(lambda: os._exit(1), "does not run again: 3 processes have ended")


def unreadable(counting: Counting) -> None:
    deadly = Deadly()
    counting.fails(lambda: deadly, "does not run again: 3 processes have ended")


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def odd_error() -> None:
    raise OSError(2, "no such file", os.fsdecode(b"caf\xe9"))


def interrupt() -> None:
    raise KeyboardInterrupt


def hang() -> None:
    while True:
        time.sleep(0.05)


def failing(function: Callable[[], Any], text: str, **options: Any) -> Fault:
    return lambda counting: counting.fails(function, text, **options)


def odd_values(counting: Counting) -> None:
    odd = os.fsdecode(b"caf\xe9")
    counting.schedule()
    assert counting.coordinator.schedule(lambda given: {given: (given,)}, (odd,)).fetch() == {odd: (odd,)}


def slow(counting: Counting) -> None:
    remote = counting.coordinator.schedule(lambda: time.sleep(2))
    counting.schedule()
    remote.fetch()


def strangers(counting: Counting) -> None:
    counting.schedule()
    cluster = counting.strategy.cluster
    assert cluster is not None
    for path in Path(cluster.endpoints[0].path).parent.iterdir():
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(str(path))
                one.sendall(counting.rng.randbytes(200))
    for host, port in listening():
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=2) as one:
            one.sendall(counting.rng.choice([b"GET / HTTP/1.1\r\n\r\n", counting.rng.randbytes(300)]))


def listening() -> list[tuple[str, int]]:
    """Where this process and its children listen."""
    pids = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    found: list[Any] = [one for one in psutil.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    return [(one.laddr.ip.removeprefix("::ffff:"), one.laddr.port) for one in found if one.pid in pids]


def damaged(kind: str) -> Fault:
    def act(counting: Counting) -> None:
        counting.schedule()
        counting.check()
        older, saved = counting.saved, counting.save()
        assert older != counting.expected
        old = saved.with_name(f"save-{int(saved.name[5:]) - 1:06d}")
        files = sorted(path.name for path in saved.iterdir())
        name = counting.rng.choice(files)
        damage(kind, saved / name, saved / files[files.index(name) - 1], old / name, counting.rng)
        counting.schedule()
        counting.check()
        said = said_by(lambda: counting.coordinator.restore(saved), ClusterError)
        assert "HINT" in said, f"{kind} of {name}: {said!r}"
        counting.check(text="after a restore that was refused")
        counting.saved = older
        counting.restore()

    return act


def no_room(counting: Counting) -> None:
    counting.check()
    pid = counting.pids("ps")[0]
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (64, unlimited))
    try:
        said = said_by(lambda: counting.coordinator.save(counting.folder / "saves"), ClusterError)
        assert "could not do what was asked" in said, said
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))


def chief(number: signal.Signals) -> Fault:
    def act(counting: Counting) -> None:
        counting.schedule()
        timer = threading.Timer(counting.rng.uniform(0, 0.3), os.kill, (os.getpid(), number))
        timer.start()
        counting.coordinator.join()
        time.sleep(60)
        raise AssertionError(f"{number.name} did nothing")

    return act


def while_it_saves(counting: Counting) -> None:
    counting.check()
    timer = threading.Timer(counting.rng.uniform(0, 0.02), os.kill, (os.getpid(), signal.SIGKILL))
    timer.start()
    while True:
        counting.save()


FAULTS: dict[str, Fault] = {
    "a worker is killed": to_worker(signal.SIGKILL),
    "all workers are killed": all_workers,
    "a worker is told to end": to_worker(signal.SIGTERM),
    "a worker gets SIGINT": to_worker(signal.SIGINT),
    "a worker gets SIGHUP": to_worker(signal.SIGHUP),
    "a worker is stopped for 3 s": stopped("worker", 3),
    "a server is stopped for 3 s": stopped("ps", 3),
    "a server is killed": server,
    "a function ends its process once": once(lambda: os._exit(0)),
    "a function crashes once": once(crash),
    "a function always ends its process": always,
    "a function ends whoever reads it": unreadable,
    "a function exits": failing(lambda: sys.exit(3), "SystemExit"),
    "a function interrupts": failing(interrupt, "KeyboardInterrupt"),
    "a function raises an odd error": failing(odd_error, "no such file"),
    "a result that cannot be pickled": failing(Unpicklable, "SystemExit"),
    "a function hangs": failing(hang, "has run for", timeout_s=2),
    "a function is slow": slow,
    "strings that are not UTF-8": odd_values,
    "strangers at all sockets": strangers,
    "a disk is full": no_room,
    "the chief is killed": chief(signal.SIGKILL),
    "the chief is killed while it saves": while_it_saves,
    "the chief is told to end": chief(signal.SIGTERM),
    "Ctrl-C at the chief": chief(signal.SIGINT),
    **{f"a save's file: {kind}": damaged(kind) for kind in DAMAGES},
}
ENDS_CHIEF = frozenset(name for name in FAULTS if "chief" in name)


def main(folder: Path, faults: list[str]) -> None:
    """Counts on from what `folder` says."""
    done = len((folder / "done").read_text().splitlines()) if (folder / "done").exists() else 0
    rng = random.Random(f"{folder.parent.name} {done}")
    counting = Counting(folder, rng, mirrored=sum(map(len, faults)) % 2 == 0)
    with counting.strategy:
        saved = counting.coordinator.latest_save(folder / "saves") if (folder / "saves").exists() else None
        if saved is None:
            assert done == 0
            counting.schedule()
            counting.check()
            counting.save()
        else:
            counting.coordinator.restore(saved)
            counting.expected = counting.saved = int(counting.count)
            assert counting.saved == int((folder / "saved").read_text()), "another state was restored"
            counting.check()
        for name in faults[done:]:
            (folder / "saved").write_text(str(counting.saved))
            if name in ENDS_CHIEF:
                note(folder, name)
            print(f"now: {name}", flush=True)
            FAULTS[name](counting)
            counting.schedule()
            counting.check(text=f"after {name}")
            counting.save()
            note(folder, name)
        (folder / "saved").write_text(str(counting.saved))
    (folder / "result").write_text("well")


def note(folder: Path, name: str) -> None:
    """Notes that a fault has been gone through, or is about to end this process."""
    with (folder / "done").open("a") as file:
        file.write(f"{name}\n")


def checked(folder: Path, faults: list[str]) -> None:
    """Runs `main`; what it finds wrong is written to `FOLDER/wrong`, and no later start goes on."""
    wrong = folder / "wrong"
    if wrong.exists():
        return
    try:
        main(folder, faults)
    except AssertionError:
        wrong.write_text(traceback.format_exc())
        raise


if __name__ == "__main__":
    checked(Path(sys.argv[1]), sys.argv[2:])
