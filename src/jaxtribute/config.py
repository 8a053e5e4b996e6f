"""Settings of the process, made before JAX starts: logical CPU devices, their allocator, and device aliases for tests.

| environment variable | read | meaning |
|---|---|---|
| `JAXTRIBUTE_CPU_DEVICES` | when `jaxtribute` is imported | as `set_logical_cpu_devices(n)` |
| `JAXTRIBUTE_TUNE_ALLOCATOR` | when CPU devices are set up | `0` leaves the C allocator alone |
| `JAXTRIBUTE_DEBUG` | at the first program over several workers | `collectives` is `debug_collectives(True)` |
| `JAXTRIBUTE_RUN` | when `jaxtribute` is imported | as `record_run(directory)` |
| `JAXTRIBUTE_MEMORY` | when a loss is traced | as `set_memory_budget(memory)` |
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.core.backend import prepare_cpu_backend
from jaxtribute._src.core.config import apply_environment, set_logical_cpu_devices
from jaxtribute._src.core.devices import alias_devices
from jaxtribute._src.public import lazy_names as _lazy_names
from jaxtribute._src.public import publish as _publish

__all__ = [
    "alias_devices",
    "apply_environment",
    "debug_collectives",
    "enable_compilation_cache",
    "prepare_cpu_backend",
    "record_run",
    "set_logical_cpu_devices",
    "set_memory_budget",
]

if _TYPE_CHECKING:
    from jaxtribute._src.addons.launcher.compilation_cache import enable_compilation_cache
    from jaxtribute._src.addons.live.starting import record_run
    from jaxtribute._src.core.cluster.ledger import debug_collectives
    from jaxtribute._src.core.execution.budgets import set_memory_budget

_lazy_names(__name__)

_publish(__name__)
