"""The example of a recommender: both models learn."""

import re
from pathlib import Path

import pytest

from processes import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_clicks_are_learned() -> None:
    output = run_python(EXAMPLES / "recommender.py", "--rows", "20000", "--steps", "300", env={"COLUMNS": "100"})
    found = re.findall(r"^(.*): loss ([\d.]+) -> ([\d.]+), (\d+)% right", output, re.MULTILINE)
    assert [name for name, *_ in found] == ["two towers", "DLRM"], output
    assert all(float(last) < float(first) - 0.03 and int(right) > 58 for _, first, last, right in found), output
