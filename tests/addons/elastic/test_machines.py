"""Islands on two machines, one of which is cut off from the other for longer than islands wait for a sign of life."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from elastic_program import batches, expected
from jaxtribute._src.addons.launcher.certificates import write_certificates
from namespaces import Machine
from samples import ALL_CASES

PROGRAM = Path(__file__).parents[2] / "support" / "elastic_program.py"
STEPS, SILENT_S, DEADLINE_S = 1500, 3.0, 120.0


def finished(folder: Path, island: int) -> int:
    """The number of steps that an island has finished."""
    file = folder / f"island-{island}"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.slow
@pytest.mark.skipif(not ALL_CASES, reason="JAXTRIBUTE_ALL_CASES is not set")
def test_a_cut_cable_splits_nothing(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    places = [machines[0], machines[0], machines[1]]
    addresses = [f"{machine.address}:{5000 + rank}" for rank, machine in enumerate(places)]
    certificates = write_certificates(b"secret", tmp_path)

    def output(rank: int) -> str:
        return (tmp_path / f"output-{rank}").read_text()

    def until(condition: Callable[[], bool]) -> None:
        while not condition():
            assert time.monotonic() < end, [output(rank) for rank in range(3)]
            time.sleep(0.01)

    with ExitStack() as stack:
        islands = []
        for rank, machine in enumerate(places):
            cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            env = os.environ | certificates | {"TF_CONFIG": json.dumps(cluster), "SILENT_S": str(SILENT_S)}
            file = stack.enter_context((tmp_path / f"output-{rank}").open("w"))
            islands.append(machine.start([str(PROGRAM), str(tmp_path), str(STEPS)], env, file))
            stack.callback(islands[-1].wait)
            stack.callback(islands[-1].kill)
        until(lambda: all(finished(tmp_path, rank) > 20 for rank in range(3)))
        machines[1].unplug()
        cut_at = finished(tmp_path, 2)
        until(lambda: finished(tmp_path, 0) > cut_at + 20 and finished(tmp_path, 1) > cut_at + 20)
        machines[1].plug_in()
        until(lambda: all(island.poll() is not None for island in islands))
        assert [island.returncode for island in islands] == [0, 0, 1], [output(rank) for rank in range(3)]
        # One step may have been under way to its end when the cable was taken out.
        assert finished(tmp_path, 2) <= cut_at + 2
        assert "island 2 was " in output(2)
    learned = expected(STEPS)
    examples = sum(len(ids) for _, _, ids in batches(STEPS))
    for rank in (0, 1):
        with np.load(tmp_path / f"result-{rank}.npz") as result:
            assert tuple(result["islands"]) == (0, 1)
            np.testing.assert_array_equal(result["seen"], np.ones(examples))
            for name, value in learned.items():
                np.testing.assert_allclose(result[name], value, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not ALL_CASES, reason="JAXTRIBUTE_ALL_CASES is not set")
def test_launchers_of_two_machines_bring_their_islands_back(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    """Two islands on each machine; one is killed, and then the cable is out for 10 s."""
    end, steps = time.monotonic() + 2 * DEADLINE_S, 1000
    key = tmp_path / "key"
    key.write_text("a secret of both machines")
    key.chmod(0o600)
    env = {"SILENT_S": str(SILENT_S), "PACE": "0.02", "AWAIT": "4"}

    def lines(island: int) -> list[list[str]]:
        file = tmp_path / f"island-{island}"
        whole = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in whole if len(line) == 4]

    def until(condition: Callable[[], bool], what: str) -> None:
        while not condition():
            output = [(tmp_path / f"output-{rank}").read_text() for rank in range(2)]
            assert time.monotonic() < end, f"in vain until {what}: {output}"
            time.sleep(0.01)

    def together(view: int) -> bool:
        return all(lines(island) and int(lines(island)[-1][3]) > view for island in range(4))

    with ExitStack() as stack:
        launchers = []
        for rank, machine in enumerate(machines):
            command = ["-m", "jaxtribute.cli", "launch", "--elastic", "--workers", "2", "--max-restarts", "9"]
            hosts = ",".join(each.address for each in machines)
            command += ["--hosts", hosts, "--node-rank", str(rank), "--key", str(key), "--devices-per-worker", "1"]
            file = stack.enter_context((tmp_path / f"output-{rank}").open("w"))
            launchers.append(machine.start([*command, str(PROGRAM), str(tmp_path), str(steps)], env, file))
            stack.callback(launchers[-1].wait)
            stack.callback(launchers[-1].kill)
        until(lambda: all(len(lines(island)) > 20 for island in range(4)), "all train")
        killed = lines(2)[-1][0]
        os.kill(int(killed), signal.SIGKILL)
        until(lambda: lines(2)[-1][0] != killed and together(1), "the killed one is back")
        view = int(lines(0)[-1][3])
        machines[1].unplug()
        cut_at = time.monotonic()
        until(lambda: int(lines(0)[-1][3]) > view, "the first machine goes on alone")
        until(lambda: time.monotonic() > cut_at + 10.0, "the cut has lasted")
        machines[1].plug_in()
        until(lambda: together(view + 1), "the second machine is back")
        until(lambda: all(launcher.poll() is not None for launcher in launchers), "all are done")
        assert [launcher.returncode for launcher in launchers] == [0, 0]
    learned = expected(steps)
    examples = sum(len(ids) for _, _, ids in batches(steps))
    for rank in range(4):
        with np.load(tmp_path / f"result-{rank}.npz") as result:
            assert tuple(result["islands"]) == (0, 1, 2, 3)
            np.testing.assert_array_equal(result["seen"], np.ones(examples))
            for name, value in learned.items():
                np.testing.assert_allclose(result[name], value, rtol=0, atol=1e-5)
