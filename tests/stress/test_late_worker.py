"""A worker that comes later than Gloo waits by itself, 30 s: with its first program, or with its input."""

from __future__ import annotations

import numpy as np
import pytest

import sharded_programs as programs
from jaxtribute.testing import run_multi_process

pytestmark = pytest.mark.slow

LATE_S = 36.0


def test_a_worker_that_is_late_before_the_first_step_and_before_the_next() -> None:
    w = np.arange(8)
    losses = [np.sum((w - 1) ** 2) / 2, np.sum(((w - 1) / 2) ** 2) / 2]
    for found in run_multi_process(programs.with_a_late_worker, workers=2, args=(LATE_S,), timeout_s=300):
        np.testing.assert_allclose(found, losses)
