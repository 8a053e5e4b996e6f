"""Islands of an elastic job are killed again and again, and started again: how long the others wait, and what is lost.

    python -m tests.soak.elastic --islands 3 --kills 10

Prints seconds from a kill to the next finished step, from a kill to the first step of the process that was started
again, and the steps that were computed again. Checks that each example was seen once, and that all have learned the
same; with `--virtual 6` that it is to the bit what one island learns which nobody kills. Each kill comes when all
islands are there, at a random moment; every second one hits the first. Of three islands and more, every tenth kill hits
two at once, and every tenth a second one while the others recover from the first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.support.processes import free_ports

DEADLINE_S = 120.0
BATCH = 6
PACE_S = 0.02
VIRTUAL = "SOAK_VIRTUAL"


def island(folder: Path, steps: int) -> None:
    """The program of an island."""
    import jax
    import jax.numpy as jnp
    import optax

    import jaxtribute as jd

    virtual, pace_s = int(os.environ.get(VIRTUAL, "0")) or None, float(os.environ.get("PACE", PACE_S))
    strategy = jd.experimental.ElasticStrategy(timeout_s=DEADLINE_S, virtual_replicas=virtual)
    with strategy.scope():
        w = jd.Variable(jnp.zeros(4))
        seen = jd.Variable(jnp.zeros(steps, jnp.int32), aggregation="SUM")
        optimizer = jd.Optimizer(optax.adam(1e-3), [w])

    def replica(x: jax.Array, number: jax.Array) -> None:
        _, grads = jd.value_and_grad(lambda: jnp.sum((x @ w - 1) ** 2), [w])()
        optimizer.apply_gradients(zip(grads, [w], strict=True))
        seen.assign_add(jnp.zeros(steps, jnp.int32).at[number].add(x.shape[0]))

    step = jd.function(lambda x, number: strategy.run(replica, (x, number)))
    chance = np.random.default_rng(0)
    data = (chance.normal(size=(BATCH, 4)).astype("float32") for _ in range(steps))
    islands = strategy.extended.islands_mesh.islands  # pyright: ignore[reportAttributeAccessIssue]
    with (folder / f"island-{strategy.island}").open("a", buffering=1) as file:
        for number, x in enumerate(strategy.experimental_distribute_dataset(data)):
            replays = islands.newcomer is not None
            step(x, jnp.int32(number))
            replays = replays and islands.newcomer is not None
            file.write(f"{os.getpid()} {number} {time.time()} {islands.again} {int(not replays)}\n")
            if not replays:
                time.sleep(pace_s)
    np.savez(folder / f"result-{strategy.island}.npz", seen=np.asarray(seen), w=np.asarray(w))


class Told(NamedTuple):
    """A step that an island has finished."""

    pid: int
    number: int
    moment: float
    again: int
    live: int


class Forked:
    """A process that is forked from one that has imported all there is, in the manner of `Popen`.

    Args:
      call: what it runs, and with what.
      env: its environment variables.
      output: the file for what it prints.
    """

    def __init__(self, call: tuple[Any, ...], env: dict[str, str], output: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["jaxtribute", "jax.numpy", "optax", "tests.soak.elastic"])
        self._process = context.Process(target=_forked, args=(call, env, output), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _forked(call: tuple[Any, ...], env: dict[str, str], output: Path) -> None:
    os.environ.update(env)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    function, *arguments = call
    function(*arguments)


class Run:
    """The processes of a job.

    Args:
      folder: where they tell what they do.
      count: how many islands.
      steps: how many steps the program takes.
      fork: True for processes that have all imported when they start.
    """

    def __init__(self, folder: Path, count: int, steps: int, fork: bool = False) -> None:
        self._fork = fork
        self.folder, self.count, self.steps = folder, count, steps
        self._addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.lives = [0] * count
        self.processes = [self._started(rank) for rank in range(count)]

    def _started(self, rank: int) -> subprocess.Popen[bytes] | Forked:
        cluster = {"cluster": {"worker": self._addresses}, "task": {"type": "worker", "index": rank}}
        env = {"TF_CONFIG": json.dumps(cluster), "JAXTRIBUTE_INCARNATION": str(self.lives[rank])}
        file = self.folder / f"output-{rank}-{self.lives[rank]}"
        if self._fork:
            return Forked((island, self.folder, self.steps), env, file)
        with file.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.soak.elastic", "--folder", str(self.folder), "--steps", str(self.steps)],
                env=os.environ | env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def told(self, rank: int) -> list[Told]:
        """What an island has finished, in all its lives."""
        file = self.folder / f"island-{rank}"
        lines = file.read_text().splitlines() if file.exists() else []
        whole = [line.split() for line in lines if line.count(" ") == 4]
        return [Told(int(a), int(b), float(c), int(d), int(e)) for a, b, c, d, e in whole]

    def live(self, rank: int) -> Told | None:
        """The last step that an island's present process has taken with the others."""
        pid = self.processes[rank].pid
        return next((told for told in reversed(self.told(rank)) if told.pid == pid and told.live), None)

    def await_all(self) -> None:
        """Waits until all islands train together."""
        end = time.monotonic() + DEADLINE_S
        while not all(self.live(rank) for rank in range(self.count)):
            for rank, process in enumerate(self.processes):
                if process.poll() not in (None, 0):
                    output = (self.folder / f"output-{rank}-{self.lives[rank]}").read_text()
                    raise AssertionError(f"island {rank} ended with {process.poll()}:\n{output}")
            assert time.monotonic() < end, f"not all have come: {list(map(self.live, range(self.count)))}"
            time.sleep(0.005)

    def kill(self, ranks: list[int], apart_s: float = 0.0) -> tuple[float, float]:
        """Kills islands, one after the other, and starts them again.

        Returns:
          seconds from the last kill to the next step of the others, and to the first one of all that were killed.
        """
        moment = time.time()
        for number, rank in enumerate(ranks):
            time.sleep(apart_s * (number > 0))
            moment = time.time()
            self.processes[rank].kill()
            self.processes[rank].wait()
        for rank in ranks:
            self.lives[rank] += 1
            self.processes[rank] = self._started(rank)
        self.await_all()
        pids = {self.processes[rank].pid for rank in ranks}
        joined = [next(told for told in self.told(rank) if told.pid in pids and told.live) for rank in ranks]
        others = [told for other in range(self.count) if other not in ranks for told in self.told(other)]
        wait = min(told.moment for told in others if told.moment > moment) - moment
        return wait, max(told.moment for told in joined) - moment

    def end(self) -> None:
        """Waits for the end, and checks what all have learned."""
        end = time.monotonic() + DEADLINE_S + self.steps * PACE_S
        for process in self.processes:
            assert process.wait(max(end - time.monotonic(), 0.1)) == 0
        results = [np.load(self.folder / f"result-{rank}.npz") for rank in range(self.count)]
        for result in results:
            np.testing.assert_array_equal(result["seen"], np.full(self.steps, BATCH))
            np.testing.assert_array_equal(result["w"], results[0]["w"])
        if os.environ.get(VIRTUAL):
            np.testing.assert_array_equal(results[0]["w"], self._alone())

    def _alone(self) -> Any:
        """What one island learns that nobody kills."""
        folder = self.folder / "alone"
        folder.mkdir()
        command = [sys.executable, "-m", "tests.soak.elastic", "--folder", str(folder), "--steps", str(self.steps)]
        env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"} | {"PACE": "0"}
        subprocess.run(command, env=env, check=True, timeout=DEADLINE_S)
        with np.load(folder / "result-0.npz") as result:
            return result["w"]


