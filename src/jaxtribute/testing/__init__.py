"""Helpers for tests of distributed programs: processes that form a cluster, faults, invariance, leaks.

The fixtures for pytest are in `jaxtribute.testing.pytest_plugin`.
"""

from jaxtribute.testing.faults import Fault as Fault
from jaxtribute.testing.faults import InjectedError as InjectedError
from jaxtribute.testing.faults import corrupt_value as corrupt_value
from jaxtribute.testing.faults import drop_heartbeats as drop_heartbeats
from jaxtribute.testing.faults import inject as inject
from jaxtribute.testing.faults import kill as kill
from jaxtribute.testing.faults import raise_at as raise_at
from jaxtribute.testing.faults import slow as slow
from jaxtribute.testing.faults import stall as stall
from jaxtribute.testing.invariance import assert_strategy_invariant as assert_strategy_invariant
from jaxtribute.testing.points import point as point
from jaxtribute.testing.runner import Exited as Exited
from jaxtribute.testing.runner import MultiProcessRunner as MultiProcessRunner
from jaxtribute.testing.runner import run_multi_process as run_multi_process
