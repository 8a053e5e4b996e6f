"""Islands of an elastic job are killed again and again, and started again: how long the others wait, and what is lost.

    python -m tests.soak.elastic --islands 4 --kills 100 --spares 2 [--virtual 4] [--json FILE]

The job is one of `jaxtribute launch --elastic`. Each kill comes at a random moment after all islands are there; every
second one hits the first island. Of three islands and more, every tenth kill hits two at once, and every tenth a second
one while the others recover from the first. Prints seconds from a kill to the next finished step, and to the first step
of the process that was started again, beside what share of the time something waited for a core.

Checked: each island finishes each step once, and none that is finished is lost; at most one step is computed again for
each kill; each example was seen once; all have learned the same; no process was started but for those that were killed.
With `--virtual 4` that it is to the bit what one island learns which nobody kills.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[2]
DEADLINE_S = float(os.environ.get("SOAK_DEADLINE_S", "120"))
"""Seconds for whatever is waited for."""
BATCH = 8
PACE_S = 0.02
STEPS = 3000
"""The most steps for each kill: a process that is started again takes some seconds, and the others go on meanwhile."""
WAIT_BARS_S, JOIN_BAR_S = (1.0, 3.0), 10.0
"""Of the median and the 99th percentile from a kill to the next finished step; from a kill until it is made good."""


def island(folder: Path, steps: int, virtual: int, pace_s: float) -> None:
    """The program of an island."""
    import jax
    import jax.numpy as jnp
    import optax

    import jaxtribute as jd

    strategy = jd.experimental.ElasticStrategy(timeout_s=DEADLINE_S, virtual_replicas=virtual or None)
    with strategy.scope():
        w = jd.Variable(jnp.zeros(4))
        seen = jd.Variable(jnp.zeros(steps, jnp.int32), aggregation="SUM")
        optimizer = jd.Optimizer(optax.adam(1e-3), [w])

    def replica(x: jax.Array, number: jax.Array, ends: jax.Array) -> jax.Array:
        _, grads = jd.value_and_grad(lambda: jnp.sum((x @ w - 1) ** 2), [w])()
        optimizer.apply_gradients(zip(grads, [w], strict=True))
        seen.assign_add(jnp.zeros(steps, jnp.int32).at[number].add(x.shape[0]))
        return jnp.maximum(ends, 0)

    step = jd.function(lambda *batch: strategy.reduce("SUM", strategy.run(replica, batch), axis=None))
    chance = np.random.default_rng(0)
    data = (chance.normal(size=(BATCH, 4)).astype("float32") for _ in range(steps))
    islands = strategy.extended.islands_mesh.islands  # pyright: ignore[reportAttributeAccessIssue]
    with (folder / f"island-{strategy.island}").open("a", buffering=1) as file:
        for number, x in enumerate(strategy.experimental_distribute_dataset(data)):
            # What one island has seen ends the training of all.
            ends = step(x, np.int32(number), np.int32((folder / "end").exists()))
            if islands.newcomer is None:
                file.write(f"{os.getpid()} {number} {time.time()} {islands.again}\n")
                time.sleep(pace_s)
            if ends:
                break
    np.savez(folder / f"result-{strategy.island}.npz", seen=np.asarray(seen), w=np.asarray(w))


class Told(NamedTuple):
    """A step that an island has finished with the others."""

    pid: int
    number: int
    moment: float
    again: int


@dataclass
class Tail:
    """What an island tells in its file, read as it comes.

    Attributes:
      file: the file.
      told: all of it so far.
    """

    file: Path
    told: list[Told] = field(default_factory=list)
    _place: int = 0

    def read(self) -> list[Told]:
        """Everything that has been told by now."""
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self._place)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._place += len(whole) + len(newline)
            parts = [line.split() for line in whole.splitlines()]
            self.told += [Told(int(pid), int(number), float(at), int(again)) for pid, number, at, again in parts]
        return self.told


@dataclass
class Kill:
    """A kill, and what came of it.

    Attributes:
      ranks: the islands.
      apart_s: seconds from the first to the second.
      wait_s: seconds to the next step that the others finished.
      join_s: seconds until all are there.
      again: steps that an island computed in vain until then.
      rejoined: the same after that, until all were there: a step in which the others take one in is done again.
      busy: the share of the time meanwhile in which something waited for a core.
    """

    ranks: list[int]
    apart_s: float
    wait_s: float
    join_s: float
    again: int
    rejoined: int
    busy: float


def starved_s() -> float:
    """Seconds in which something on this machine waited for a core."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/pressure/cpu").read_text().splitlines()[0].rpartition("=")[2]) / 1e6
    return float("nan")


