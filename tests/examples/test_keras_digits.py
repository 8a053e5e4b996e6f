"""The example of Keras: one device and four replicas end with the same loss."""

import re
from pathlib import Path

import pytest

from processes import run_python

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "keras_digits.py"


def test_both_strategies_end_with_the_same_loss() -> None:
    output = run_python(SCRIPT, "--epochs", "1", env={"KERAS_BACKEND": "jax"})
    found = re.findall(r"^(.*): loss ([\d.]+), accuracy ([\d.]+)%", output, re.MULTILINE)
    assert [name for name, _, _ in found] == ["one-device, 1 replica(s)", "mirrored, 4 replica(s)"]
    (_, loss, accuracy), (_, other, _) = found
    assert float(other) == pytest.approx(float(loss), rel=1e-4)
    assert float(accuracy) > 75
