"""Islands on two machines, of which one is cut off from the other for longer than islands wait for a sign of life."""

from __future__ import annotations

import json
import os
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
