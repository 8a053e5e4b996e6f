"""Helpers for tests of distributed programs: processes that form a cluster, leaks, faults, invariance."""

from jaxtribute.testing.runner import Exited as Exited
from jaxtribute.testing.runner import MultiProcessRunner as MultiProcessRunner
from jaxtribute.testing.runner import run_multi_process as run_multi_process