class Run:
    """A job.

    Args:
      folder: where its islands tell what they do.
      options: how many of what.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.count, self.options = folder, options.islands, options
        self.output = folder / "output"
        self.tails = [Tail(folder / f"island-{rank}") for rank in range(self.count)]
        launch = ["jaxtribute.cli", "launch", "--elastic", "--workers", str(self.count), "--devices-per-worker", "1"]
        launch += ["--spares", str(options.spares), "--max-restarts", str(3 * options.kills)]
        with self.output.open("wb") as output:
            self.job = subprocess.Popen(
                [sys.executable, "-m", *launch, __file__, *self._arguments(folder, options.steps, options.pace)],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _arguments(self, folder: Path, steps: int, pace_s: float) -> list[str]:
        return [f"--folder={folder}", f"--steps={steps}", f"--virtual={self.options.virtual}", f"--pace={pace_s}"]

    def until(self, condition: Any) -> None:
        """Waits for a condition."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.job.poll() in (None, 0), f"the job ended with {self.job.returncode}:\n{self.said()}"
            if time.monotonic() > end:
                raise TimeoutError(f"waited in vain for {DEADLINE_S:g} s:\n{self.said()}")
            time.sleep(0.005)

    def said(self) -> str:
        """The end of what the job has printed."""
        return self.output.read_text(errors="replace")[-20_000:]

    def live(self, rank: int, gone: set[int]) -> Told | None:
        """The first step that an island's present process has taken with the others."""
        told = self.tails[rank].read()
        if not told or told[-1].pid in gone:
            return None
        return next(each for each in told if each.pid == told[-1].pid)

    def kill(self, ranks: list[int], apart_s: float) -> Kill:
        """Kills islands, one after the other, and waits until all are there again."""
        others = [rank for rank in range(self.count) if rank not in ranks]
        before = {rank: self.tails[rank].read()[-1].again for rank in others}
        moment, starved, begun = time.time(), starved_s(), time.monotonic()
        killed = set[int]()
        for number, rank in enumerate(ranks):
            time.sleep(apart_s * (number > 0))
            killed.add(pid := self.tails[rank].read()[-1].pid)
            moment = time.time()
            os.kill(pid, signal.SIGKILL)
        # One that has joined may tell of a step before those that took it with it do.
        went_on = lambda rank: self.tails[rank].read()[-1].moment > moment  # noqa: E731
        self.until(lambda: all(map(went_on, others)) and all(self.live(rank, killed) for rank in range(self.count)))
        busy = (starved_s() - starved) / (time.monotonic() - begun)
        joined = [told.moment for rank in ranks if (told := self.live(rank, killed))]
        nexts = {rank: next(told for told in self.tails[rank].told if told.moment > moment) for rank in others}
        wait_s = min(told.moment for told in nexts.values()) - moment
        again = max(told.again - before[rank] for rank, told in nexts.items())
        rejoined = max(self.tails[rank].told[-1].again - told.again for rank, told in nexts.items())
        return Kill(ranks, apart_s, wait_s, max(joined) - moment, again, rejoined, busy)

    def end(self) -> list[str]:
        """Ends the training; what is not as it should be."""
        (self.folder / "end").touch()
        assert self.job.wait(DEADLINE_S) == 0, self.said()
        wrong, count = list[str](), max(tail.read()[-1].number for tail in self.tails) + 1
        results = [np.load(self.folder / f"result-{rank}.npz") for rank in range(self.count)]
        expected = self._alone(count) if self.options.virtual else results[0]["w"]
        for rank, result in enumerate(results):
            numbers = [told.number for told in self.tails[rank].read()]
            if sorted(set(numbers)) != numbers:
                wrong.append(f"island {rank} has finished a step twice, or in another order")
            if not (result["seen"][:count] == BATCH).all():
                wrong.append(f"island {rank}: examples were lost, or counted twice")
            if not np.array_equal(result["w"], expected):
                wrong.append(f"island {rank} has learned {result['w']}, and not {expected}")
        # A step that any island has finished all that live have finished: together they have no gap.
        if {told.number for tail in self.tails for told in tail.told} != set(range(count)):
            wrong.append("steps are missing")
        return wrong

    def processes(self) -> list[int]:
        """How many processes each island has had."""
        return [len({told.pid for told in tail.read()}) for tail in self.tails]

    def _alone(self, steps: int) -> Any:
        """What one island learns in so many steps that nobody kills."""
        folder = self.folder / "alone"
        folder.mkdir()
        env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        command = [sys.executable, __file__, *self._arguments(folder, steps, 0.0)]
        subprocess.run(command, env=env, cwd=ROOT, check=True, timeout=DEADLINE_S)
        with np.load(folder / "result-0.npz") as result:
            return result["w"]


