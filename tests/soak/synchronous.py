"""Faults of synchronous training by the launcher."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import jaxtribute as jd
from damages import DAMAGES, damage
from jaxtribute._src.core import checksums
from jaxtribute.errors import CheckpointDamagedError
from soak import training
from soak.jobs import WAIT_S, Job

WORKERS = 2
SHAPE = ("--workers", str(WORKERS), "--devices-per-worker", "1", "--max-restarts", "100")
PROGRAM = "training.py"
PER_JOB = 6
_SPAN = training.STEPS // (PER_JOB + 1)

Fault = Callable[[Job], None]
Learned = dict[str, np.ndarray[Any, Any]]
"""The values of variables by their names."""


def _checkpoints(job: Job) -> Path:
    return job.folder / "checkpoints"


def _restarts(job: Job) -> int:
    return job.count("starts the job again")


def _await_restart(job: Job, before: int) -> None:
    job.await_(lambda: _restarts(job) > before, "the job is started again")


def _again(job: Job) -> None:
    """Starts the launcher anew, and sees that the job goes on."""
    before = job.count("] pid ")
    job.start()
    job.await_(lambda: job.count("] pid ") >= before + WORKERS, "the job that was ended starts")


def _signal(number: signal.Signals, *, all_of_them: bool = False, restarts: bool = True) -> Fault:
    def act(job: Job) -> None:
        ranks, before = job.ranks(PROGRAM), _restarts(job)
        for rank in ranks if all_of_them else [job.rng.choice(ranks)]:
            rank.send_signal(number)
        if restarts:
            _await_restart(job, before)

    return act


def _ordered(order: str, *, restarts: bool) -> Fault:
    def act(job: Job) -> None:
        before, done = _restarts(job), job.count("does as ordered")
        rank = job.rng.randrange(WORKERS)
        (job.folder / "orders" / "new").write_text(order)
        (job.folder / "orders" / "new").rename(job.folder / "orders" / str(rank))
        job.await_(lambda: job.count("does as ordered") > done or _restarts(job) > before, f"{order} is done")
        if restarts:
            _await_restart(job, before)

    return act


def _while_it_starts(job: Job) -> None:
    _signal(signal.SIGKILL)(job)
    before = _restarts(job)
    time.sleep(job.rng.uniform(0, 8))
    job.await_(lambda: job.ranks(PROGRAM), "the ranks run")
    job.rng.choice(job.ranks(PROGRAM)).kill()
    _await_restart(job, before)


def _stopped(who: Callable[[Job], list[psutil.Process]], seconds: float) -> Fault:
    def act(job: Job) -> None:
        chosen = who(job)
        for one in chosen:
            one.suspend()
        time.sleep(seconds)
        for one in chosen:
            one.resume()

    return act


def _launcher(number: signal.Signals) -> Fault:
    def act(job: Job) -> None:
        code = job.end_launcher(number)
        assert code != 0, job.told()
        _again(job)

    return act


def _guardian(job: Job) -> None:
    before = _restarts(job)
    guardian = [one for one in job.processes("killpg") if "-I" in one.cmdline()]
    assert guardian, [one.cmdline() for one in job.processes()]
    guardian[0].kill()
    job.rng.choice(job.ranks(PROGRAM)).kill()
    _await_restart(job, before)


def _damaged(kind: str) -> Fault:
    def act(job: Job) -> None:
        job.await_(lambda: len(list(_checkpoints(job).glob("ckpt-*[0-9]"))) >= 2, "two checkpoints are there")
        job.end_launcher(signal.SIGKILL)
        numbers = sorted(int(path.name[5:]) for path in _checkpoints(job).glob("ckpt-*") if path.name[5:].isdigit())
        old, new = (_checkpoints(job) / f"ckpt-{number}" for number in numbers[-2:])
        files, earlier = checksums.names(new), checksums.names(old)
        place = job.rng.randrange(len(files))
        file, other = new / files[place], new / files[place - 1]
        before = {name: (new / name).read_bytes() for name in files}
        damage(kind, file, other, old / earlier[min(place, len(earlier) - 1)], job.rng)
        same = all((new / name).exists() and (new / name).read_bytes() == before[name] for name in files)
        expected = new if same else old
        try:
            found = jd.latest_checkpoint(_checkpoints(job))
        except CheckpointDamagedError as error:
            raise AssertionError(f"{kind} {file}") from error
        assert found == str(expected), (kind, file, found)
        _again(job)

    return act


def _lost(job: Job) -> None:
    job.await_(lambda: jd.latest_checkpoint(_checkpoints(job)), "a checkpoint is there")
    job.end_launcher(signal.SIGKILL)
    shutil.rmtree(jd.latest_checkpoint(_checkpoints(job)) or "")
    _again(job)


def _second(job: Job) -> None:
    job.await_((_checkpoints(job) / ".ckpt.owner").exists, "the job owns its folder")
    done, restarts = job.count("] step "), _restarts(job)
    other = job.other("--max-restarts", "0")
    try:
        said, _ = other.communicate(timeout=WAIT_S)
    finally:
        other.kill()
    # The first may have ended and been started again meanwhile, by a fault that takes its time.
    assert other.returncode != 0, said
    assert "saves under the same name in the same folder" in said, said
    assert "HINT" in said, said
    assert (job.count("] step "), _restarts(job)) >= (done, restarts)


def _strangers(job: Job) -> None:
    for host, port in job.look():
        for _ in range(5):
            try:
                with socket.create_connection((host.removeprefix("::ffff:"), port), timeout=2) as one:
                    one.sendall(
                        job.rng.choice([b"GET / HTTP/1.1\r\n\r\n", job.rng.randbytes(300), b"[" * 5000 + b"\n"])
                    )
            except OSError:
                continue


def _odd_names(job: Job) -> None:
    odd = _checkpoints(job) / os.fsdecode(b"caf\xe9")
    odd.parent.mkdir(exist_ok=True)
    odd.touch()
    for name in ("ckpt-", "ckpt-x", "ckpt-1.5", "ckpt-99999999", "ckpt-7.orbax-checkpoint-tmp"):
        (odd.parent / name).mkdir(exist_ok=True)
    _signal(signal.SIGKILL)(job)
    odd.unlink()
    for name in ("ckpt-", "ckpt-x", "ckpt-1.5", "ckpt-99999999"):
        (odd.parent / name).rmdir()


def _stale_owner(job: Job) -> None:
    job.end_launcher(signal.SIGKILL)
    owner = _checkpoints(job) / ".ckpt.owner"
    content = job.rng.choice([b"", b"{", b"\xff\xfe", b'{"pid": "x"}', b"[" * 3000])
    owner.write_bytes(content)
    os.utime(owner, (time.time() - 3600, time.time() - 3600))
    _again(job)


def _no_temporary_files(job: Job) -> None:
    shutil.rmtree(job.temporary)
    job.temporary.mkdir()
    _signal(signal.SIGKILL)(job)


def _larger(job: Job) -> None:
    """Lets all save and start with all workers."""
    before = _restarts(job)
    job.process.send_signal(signal.SIGUSR1)
    _await_restart(job, before)


def _launcher_of(job: Job) -> list[psutil.Process]:
    return [psutil.Process(job.process.pid)]


FAULTS: dict[str, Fault] = {
    "a worker is killed": _signal(signal.SIGKILL),
    "all workers are killed": _signal(signal.SIGKILL, all_of_them=True),
    "a worker is killed while it starts": _while_it_starts,
    "a worker is told to end (preemption)": _signal(signal.SIGTERM),
    "all workers are told to end": _signal(signal.SIGTERM, all_of_them=True),
    "a worker gets SIGHUP": _signal(signal.SIGHUP),
    "a worker is stopped for 3 s": _stopped(lambda job: [job.rng.choice(job.ranks(PROGRAM))], 3),
    "all workers are stopped for 5 s": _stopped(lambda job: job.ranks(PROGRAM), 5),
    "the machine sleeps for 5 s": _stopped(lambda job: [*_launcher_of(job), *job.ranks(PROGRAM)], 5),
    "the launcher is stopped for 3 s": _stopped(_launcher_of, 3),
    "the launcher is killed": _launcher(signal.SIGKILL),
    "the launcher is told to end": _launcher(signal.SIGTERM),
    "Ctrl-C": _launcher(signal.SIGINT),
    "the terminal is closed (SIGHUP)": _launcher(signal.SIGHUP),
    "the launcher's guardian is killed": _guardian,
    "the newest checkpoint is removed": _lost,
    "a second job in the folder": _second,
    "strangers at all ports": _strangers,
    "odd names in the folder": _odd_names,
    "a damaged owner's file": _stale_owner,
    "temporary files are removed": _no_temporary_files,
    "SIGUSR1: start with all workers": _larger,
    **{f"a checkpoint's file: {kind}": _damaged(kind) for kind in DAMAGES},
}
_GO_ON = {
    "a thread of it raises",
    "is slow",
    "clock goes an hour ahead",
    "clock goes an hour back",
    "prints what is no text",
    "leaves a child",
    "killed before its first rename",  # only the first worker renames
    "killed before its second rename",
    "disk is full",
    "no more files can be opened",
}
_UNNOTICED = {"a worker falls silent", "a worker hangs"}
"""Those after which the training may end before anybody has noticed them: the gate stays closed until then."""
FAULTS.update({f"a worker {order}": _ordered(order, restarts=order not in _GO_ON) for order in training.ORDERS})


def open_gate(job: Job, steps: int) -> None:
    """Lets the training go on to a step."""
    (job.folder / "new").write_text(str(steps))
    (job.folder / "new").rename(job.folder / "gate")


def disturbed(job: Job, faults: list[str], say: Callable[[str], None]) -> None:
    """Runs a training with faults, at most `PER_JOB`; it ends well, or an error is raised."""
    open_gate(job, _SPAN)
    job.start()
    for number, name in enumerate(faults):
        until = number * _SPAN + job.rng.randint(1, _SPAN)
        job.await_(lambda until=until: job.count(f"] step {until}\n") or not job.running, f"step {until} is done")
        assert job.running, job.told()
        begun = time.monotonic()
        if name not in _UNNOTICED:
            open_gate(job, (number + 2) * _SPAN)
        FAULTS[name](job)
        open_gate(job, (number + 2) * _SPAN)
        say(f"{name}: {time.monotonic() - begun:.1f} s")
    open_gate(job, 10 * training.STEPS)
    assert job.wait() == 0, job.told()


def learned(job: Job) -> Learned:
    """What the training has come to."""
    return learned_in(job.folder)


def learned_in(folder: Path) -> Learned:
    """What a training has written to its folder."""
    with np.load(folder / "result.npz") as found:
        return dict(found)


def problems(job: Job, expected: Learned) -> list[str]:
    """What is not as after an undisturbed training."""
    found = learned(job)
    wrong = [f"{name} differs" for name, value in expected.items() if not np.array_equal(found[name], value)]
    if not (found["seen:0"] == 1).all():
        wrong.append("an example was left out or seen twice")
    numbers = sorted(path.name for path in _checkpoints(job).iterdir())
    if len(numbers) != 2 or not all(name[5:].isdigit() for name in numbers):
        wrong.append(f"the folder of checkpoints holds {numbers}")
    return wrong + job.left()
