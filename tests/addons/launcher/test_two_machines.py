"""`jaxtribute launch` on two machines, which are network namespaces here: who is where, and a common end."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from namespaces import Machine

pytestmark = pytest.mark.slow

PORT = 29400
SCRIPT = 'echo "$TF_CONFIG"; while :; do sleep 0.1; done'


def said(log: Path) -> list[str]:
    """What the ranks have said; a launcher that waits for the other says so too."""
    return [line for line in log.read_text().splitlines(keepends=True) if line.startswith("[") and line.endswith("\n")]


@contextmanager
def launched(
    machines: tuple[Machine, Machine], logs: list[Path], shapes: list[list[str]], script: str
) -> Generator[list[subprocess.Popen[str]]]:
    """Launchers of one job on both machines; they are killed at the end where they still run."""
    started: list[subprocess.Popen[str]] = []
    try:
        for number, (machine, shape) in enumerate(zip(machines, shapes, strict=True)):
            arguments = ["--nodes", "2", "--coordinator", f"{machines[0].address}:{PORT}", "--node-rank", str(number)]
            with logs[number].open("w") as output:
                command = ["-m", "jaxtribute.cli", "launch", *arguments, *shape, "sh", "-c", script]
                started.append(machine.start(command, {"PYTHONUNBUFFERED": "1"}, output))
        yield started
    finally:
        for launcher in started:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait(10)


def await_(ready: Callable[[], bool], logs: list[Path]) -> None:
    end = time.monotonic() + 200
    while not ready():
        assert time.monotonic() < end, [log.read_text() for log in logs]
        time.sleep(0.02)


def test_workers_have_their_machines_addresses_and_end_together(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    logs = [tmp_path / f"machine-{number}.log" for number in range(2)]
    with launched(machines, logs, [["--workers", "1"], ["--workers", "2"]], SCRIPT) as launchers:
        await_(lambda: [len(said(log)) for log in logs] == [1, 2], logs)
        os.killpg(launchers[0].pid, signal.SIGINT)  # Ctrl-C on machine 0
        assert [launcher.wait(100) for launcher in launchers] == [130, 130]
    lines = [line for log in logs for line in said(log)]
    found = {int(line[1]): json.loads(line.partition(" ")[2]) for line in lines}
    hosts = [address.rpartition(":")[0] for address in found[0]["cluster"]["worker"]]
    assert hosts == [machines[0].address, machines[1].address, machines[1].address]
    assert all(found[rank]["cluster"] == found[0]["cluster"] for rank in range(3))
    assert [found[rank]["task"]["index"] for rank in range(3)] == [0, 1, 2]


def test_a_machine_that_was_cut_off_is_taken_back(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    logs = [tmp_path / f"machine-{number}.log" for number in range(2)]

    def sizes(number: int) -> list[int]:
        """How many workers each start had, as one machine's ranks were told."""
        found = [json.loads(line.partition(" ")[2]) for line in said(logs[number])]
        return [len(each["cluster"]["worker"]) for each in found]

    shape = ["--min-workers", "1", "--max-restarts", "3"]
    with launched(machines, logs, [shape, shape], f"trap 'exit 75' TERM; {SCRIPT}") as launchers:
        await_(lambda: sizes(0) == sizes(1) == [2], logs)
        machines[1].unplug()
        await_(lambda: sizes(0) == [2, 1], logs)
        assert "goes on with 1 worker(s), without machine 1" in logs[0].read_text()
        await_(lambda: "tries to come back" in logs[1].read_text(), logs)
        machines[1].plug_in()
        await_(lambda: sizes(0) == [2, 1, 2], logs)
        await_(lambda: sizes(1) == [2, 2], logs)
        assert "one more machine is there" in logs[0].read_text()
        os.killpg(launchers[0].pid, signal.SIGINT)
        assert [launcher.wait(100) for launcher in launchers] == [130, 130]
