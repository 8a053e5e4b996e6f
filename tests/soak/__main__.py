"""The soak: random faults of many kinds, and nothing may be lost by them, or left behind.

    PYTHONPATH=tests:tests/support python -m soak --faults 100 [--seed 0] [--part synchronous|servers] [--kind TEXT]

Half of the faults happen to synchronous training by the launcher, which must end with the bits of an undisturbed run;
half to parameter servers, whose counters must be exact. Each job goes through a few of them, drawn so that all kinds
come before one comes again. Afterwards no process, no port and no temporary file is left, and of checkpoints only
those that are to be kept. `make soak` runs it, and then kills workers of a training on the digits.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from soak import servers, synchronous
from soak.jobs import Job


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def drawn(kinds: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """So many kinds: all in a random order, and again."""
    found: list[str] = []
    while len(found) < count:
        found += rng.sample(list(kinds), len(kinds))
    return found[:count]


def undisturbed(cache: Path, rng: random.Random) -> synchronous.Learned:
    """What a training comes to that nobody disturbs."""
    job = Job(synchronous.SHAPE, synchronous.PROGRAM, rng, cache)
    try:
        synchronous.disturbed(job, [], say)
        return synchronous.learned(job)
    finally:
        job.close()


class Soak:
    """Runs jobs, and counts how they ended.

    Args:
      rng: what chance decides by.
      cache: a folder for compiled programs.
    """

    def __init__(self, rng: random.Random, cache: Path) -> None:
        self._rng, self._cache = rng, cache
        self.well: collections.Counter[str] = collections.Counter()
        self.bad: collections.Counter[str] = collections.Counter()

    def run(self, part: str, kinds: Sequence[str]) -> None:
        """Draws faults and lets a few at a time happen to a job."""
        module = {"synchronous": synchronous, "servers": servers}[part]
        expected = undisturbed(self._cache, self._rng) if part == "synchronous" else {}
        for first in range(0, len(kinds), module.PER_JOB):
            chosen = list(kinds[first : first + module.PER_JOB])
            begun = time.monotonic()
            job = Job(module.SHAPE, module.PROGRAM, self._rng, self._cache)
            try:
                module.disturbed(job, chosen, lambda text: say(f"  {text}"))
                wrong = synchronous.problems(job, expected) if part == "synchronous" else servers.problems(job)
            except Exception as error:  # noqa: BLE001  # the other jobs run all the same
                wrong = [f"{type(error).__name__}: {error}"]
            finally:
                job.close()
            counter = self.bad if wrong else self.well
            counter.update([f"{part}: {name}" for name in chosen])
            seconds, how = time.monotonic() - begun, "badly" if wrong else "well"
            say(f"{part} {first + len(chosen)} of {len(kinds)}, {seconds:.0f} s: {how}")
            if wrong:
                say("\n".join([*wrong, "  in a job with:", *(f"  {name}" for name in chosen)]))

    def table(self) -> str:
        """How often each kind came, and how often in a job that ended badly."""
        names = sorted(self.well | self.bad)
        return "\n".join(f"| {name} | {self.well[name] + self.bad[name]} | {self.bad[name]} |" for name in names)


def main() -> int:
    """Runs it; the exit status says whether all was well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=("synchronous", "servers"))
    parser.add_argument("--kind", default="", help="only kinds with this text")
    options = parser.parse_args()
    parts: dict[str, Callable[[], Sequence[str]]] = {
        "synchronous": lambda: tuple(synchronous.FAULTS),
        "servers": lambda: servers.FAULTS,
    }
    chosen = [options.part] if options.part else list(parts)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        soak = Soak(random.Random(options.seed), Path(cache))
        for number, part in enumerate(chosen):
            kinds = [name for name in parts[part]() if options.kind in name]
            count = options.faults // len(chosen) + (number < options.faults % len(chosen))
            if kinds:
                soak.run(part, drawn(kinds, count, random.Random(f"{options.seed} {part}")))
    well, bad = soak.well.total(), soak.bad.total()
    say(f"| kind | times | in a job that ended badly |\n| --- | --- | --- |\n{soak.table()}")
    say(f"{well} of {well + bad} faults of {len(soak.well | soak.bad)} kinds; {time.monotonic() - begun:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
