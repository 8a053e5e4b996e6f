"""Two workers on two machines, which are network namespaces here: they train, and notice when the cable is out."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any

import pytest

from namespaces import Machine, NoRightsError, two_machines

pytestmark = pytest.mark.slow

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
PORT = 2222
SILENCE_S = 6
EPOCHS = 2

PROGRAM = f"""
import importlib.util, sys, time
import jax, jax.numpy as jnp, psutil
from rich.console import Console
import jaxtribute as jd
from jaxtribute._src.core.cluster import runtime

spec = importlib.util.spec_from_file_location("digits", {str(DIGITS)!r})
digits = sys.modules["digits"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(digits)
loss = digits.train("multi-worker", 1, {EPOCHS}, Console(quiet=True)).loss
alone = digits.train("one-device", 1, {EPOCHS}, Console()).loss if jax.process_index() == 0 else loss
ports = [one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
hosts = ",".join(sorted({{port.ip.removeprefix("::ffff:") for port in ports}}))
strategy = jd.MultiWorkerMirroredStrategy()

@jd.function
def total():
    return strategy.reduce("SUM", strategy.run(lambda: jnp.ones(())), axis=None)

float(total())
# Only now: while one of them starts, compiles or trains alone, a slow machine may keep it silent for longer.
runtime.Cluster.current().watch._silence_s = {SILENCE_S}
print(f"trained: {{loss}} {{alone}} {{hosts}}", flush=True)
deadline = time.monotonic() + 200
while time.monotonic() < deadline:
    float(total())
print("was never cut off", flush=True)
"""


class Worker:
    """The program on one of the machines."""

    def __init__(self, machines: tuple[Machine, Machine], rank: int, output: IO[str]) -> None:
        cluster = {"worker": [f"{machine.address}:{PORT}" for machine in machines]}
        env = {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}),
            "JAXTRIBUTE_CPU_DEVICES": "1",
        }
        self.name = f"worker {rank} ({cluster['worker'][rank]})"
        self._output = output
        self._process = machines[rank].start(["-c", PROGRAM], env, output)

    def said(self) -> str:
        return Path(self._output.name).read_text(encoding="utf-8")

    def line(self) -> str:
        """The line with the result of the training, or nothing yet."""
        lines = [line for line in self.said().splitlines() if line.startswith("trained: ")]
        assert lines or self._process.poll() is None, f"{self.name} ended with {self.code}:\n{self.said()}"
        return lines[0] if lines else ""

    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def kill(self) -> None:
        if not self.ended():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=5)


@pytest.fixture
def workers(machines: tuple[Machine, Machine], tmp_path: Path) -> Generator[list[Worker]]:
    outputs = [(tmp_path / f"worker-{rank}").open("w") for rank in range(2)]
    started = [Worker(machines, rank, output) for rank, output in enumerate(outputs)]
    yield started
    for worker, output in zip(started, outputs, strict=True):
        worker.kill()
        output.close()


def await_all(workers: list[Worker], question: Callable[[Worker], Any], timeout_s: float, what: str) -> None:
    """Waits until the answer is yes for all."""
    start = time.monotonic()
    while not all(question(worker) for worker in workers):
        waited = time.monotonic() - start
        outputs = "\n".join(f"--- {worker.name}\n{worker.said()}" for worker in workers)
        assert waited < timeout_s, f"not all {what} within {timeout_s} s\n{outputs}"
        time.sleep(0.05)


def test_two_machines_train_and_notice_that_they_are_cut_off(
    machines: tuple[Machine, Machine], workers: list[Worker]
) -> None:
    await_all(workers, Worker.line, 200, "workers trained")
    (_, loss, alone, host), (_, same, _, other_host) = (worker.line().split() for worker in workers)
    assert loss == same
    assert float(loss) == pytest.approx(float(alone), rel=1e-4)
    # Each listens at its own address alone.
    assert [host, other_host] == [machine.address for machine in machines]

    machines[1].unplug()
    await_all(workers, Worker.ended, 10 * SILENCE_S, "workers ended after the cable was out")
    for worker, other in (workers, reversed(workers)):
        assert worker.code not in (0, None)
        assert f"{other.name} was lost" in worker.said(), worker.said()


def test_without_rights_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(NoRightsError, match="no `ip` command"), two_machines():
        pass
    monkeypatch.undo()
    refused = subprocess.CompletedProcess([], 1, "", "Operation not permitted\n")
    monkeypatch.setattr("shutil.which", lambda _: "ip")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: refused)
    with pytest.raises(NoRightsError, match=r"`ip netns add jda\d+` failed: Operation not permitted"), two_machines():
        pass
