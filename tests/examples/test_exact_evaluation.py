"""The example of exact evaluation: equal on any number of devices, where averages of averages are not."""

import re
from pathlib import Path

import pytest

from processes import run_python

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "exact_evaluation.py"
ROW = re.compile(r"^│ (\d+) +│ (\d+) +│ (\d+) +│ ([\d.]+) +│ ([\d.]+) +│ ([\d.]+) +│$", re.MULTILINE)


def test_the_metric_does_not_depend_on_devices_or_batches() -> None:
    output = run_python(SCRIPT, "--batch", "64", "--batch", "97", env={"COLUMNS": "100"})
    rows = ROW.findall(output)
    assert [(row[0], row[1]) for row in rows] == [(str(n), size) for size in ("64", "97") for n in range(1, 5)]
    assert {row[2] for row in rows} == {str(1797 % 64), str(1797 % 97)}
    assert len({row[3] for row in rows}) == 1, output
    assert len({row[4] for row in rows}) == 1, output
    assert len({row[5] for row in rows}) > 1, output
    assert output.rstrip().endswith("equal.")
