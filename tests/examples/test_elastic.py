"""The example of elastic training: it goes on when one of its processes kills itself."""

from pathlib import Path

import pytest

from processes import run_python

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples" / "elastic.py"
LAUNCH = f"""
import sys
from jaxtribute._src.addons.cli.main import main
sys.exit(main(["launch", "--elastic", "--workers", "2", "--devices-per-worker", "1", {str(SCRIPT)!r}, "--kill", "0"]))
"""


def test_the_other_finishes() -> None:
    output = run_python(LAUNCH, timeout=200)
    assert "goes on without island 0 (0 of 0 restarts); islands left: 1" in output
    assert "[1] epoch 3: loss 0.2688, islands [1]" in output, output
    assert "Each of 1797 images was seen 4 times." in output
