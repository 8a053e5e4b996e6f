"""`jaxtribute launch` on two machines, which are network namespaces here: who is where, and a common end."""

import json
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from namespaces import Machine, NoRightsError, two_machines

pytestmark = pytest.mark.slow

PORT = 29400
SCRIPT = 'echo "$TF_CONFIG"; while :; do sleep 0.1; done'


@pytest.fixture
def machines() -> Generator[tuple[Machine, Machine]]:
    try:
        with two_machines() as both:
            yield both
    except NoRightsError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


def said(log: Path) -> list[str]:
    """What the ranks have said; a launcher that waits for the other says so too."""
    return [line for line in log.read_text().splitlines(keepends=True) if line.startswith("[") and line.endswith("\n")]


def test_workers_have_their_machines_addresses_and_end_together(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    logs = [tmp_path / f"machine-{number}.log" for number in range(2)]
    coordinator = ["--nodes", "2", "--coordinator", f"{machines[0].address}:{PORT}"]
    launchers = []
    for number, machine in enumerate(machines):
        shape = ["--node-rank", str(number), "--workers", str(number + 1)]
        with logs[number].open("w") as output:
            command = ["-m", "jaxtribute.cli", "launch", *coordinator, *shape, "sh", "-c", SCRIPT]
            launchers.append(machine.start(command, {"PYTHONUNBUFFERED": "1"}, output))
    try:
        end = time.monotonic() + 200
        while [len(said(log)) for log in logs] != [1, 2]:
            assert time.monotonic() < end, [log.read_text() for log in logs]
            time.sleep(0.02)
        os.killpg(launchers[0].pid, signal.SIGINT)  # Ctrl-C on machine 0
        assert [launcher.wait(100) for launcher in launchers] == [130, 130]
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait(10)
    lines = [line for log in logs for line in said(log)]
    found = {int(line[1]): json.loads(line.partition(" ")[2]) for line in lines}
    hosts = [address.rpartition(":")[0] for address in found[0]["cluster"]["worker"]]
    assert hosts == [machines[0].address, machines[1].address, machines[1].address]
    assert all(found[rank]["cluster"] == found[0]["cluster"] for rank in range(3))
    assert [found[rank]["task"]["index"] for rank in range(3)] == [0, 1, 2]
