"""No loop hangs on more logical devices than the machine has cores.

With JAX's own thread pool the first two loops hung on two cores in 8 of 8 runs, of 2 to 32 devices.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from processes import run_python
from samples import ALL_CASES

SCRIPT = Path(__file__).parent / "loops.py"
# A step on 32 devices takes about ten times as long as on 4.
STEPS = {2: 3000, 8: 3000, 32: 1000}
LOOPS = ["explicit_collectives", "automatic_collectives", "strategy_steps"]

pytestmark = pytest.mark.slow


def sums(steps: int, *loops: str, devices: int | None = None, env: Mapping[str, str] | None = None) -> list[list[str]]:
    """The number of devices and the sum that each loop prints."""
    lines = run_python(SCRIPT, str(steps), *loops, devices=devices, env=env).splitlines()
    assert lines[::2] == [f"{loop} begins" for loop in loops]
    return [line.split() for line in lines[1::2]]


@pytest.mark.slow
@pytest.mark.parametrize("devices", STEPS if ALL_CASES else [max(STEPS)])
def test_thousands_of_steps_that_nobody_waits_for(devices: int) -> None:
    assert sums(STEPS[devices], *LOOPS, devices=devices) == [[str(devices), f"{STEPS[devices]}.0"]] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", [{"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, {"JAX_NUM_CPU_DEVICES": "4"}]
)
def test_devices_configured_by_jax_s_own_means(env: dict[str, str]) -> None:
    assert sums(3000, "explicit_collectives", env=env) == [["4", "3000.0"]]


@pytest.mark.slow
def test_what_a_parent_with_fewer_devices_chose_is_not_kept() -> None:
    inherited = {"PJRT_NPROC": "4", "JAXTRIBUTE_PJRT_NPROC": "4"}
    assert sums(3000, "explicit_collectives", devices=8, env=inherited) == [["8", "3000.0"]]
