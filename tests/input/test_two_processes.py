"""Two processes: each has its replicas' rows on its devices, as parts of arrays over all of them."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("worker.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def run(case: str) -> list[list[Any]]:
    """What the workers print: for each element, its rows, and whether it is ragged."""
    address = f"localhost:{free_port()}"
    command = [sys.executable, "-W", "error", str(SCRIPT), case, address]
    processes = [
        subprocess.Popen([*command, str(worker)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for worker in range(2)
    ]
    outputs: list[list[Any]] = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=90)
            assert process.returncode == 0, errors
            outputs.append([json.loads(line) for line in output.splitlines()])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return outputs


@pytest.mark.parametrize("case", ["arrays", "list"])
def test_a_batch_over_two_processes(case: str) -> None:
    first, second = run(case)
    assert [rows for rows, _ in first] == [[[0, 1], [2, 3]], [[8], [9]]]
    assert [rows for rows, _ in second] == [[[4, 5], [6, 7]], [[10], []]]
    # The first process sees no difference between its own replicas, and knows of the others'.
    assert [ragged for _, ragged in first] == [ragged for _, ragged in second] == [False, True]


def test_a_process_without_data_takes_part() -> None:
    first, second = run("own")
    assert [rows for rows, _ in first] == [[[0], [1]], [[2], [3]], [[4], []]]
    assert [rows for rows, _ in second] == [[[0], [1]], [[], []], [[], []]]
    assert [ragged for _, ragged in first] == [ragged for _, ragged in second] == [False, True, True]
