"""The long kill test: a training on the digits whose workers are killed, or told to end, at random moments.

    python tests/soak/kills.py --workers 4 --kills 20 --preemptions 20 [--seed 0]

It ends with the parameters of an undisturbed run, to the bit, and with every example seen exactly once an epoch; every
SIGTERM leaves a complete checkpoint. `make soak` runs it; a few minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

PROGRAM = Path(__file__).parents[1] / "support" / "kill_program.py"
EXAMPLES, EVERY, STEPS_A_START = 320, 3, 60
"""Examples of an epoch (5 steps), steps between checkpoints, and steps for each start of the job."""
STARTING, STARTING_S, TRAINING_S, CHECKPOINTS = 0.2, 3.0, 1.0, 5
"""How many of the kills come while the job starts, within how many seconds; the others come as many seconds after one
of so many checkpoints."""


class Job:
    """One `jaxtribute launch`, with what it printed."""

    def __init__(self, folder: Path, workers: int, epochs: int, restarts: int) -> None:
        command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", str(workers)]
        command += ["--devices-per-worker", "1", "--max-restarts", str(restarts), str(PROGRAM), str(folder)]
        # Each step takes a moment, as those of a real model do.
        slow = json.dumps([{"kind": "slow", "at": "step", "seconds": 0.05, "restart": None}])
        self.process = subprocess.Popen(
            [*command, str(epochs), str(EVERY), str(EXAMPLES)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"JAXTRIBUTE_FAULTS": slow, "JAXTRIBUTE_PREEMPTION_REPORT": str(folder / "report")},
        )
        self._folder = folder
        self.workers, self.lines = workers, list[str]()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def ranks(self) -> list[psutil.Process]:
        """The processes of the present start."""
        found: list[psutil.Process] = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if str(PROGRAM) in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    @property
    def starts(self) -> int:
        """How often all ranks have been started."""
        return 1 + sum("starts the job again" in line for line in self.lines)

    def newest(self) -> int:
        """The number of the newest checkpoint."""
        found = (self._folder / "checkpoints").glob("ckpt-*")
        return max((int(path.name[5:]) for path in found if path.name[5:].isdigit()), default=0)

    def trains(self) -> bool:
        """Whether all ranks of the present start have begun to train."""
        ranks = 0
        for line in reversed(self.lines):
            if "starts the job again" in line:
                break
            ranks += "] pid " in line
        return ranks >= self.workers

    def wait(self) -> int:
        """Waits for the end."""
        code = self.process.wait()
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)


def disturb(job: Job, kind: signal.Signals, rng: random.Random) -> str:
    """Sends a signal to a random rank at a random moment of this start; returns when it was, or nothing at the end."""
    # A worker that is told to end before it can hear that ends at once, and there is nothing to save.
    begun, training = job.starts, kind is signal.SIGTERM or rng.random() > STARTING
    wanted = job.newest() + rng.randint(0, CHECKPOINTS)
    while training and not (job.trains() and job.newest() >= wanted):
        if job.process.poll() is not None or job.starts != begun:
            break
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, TRAINING_S if training else STARTING_S))
    ranks = job.ranks()
    while not ranks and job.process.poll() is None:
        time.sleep(0.01)
        ranks = job.ranks()
    if not ranks:
        return ""
    begun = job.starts
    rank = rng.choice(ranks)
    when = "in the training" if job.trains() else "while it starts"
    try:
        rank.send_signal(kind)
    except psutil.NoSuchProcess:
        return disturb(job, kind, rng)
    deadline = time.monotonic() + 180
    while job.starts == begun and job.process.poll() is None:
        if time.monotonic() > deadline:
            job.process.kill()
            raise TimeoutError(f"{kind.name} to {rank.pid} had no effect for 180 s:\n{''.join(job.lines[-40:])}")
        time.sleep(0.01)
    return when


def soak(kind: signal.Signals, count: int, workers: int, rng: random.Random, folder: Path) -> bool:
    """Runs the training with and without disturbance, and compares."""
    epochs = max(2, count * STEPS_A_START // 5)
    calm, rough = folder / "calm", folder / "rough"
    for one in (calm, rough):
        one.mkdir()
    start = time.monotonic()
    job = Job(calm, workers, epochs, 0)
    assert job.wait() == 0, "".join(job.lines)
    job = Job(rough, workers, epochs, 10 * count)
    done = 0
    while done < count and (when := disturb(job, kind, rng)):
        done += 1
        say(f"{kind.name} {done} of {count} {when}")
    code = job.wait()
    output = "".join(job.lines)
    assert code == 0, output
    with np.load(calm / "result.npz") as one, np.load(rough / "result.npz") as other:
        same = {name: bool(np.array_equal(one[name], other[name])) for name in one}
        once = bool((other["seen:0"] == 1).all())
    resumed = [int(found) for found in re.findall(r"\[0\] pid \d+ starts at (\d+)", output)]
    say(f"{done} x {kind.name}, {workers} workers, {epochs} epochs of {EXAMPLES} examples; resumed at {resumed}")
    say(f"equal to the bit: {same}; every example once an epoch: {once}; {time.monotonic() - start:.0f} s")
    saved = True
    if kind is signal.SIGTERM:
        events = [json.loads(line) for line in (rough / "report").read_text().splitlines()]
        saves = [event["runs"] for event in events if event["event"] == "saved"]
        say(f"{len(saves)} checkpoints at preemptions, after {saves} steps; each was gone on from")
        saved = len(saves) == count and set(saves) <= set(resumed)
    return saved and done == count and all(same.values()) and once


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Runs both kinds; the exit status says whether all was well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--preemptions", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    well = True
    for kind, count in ((signal.SIGKILL, arguments.kills), (signal.SIGTERM, arguments.preemptions)):
        if count:
            with tempfile.TemporaryDirectory() as folder:
                rng = random.Random(f"{arguments.seed}/{kind.name}")
                well &= soak(kind, count, arguments.workers, rng, Path(folder))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
