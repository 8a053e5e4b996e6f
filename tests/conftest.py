"""The suite runs on eight logical CPU devices, with JAX at its strictest, and lets no test leave anything behind."""

import hypothesis
import jax
import pytest

from jaxtribute import config
from jaxtribute.execution import workers
from jaxtribute.testing import leaks
from jaxtribute.testing.shared import SharedRunners

pytest_plugins = ["jaxtribute.testing.pytest_plugin"]

config.set_logical_cpu_devices(8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# A test that fails for a thread left behind waits for idle ones to end.
workers.IDLE_SECONDS = 0.02
# What has been closed may take long to end where the machine is slow.
leaks.DEADLINE_S = 30.0

# The first example of a shape compiles, so a time limit for each example would only measure XLA. A commit passes or
# fails each time alike; `--hypothesis-profile=explore` looks for examples that nobody has tried yet.
hypothesis.settings.register_profile("jaxtribute", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile("jaxtribute")


@pytest.fixture(autouse=True)
def nothing_stays(no_leaks: None, same_environment: None) -> None:
    """Every test is watched."""


@pytest.fixture(scope="session")
def multi_process(multi_process: SharedRunners) -> SharedRunners:
    """Processes that tests share; they are as strict as this one."""
    multi_process.environment.update(
        JAX_NUMPY_DTYPE_PROMOTION="strict", JAX_NUMPY_RANK_PROMOTION="raise", PYTHONWARNINGS="error"
    )
    return multi_process
