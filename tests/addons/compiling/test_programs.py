"""Every program of the examples and of the documentation is planned for TPUs, or refused with a hint."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from samples import ALL_CASES

pytestmark = [
    pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU compiler is missing: pip install libtpu"),
    pytest.mark.slow,
]
ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "support" / "planned_programs.py"
SERVERS = "ParameterServerStrategy over described devices"
REFUSED = {
    "elastic.py": "ElasticStrategy over described devices",
    "local_sgd.py": "ElasticStrategy over described devices",
    "embeddings.py": SERVERS,
    "parameter_server.py": SERVERS,
}
"""The examples whose steps are several programs, and how their refusals begin."""
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "common.py")
SAMPLE = ["elastic.py", "exact_evaluation.py", "haiku_style.py", "keras_digits.py"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def planned(files: list[Path]) -> dict[str, str]:
    """Why each is refused, empty for those that are planned."""
    command = [sys.executable, str(SCRIPT), "v5e:2x2", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    answers = map(json.loads, done.stdout.splitlines())
    return {answer["name"]: answer["refused"] for answer in answers}


def test_examples_are_planned_or_refused_by_their_strategy() -> None:
    files = [path for path in EXAMPLES if ALL_CASES or path.name in SAMPLE]
    found = planned(files)
    assert list(found) == [path.name for path in files]
    for name, refusal in found.items():
        assert refusal.removeprefix("ArgumentError: ").startswith(REFUSED.get(name, "")), (name, refusal)
        assert bool(refusal) == (name in REFUSED), (name, refusal)


@pytest.mark.skipif(not ALL_CASES, reason="JAXTRIBUTE_ALL_CASES is not set")
@pytest.mark.timeout(1800)
def test_pages_are_planned_or_refused_with_a_hint() -> None:
    files = [page for page in PAGES if "```py" in page.read_text(encoding="utf-8")]
    found = planned(files)
    assert len(found) == len(files)
    assert not found["README.md"]
