"""Islands as processes of `jaxtribute launch --elastic`, of which some are killed or stopped while they train."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic_program import batches, expected
from jaxtribute._src.addons.live.state import Run
from jaxtribute._src.addons.testing.leaks import is_alive
from samples import ALL_CASES

PROGRAM = Path(__file__).parents[2] / "support" / "elastic_program.py"
SAVES = PROGRAM.with_name("elastic_saves.py")
FIT = PROGRAM.with_name("elastic_keras.py")
DEADLINE_S = 400.0 if ALL_CASES else 120.0
pytestmark = pytest.mark.slow


class Job:
    """A launcher, its islands and what they have told.

    Args:
      folder: where they tell it.
      workers: how many.
      steps: of the training.
      options: of the launcher.
      silent_s: see `ElasticStrategy`.
      program: what to run, and what to give it besides the folder and the steps.
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        steps: int,
        *options: str,
        silent_s: float = 5.0,
        program: Sequence[object] = (PROGRAM,),
    ) -> None:
        self.folder, self.steps = folder, steps
        self._end = time.monotonic() + DEADLINE_S
        launch = [sys.executable, "-m", "jaxtribute.cli", "launch", "--elastic", "--workers", str(workers)]
        with (folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [*launch, "--devices-per-worker", "1", *options, *map(str, [program[0], folder, steps, *program[1:]])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"SILENT_S": str(silent_s)},
            )

    @property
    def output(self) -> str:
        """What all have printed so far."""
        return (self.folder / "output").read_text(errors="replace")

    def told(self, island: int) -> list[tuple[int, int, float]]:
        """Process, number and moment of each step that an island has finished."""
        return [(pid, step, moment) for pid, step, moment, _ in self.lines(island)]

    def lines(self, island: int) -> list[tuple[int, int, float, int]]:
        """The same, with what else the program tells."""
        file = self.folder / f"island-{island}"
        lines = file.read_text().splitlines() if file.exists() else []
        whole = [line.split() for line in lines if line.count(" ") == 3]
        return [(int(pid), int(step), float(moment), int(more)) for pid, step, moment, more in whole]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition."""
        while not condition():
            assert time.monotonic() < self._end, f"waited in vain until {what}; output:\n{self.output}"
            assert self._process.poll() is None, f"the job has ended before {what}; output:\n{self.output}"
            time.sleep(0.002)

    def signal(self, number: signal.Signals, *islands: int, at_step: int = 0) -> float:
        """Sends a signal to islands that have finished a step; the moment."""
        for island in islands:
            self.until(lambda island=island: len(self.told(island)) > at_step, f"island {island} is at step {at_step}")
        pids = [self.told(island)[-1][0] for island in islands]
        for pid in pids:
            os.kill(pid, number)
        return time.time()

    def wait(self) -> int:
        """The exit code."""
        try:
            return self._process.wait(max(self._end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job goes on for ever; output:\n{self.output}") from None

    def check(self, *islands: int, tolerance: float = 1e-6) -> None:
        """Checks that these islands, and no others, have learned what one device learns from each example once."""
        results = sorted(self.folder.glob("result-*.npz"))
        assert [path.name for path in results] == [f"result-{island}.npz" for island in islands], self.output
        ledger = sum(len(ids) for _, _, ids in batches(self.steps))
        learned = expected(self.steps)
        for path in results:
            with np.load(path) as result:
                assert tuple(result["islands"]) == islands, self.output
                np.testing.assert_array_equal(result["seen"], np.ones(ledger), err_msg=self.output)
                for name, value in learned.items():
                    np.testing.assert_allclose(result[name], value, rtol=0, atol=tolerance, err_msg=self.output)

    def close(self) -> None:
        """Ends what is left."""
        if self._process.poll() is None:
            self._process.kill()  # its islands end with it
        self._process.wait()


@contextmanager
def job(folder: Path, workers: int, steps: int = 300, options: tuple[str, ...] = (), **settings: Any) -> Generator[Job]:
    made = Job(folder, workers, steps, *options, **settings)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("killed", [0, 1] if ALL_CASES else [0])
def test_the_others_finish_what_a_killed_island_has_begun(killed: int, tmp_path: Path) -> None:
    with job(tmp_path, 2, options=("--run", str(tmp_path / "run"))) as running:
        running.signal(signal.SIGKILL, killed, at_step=60)
        assert running.wait() == 0, running.output
        assert f"goes on without island {killed}" in running.output
        assert f"island {killed} is gone; island {1 - killed} trains on alone (view 1)" in running.output
        running.check(1 - killed)
    state = Run(tmp_path / "run").state()
    # On a busy machine the other island may be sooner than the launcher.
    failure, view = sorted(state["events"], key=lambda event: event["kind"])
    assert [(event["kind"], event["rank"]) for event in (failure, view)] == [("failure", killed), ("view", None)]
    assert failure["text"] == "was killed by SIGKILL"
    assert f"goes on without island {killed}" in view["text"]
    assert (state["islands"]["members"], state["islands"]["changes"]) == ([1 - killed], 1)
    assert state["steps"] == 300
    assert state["step"]["p50"] > 0
    assert min(worker["bar"]["step"] for worker in state["workers"]) > 0


@pytest.mark.skipif(not ALL_CASES, reason="JAXTRIBUTE_ALL_CASES is not set")
def test_two_of_four_are_killed_at_once(tmp_path: Path) -> None:
    with job(tmp_path, 4) as running:
        running.signal(signal.SIGKILL, 0, 2, at_step=60)
        assert running.wait() == 0, running.output
        running.check(1, 3)


@pytest.mark.parametrize("late", [False, True] if ALL_CASES else [True])
def test_an_island_that_was_stopped_ends_when_it_goes_on(late: bool, tmp_path: Path) -> None:
    with job(tmp_path, 2, silent_s=5.0) as running:
        running.signal(signal.SIGSTOP, 1, at_step=60)
        stopped_at = len(running.told(1))
        running.until(lambda: len(running.told(0)) > stopped_at + 50, "the other goes on")
        if late:
            process = running.told(0)[-1][0]
            running.until(lambda: not is_alive(process), "the other has ended")
        running.signal(signal.SIGCONT, 1)
        assert running.wait() == 0, running.output
        assert re.search(r"island 1 was (silent for more than 5 s, and the others go on|left out)", running.output)
        assert len(running.told(1)) <= stopped_at + 1
        running.check(0)


@pytest.mark.skipif(not ALL_CASES, reason="JAXTRIBUTE_ALL_CASES is not set")
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_island_is_started_again_alone_and_joins(
    killed: int, spares: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWAIT", "2")
    with job(tmp_path, 2, steps=2000, options=("--max-restarts", "1", "--spares", str(spares))) as running:
        moment = running.signal(signal.SIGKILL, killed, at_step=60)
        before, other = running.told(killed)[-1][0], running.told(1 - killed)[-1][0]

        def joined() -> bool:
            return running.told(killed)[-1][0] != before

        running.until(joined, "the island has finished a step again")
        print(f"joined after {running.told(killed)[-1][2] - moment:.1f} s")
        assert running.wait() == 0, running.output
        assert f"starts island {killed} again, alone (1 of 1 restarts)" in running.output
        assert {pid for pid, _, _ in running.told(1 - killed)} == {other}
        # Other islands add in another order, which differs by 1e-6 after so many steps.
        assert f"island {killed} is there; islands 0, 1 train together from here on (view 2)" in running.output
        running.check(0, 1, tolerance=1e-5)


def check_history(folder: Path, epochs: int, islands: Sequence[int], *, exact: bool = False) -> None:
    """Checks that what Keras has told these islands is what it tells without them, or on one."""
    subprocess.run([sys.executable, str(FIT), str(folder), str(epochs)], check=True, timeout=DEADLINE_S)
    alone = json.loads((folder / "alone.json").read_text())
    files = sorted(folder.glob("history-*.json"))
    assert [file.name for file in files] == [f"history-{island}.json" for island in islands]
    for file in files:
        history, left = json.loads(file.read_text())
        assert left == list(islands)
        for name, values in alone.items():
            rtol, atol = (0.0, 0.0) if exact else (1e-5, 1e-6)
            np.testing.assert_allclose(history[name], values, rtol, atol, err_msg=name)


def test_fit_goes_on_in_an_epoch_when_an_island_is_killed(tmp_path: Path) -> None:
    with job(tmp_path, 2, 4, program=(FIT, 0.05)) as running:
        running.signal(signal.SIGKILL, 0, at_step=15)
        assert running.wait() == 0, running.output
        assert [count for _, _, _, count in running.lines(1)][-1] == 1, running.output
        check_history(tmp_path, 4, [1])


@pytest.mark.skipif(not ALL_CASES, reason="JAXTRIBUTE_ALL_CASES is not set")
@pytest.mark.parametrize("virtual", [0, 4])
def test_fit_goes_on_when_islands_go_and_come_back(
    virtual: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Islands are 4, 2, 3 and 4 again; with virtual replicas the history has the bits of one island's."""
    monkeypatch.setenv("VIRTUAL", str(virtual))
    with job(tmp_path, 4, 100, options=("--max-restarts", "2"), program=(FIT, 0.05)) as running:
        running.signal(signal.SIGKILL, 0, 2, at_step=15)
        assert running.wait() == 0, running.output
        counts = [count for _, _, _, count in running.lines(1)]
        assert {2, 3, 4} <= set(counts), running.output
        assert (counts[0], counts[-1]) == (4, 4)
        check_history(tmp_path, 100, [0, 1, 2, 3], exact=bool(virtual))


