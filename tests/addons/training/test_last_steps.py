"""A process whose last steps fail, and whose results nobody reads."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import jax
import numpy as np
import jaxtribute as jd
from jaxtribute.extending import described_devices

jd.config.set_logical_cpu_devices(2)
with described_devices(jax.devices()), jd.MirroredStrategy(2).scope():
    planned = jd.Variable(np.zeros(4, np.float32))  # which nothing computes
strategy = jd.MirroredStrategy(2)
with strategy.scope():
    v = jd.Variable(np.zeros(4, np.float32), aggregation=jd.VariableAggregation.MEAN)


def host(x):
    if x[0] > 1:
        raise RuntimeError("boom")
    return np.asarray(x) + 1


@jd.function
def step():
    shape = jax.ShapeDtypeStruct((4,), np.float32)
    strategy.run(lambda: v.assign(jax.pure_callback(host, shape, v.read_value())))


for _ in range({steps}):
    step()
print("the end")
{ending}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "ending", "code"), [(3, "", 1), (3, "sys.exit(0)", 1), (2, "", 0), (2, "sys.exit(7)", 7)]
)
def test_the_status_tells_of_them(steps: int, ending: str, code: int) -> None:
    program = PROGRAM.format(steps=steps, ending=ending)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == "the end\n"
    assert "Exception ignored" not in done.stderr
    assert ("The last steps of this process failed" in done.stderr) == ("boom" in done.stderr) == (code == 1)
