"""The examples for single libraries: equal losses under their strategies, and trainings that can be interrupted."""

import re
from pathlib import Path

import pytest

from processes import run_python

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
# Not each under every strategy, as that costs a compilation or two; all in one process, which costs one start.
CASES = [
    ("plain_jax", "one-device fully-sharded", 1),
    ("flax_nnx", "mirrored", 1),
    ("equinox_digits", "central-storage", 1),
    ("equinox_digits", "central-storage", 2),
    ("haiku_style", "tpu", 1),
]
RUNNER = """
import runpy, sys
examples, folder, *cases = sys.argv[1:]
sys.path.insert(0, examples)
for case in cases:
    name, strategies, epochs = case.split(":")
    flags = ["--strategy", *strategies.split(), "--epochs", epochs, "--checkpoint", f"{folder}/{name}"]
    sys.argv = [name, "--devices", "2", *flags]
    print("running", name, epochs)
    try:
        runpy.run_path(f"{examples}/{name}.py", run_name="__main__")
    except SystemExit as end:
        assert not end.code, (case, end.code)
"""
RESULT = re.compile(r"on the test images: loss ([\d.]+), accuracy ([\d.]+)%")


def test_they_learn_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    cases = [":".join(map(str, case)) for case in CASES]
    output = run_python(RUNNER, str(EXAMPLES), str(tmp_path), *cases, env={"COLUMNS": "100"})
    texts = output.split("running ")[1:]
    assert len(texts) == len(CASES), output
    losses: dict[str, float] = {}
    for (name, strategies, epochs), text in zip(CASES, texts, strict=True):
        found = [(float(loss), float(accuracy)) for loss, accuracy in RESULT.findall(text)]
        assert len(found) == len(strategies.split()), text
        assert max(loss for loss, _ in found) - min(loss for loss, _ in found) <= 1e-4, text
        assert all(accuracy > 70 for _, accuracy in found), text
        assert f"epoch {epochs}:" in text
        if epochs > 1:
            assert "goes on after epoch 1" in text
            assert "epoch 1:" not in text
            assert found[0][0] < losses[name]
        losses[name] = found[0][0]
