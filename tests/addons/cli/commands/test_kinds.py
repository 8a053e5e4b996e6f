"""Each command on each kind of program that users write: it works, or names what is not supported and what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import kinds_of_programs
from samples import ALL_CASES

SCRIPT = str(Path(kinds_of_programs.__file__))
COMMANDS = {
    "plan": ["plan"],
    "topology": ["plan", "--topology", "v5e:2x2", "--seconds", "0"],
    "trace": ["trace"],
    "verify": ["verify"],
    "preempt": ["doctor", "--preempt"],
    "top": ["launch", "--workers", "1", "--run", "run"],
}
AFTER = {"top": ["top", "run", "--once"]}
"""What is called when the program has run."""
SAMPLE = [("plan", "keras"), ("topology", "servers"), ("top", "tf")]
"""What the suite takes; JAXTRIBUTE_ALL_CASES=1 takes all pairs."""
CASES = [(command, kind) for command in COMMANDS for kind in kinds_of_programs.KINDS] if ALL_CASES else SAMPLE


@pytest.mark.slow
@pytest.mark.parametrize(("command", "kind"), CASES)
def test_a_command_works_or_says_why_not(command: str, kind: str, tmp_path: Path) -> None:
    if command == "topology" and find_spec("libtpu") is None:
        pytest.skip("the TPU compiler is missing: pip install libtpu")
    lines = [[*COMMANDS[command], SCRIPT, kind]]
    if command in AFTER:
        lines.append(AFTER[command])
    for line in lines:
        whole = [sys.executable, "-m", "jaxtribute.cli", *line]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
        told = done.stdout + done.stderr
        if done.returncode:
            assert "HINT: " in told, told
            assert done.stderr.strip().splitlines()[-1:] != ["^C"], told
        elif line == AFTER.get("top"):
            # Steps of the worker, or functions that a coordinator had done elsewhere.
            assert re.search(
                rf"^{kinds_of_programs.STEPS} steps,| {kinds_of_programs.STEPS} done,", told, re.MULTILINE
            ), told
