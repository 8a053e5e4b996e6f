"""The suite runs on eight logical CPU devices, with JAX at its strictest, and lets no test leave anything behind."""

import hypothesis
import jax

from guards import no_leaks as no_leaks
from guards import same_environment as same_environment
from jaxtribute import config
from jaxtribute.execution import workers

config.set_logical_cpu_devices(8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# A test that fails for a thread left behind waits for idle ones to end.
workers.IDLE_SECONDS = 0.02

# The first example of a shape compiles, so a time limit for each example would only measure XLA.
hypothesis.settings.register_profile("jaxtribute", deadline=None)
hypothesis.settings.load_profile("jaxtribute")