@contextlib.contextmanager
def running(count: int, steps: int, fork: bool = False) -> Generator[Run]:
    """A job, whose processes are ended at last."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), count, steps, fork)
        try:
            yield run
        finally:
            for process in run.processes:
                if process.poll() is None:
                    process.kill()
                process.wait()


def soak(count: int, kills: int, steps: int, seed: int = 0, fork: bool = False) -> dict[str, Any]:
    """Kills islands; returns the figures."""
    chance = np.random.default_rng(seed)
    waits: list[float] = []
    joins: list[float] = []
    with running(count, steps, fork) as run:
        run.await_all()
        for number in range(kills):
            time.sleep(float(chance.uniform(0, 0.5)))
            first = 0 if number % 2 == 0 else int(chance.integers(1, count))
            second = (first + int(chance.integers(1, count))) % count
            two = count > 2 and number % 10 in (3, 6)
            ranks, apart_s = (
                ([first, second], float(chance.uniform(0, 0.1)) * (number % 10 == 6)) if two else ([first], 0)
            )
            wait, join = run.kill(ranks, apart_s)
            waits.append(wait)
            joins.append(join)
            named = " and ".join(map(str, ranks)) + (f", {apart_s * 1e3:.0f} ms apart" if apart_s else "")
            print(f"kill {number + 1} of {named}: next step after {wait:.2f} s, back after {join:.1f} s", flush=True)
        again = max((told.again for rank in range(count) for told in run.told(rank)), default=0)
        run.end()
    return {
        "kills": kills,
        "wait_s": {"median": round(float(np.median(waits)), 3), "p99": round(float(np.quantile(waits, 0.99)), 3)},
        "join_s": {"median": round(float(np.median(joins)), 2), "worst": round(max(joins), 2)},
        "again": again,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--islands", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fork", action="store_true", help="start processes that have all imported: many more kills")
    parser.add_argument("--virtual", type=int, default=0, help="so many virtual replicas")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        island(arguments.folder, arguments.steps)
        return
    if arguments.virtual:
        os.environ[VIRTUAL] = str(arguments.virtual)
    # A process that is started again takes some seconds, and the others go on meanwhile.
    steps = arguments.steps or 400 * (arguments.kills + 1)
    print(json.dumps(soak(arguments.islands, arguments.kills, steps, arguments.seed, arguments.fork)))


if __name__ == "__main__":
    main()