def drawn(options: argparse.Namespace, number: int, chance: np.random.Generator) -> tuple[list[int], float]:
    """The islands of a kill, and the seconds between them."""
    first = 0 if number % 2 == 0 else int(chance.integers(1, options.islands))
    second = (first + int(chance.integers(1, options.islands))) % options.islands
    if options.islands < 3 or number % 10 not in (3, 6):
        return [first], 0.0
    return [first, second], float(chance.uniform(0, 0.1)) * (number % 10 == 6)


def soak(options: argparse.Namespace, kills: list[Kill]) -> list[str]:
    """Kills islands, and adds what came of it; returns what is not as it should be."""
    chance = np.random.default_rng(options.seed)
    expected = [1] * options.islands
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), options)
        try:
            run.until(lambda: all(run.live(rank, set()) for rank in range(run.count)))
            for number in range(options.kills):
                time.sleep(float(chance.uniform(0, 0.5)))
                kills.append(kill := run.kill(*drawn(options, number, chance)))
                for rank in kill.ranks:
                    expected[rank] += 1
                named = " and ".join(map(str, kill.ranks)) + f", {kill.apart_s * 1e3:.0f} ms apart" * bool(kill.apart_s)
                figures = f"next step after {kill.wait_s:.2f} s, back after {kill.join_s:.1f} s"
                figures += f", {kill.again} + {kill.rejoined} again"
                print(f"kill {number + 1} of {named}: {figures}, waits for cores {kill.busy:.0%}", flush=True)
            wrong = run.end()
        finally:
            run.job.kill()  # the islands end with it
            run.job.wait()
        if run.processes() != expected:
            wrong.append(f"{run.processes()} processes were started for the islands, and not {expected}")
    wrong += [f"{kill.again} steps were computed again" for kill in kills if kill.again > len(kill.ranks)]
    return wrong


def table(kills: list[Kill]) -> tuple[str, bool]:
    """The figures beside their bars, and whether all are met."""
    waits, joins = [kill.wait_s for kill in kills], [kill.join_s for kill in kills]
    rows = [
        ("kill to next step, median", float(np.median(waits)), WAIT_BARS_S[0]),
        ("kill to next step, 99th percentile", float(np.quantile(waits, 0.99)), WAIT_BARS_S[1]),
        ("kill until it is made good, median", float(np.median(joins)), JOIN_BAR_S),
        ("kill until it is made good, longest", max(joins), JOIN_BAR_S),
    ]
    lines = [f"| {name} | {value:.2f} s | {bar:g} s |" for name, value, bar in rows]
    lines.append(f"| steps computed again after a kill, most | {max(kill.again for kill in kills)} | 1 a process |")
    lines.append(f"| steps computed again to take islands in, most | {max(kill.rejoined for kill in kills)} | |")
    lines.append(f"| share of time in which something waited for a core | {np.mean([k.busy for k in kills]):.0%} | |")
    kinds = [len(kill.ranks) == 2 and not kill.apart_s for kill in kills], [kill.apart_s > 0 for kill in kills]
    firsts = sum(0 in kill.ranks for kill in kills)
    title = f"{len(kills)} kills, {firsts} of the first, {sum(kinds[0])} of two, {sum(kinds[1])} in a recovery"
    head = f"| {title} | measured | bar |\n| --- | --- | --- |"
    return "\n".join([head, *lines]), all(value <= bar for _, value, bar in rows)


def main() -> int:
    """Runs it; the exit status says whether nothing was lost and all bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--islands", type=int, default=4)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--spares", type=int, default=2)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pace", type=float, default=PACE_S)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--virtual", type=int, default=0, help="so many virtual replicas")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        island(options.folder, options.steps, options.virtual, options.pace)
        return 0
    options.steps = STEPS * (options.kills + 1)
    # The job ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    kills, wrong = list[Kill](), ["it did not come to its end"]
    try:
        wrong = soak(options, kills)
    finally:
        text, met = table(kills) if kills else ("no kills", False)
        print("\n".join([*wrong, text]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"wrong": wrong, "kills": [asdict(kill) for kill in kills]}, indent=1))
    return int(bool(wrong) or not met)


if __name__ == "__main__":
    sys.exit(main())
