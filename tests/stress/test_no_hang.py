"""No loop hangs on more logical devices than the machine has cores.

With JAX's own thread pool the first two loops hung on two cores in 8 of 8 runs, of 2 to 32 devices.
"""

from pathlib import Path

import pytest

from processes import run_python

SCRIPT = Path(__file__).parent / "loops.py"
# A step on 32 devices takes about ten times as long as on 4.
STEPS = {2: 3000, 4: 3000, 8: 3000, 32: 1500}
LOOPS = ["explicit_collectives", "automatic_collectives", "strategy_steps"]

pytestmark = pytest.mark.stress


@pytest.mark.parametrize("devices", STEPS)
@pytest.mark.parametrize("loop", LOOPS)
def test_thousands_of_steps_that_nobody_waits_for(loop: str, devices: int) -> None:
    steps = STEPS[devices]
    assert run_python(SCRIPT, loop, str(steps), devices=devices).split() == [str(devices), f"{steps}.0"]


@pytest.mark.parametrize(
    "env", [{"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, {"JAX_NUM_CPU_DEVICES": "4"}]
)
def test_devices_configured_by_jax_s_own_means(env: dict[str, str]) -> None:
    assert run_python(SCRIPT, "explicit_collectives", "3000", env=env).split() == ["4", "3000.0"]


def test_what_a_parent_with_fewer_devices_chose_is_not_kept() -> None:
    inherited = {"PJRT_NPROC": "4", "JAXTRIBUTE_PJRT_NPROC": "4"}
    assert run_python(SCRIPT, "explicit_collectives", "3000", devices=8, env=inherited).split() == ["8", "3000.0"]
