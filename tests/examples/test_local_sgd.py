"""The example of islands that meet now and then: all images are seen once in each epoch, and it learns."""

from pathlib import Path

import pytest

from processes import run_python

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "local_sgd.py"
LAUNCH = f"""
import sys
from jaxtribute._src.addons.cli.main import main
islands = ["--elastic", "--workers", "2", "--devices-per-worker", "1"]
sys.exit(main(["launch", *islands, {str(SCRIPT)!r}, "--wire", "int4", "--overlap", "10"]))
"""


def test_two_islands_learn() -> None:
    output = run_python(LAUNCH, timeout=200)
    assert output.count("17664 examples were seen; 8") == 2, output