def test_islands_save_once_for_all_and_a_new_job_goes_on_from_there(tmp_path: Path) -> None:
    """An island is killed in each of both jobs, and joins again, when the checkpoint that the job began with is old."""
    steps = 200
    for last, killed in ((100, 0), (steps, 1)):
        with job(tmp_path, 2, steps, options=("--max-restarts", "1"), program=(SAVES, last)) as running:
            begun = len(running.told(killed))
            running.signal(signal.SIGKILL, killed, at_step=begun + 35)
            assert running.wait() == 0, running.output
        assert len({pid for pid, *_ in running.lines(killed)[begun:]}) == 2, running.output
    assert {first for *_, first in running.lines(1)} == {0, 100}
    running.check(0, 1, tolerance=1e-5)
    numbers = sorted(path.name for path in (tmp_path / "saves").glob("ckpt-*"))
    assert numbers == ["ckpt-10", "ckpt-20"], "the last, and what the job began with"


def test_a_job_whose_islands_have_all_died_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    with job(tmp_path, 2, 100, options=("--max-restarts", "3"), program=(SAVES, 100)) as running:
        running.signal(signal.SIGKILL, 0, 1, at_step=35)
        assert running.wait() == 0, running.output
        assert "starts all islands again, as all had died (3 of 3 restarts)" in running.output
        assert {first for *_, first in running.lines(1)} in ({0, 20}, {0, 30}), "the save at step 30 may be cut off"
        running.check(0, 1, tolerance=1e-5)


def test_islands_that_save_in_folders_of_their_own_are_told(tmp_path: Path) -> None:
    with job(tmp_path, 2, 200, program=(SAVES, 100, "own")) as running:
        assert running.wait() != 0
        assert "which has the length of the checkpoints in" in running.output.replace("\n", " ")
        assert "look for a branch or a path that depends on the rank" in running.output
