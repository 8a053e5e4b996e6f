"""Helpers for tests of distributed programs: processes that form a cluster, faults, invariance, leaks, wrong steps.

The fixtures for pytest are in `jaxtribute.testing.pytest_plugin`.
"""

from jaxtribute._src.addons.testing.faults import (
    Fault,
    InjectedError,
    corrupt_value,
    drop_heartbeats,
    inject,
    kill,
    raise_at,
    slow,
    stall,
)
from jaxtribute._src.addons.testing.invariance import assert_strategy_invariant
from jaxtribute._src.addons.testing.points import point
from jaxtribute._src.addons.testing.rehearsal import rehearse
from jaxtribute._src.addons.testing.runner import Exited, MultiProcessRunner, run_multi_process
from jaxtribute._src.addons.verify.asserting import NotOneDeviceError, verify
from jaxtribute._src.addons.verify.verdict import Verdict
from jaxtribute._src.public import publish as _publish

__all__ = [
    "Exited",
    "Fault",
    "InjectedError",
    "MultiProcessRunner",
    "NotOneDeviceError",
    "Verdict",
    "assert_strategy_invariant",
    "corrupt_value",
    "drop_heartbeats",
    "inject",
    "kill",
    "point",
    "raise_at",
    "rehearse",
    "run_multi_process",
    "slow",
    "stall",
    "verify",
]

_publish(__name__)
