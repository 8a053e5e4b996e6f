"""A coordinator on one machine, a server and a worker on another, which shares no disk with it."""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from namespaces import Machine

pytestmark = pytest.mark.slow

DEADLINE_S = 300
VALUES = 1000
CHIEF = f"""
import jax.numpy as jnp
import numpy as np
import jaxtribute as jd

strategy = jd.ParameterServerStrategy(jd.cluster_resolver.TFConfigClusterResolver(), timeout_s=240)
coordinator = jd.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    variable = jd.Variable(np.arange({VALUES}, dtype=np.float32))

@jd.function
def step():
    variable.assign_add(jnp.ones({VALUES}))
    return variable.read_value().sum()

for _ in range(5):
    coordinator.schedule(step)
coordinator.join()
np.testing.assert_array_equal(variable.numpy(), np.arange({VALUES}) + 5)
print("trained", flush=True)
strategy.close()
"""
TASK = """
import jaxtribute as jd

resolver = jd.cluster_resolver.TFConfigClusterResolver()
jd.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id).join()
"""


def test_machines_that_share_no_disk(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    first, second = machines
    before = second.sent_bytes()
    places = {"ps": second, "worker": second, "chief": first}
    cluster = {job: [f"{machine.address}:{port}"] for port, (job, machine) in enumerate(places.items(), 2222)}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jdt", dir="/tmp"))
        started: dict[str, subprocess.Popen[str]] = {}
        for job, machine in places.items():
            config = json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
            program = CHIEF if job == "chief" else TASK
            output = stack.enter_context((tmp_path / job).open("w"))
            own_disk = folder if machine is second else ""
            started[job] = machine.start(["-c", program], {"TF_CONFIG": config, "TMPDIR": folder}, output, own_disk)
            stack.callback(end, started[job])
        with suppress(subprocess.TimeoutExpired):
            started["chief"].wait(DEADLINE_S)
        said = "\n".join(f"{job}:\n{(tmp_path / job).read_text()}" for job in places)
        assert started["chief"].returncode == 0, said
        assert "trained" in said
    assert second.sent_bytes() - before > VALUES * 4, "the variable never crossed the cable"


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
