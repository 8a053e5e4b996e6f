"""The examples for single libraries: equal losses under their strategies, and trainings that can be interrupted."""

import re
from pathlib import Path

import pytest

from processes import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"
# Not each under every strategy, as that costs a compilation or two.
CASES = {
    "plain_jax": ["one-device", "fully-sharded"],
    "flax_nnx": ["mirrored"],
    "equinox_digits": ["central-storage"],
    "haiku_style": ["tpu"],
}
RESULT = re.compile(r"on the test images: loss ([\d.]+), accuracy ([\d.]+)%")


def run(example: str, *arguments: str) -> str:
    return run_python(EXAMPLES / f"{example}.py", *arguments, env={"COLUMNS": "100"}, timeout=110)


@pytest.mark.parametrize("example", CASES)
def test_they_learn_and_go_on(example: str, tmp_path: Path) -> None:
    names = CASES[example]
    flags = ["--devices", "2", "--checkpoint", str(tmp_path)]
    output = run(example, "--strategy", *names, "--epochs", "1", *flags)
    found = [(float(loss), float(accuracy)) for loss, accuracy in RESULT.findall(output)]
    assert len(found) == len(names), output
    assert max(loss for loss, _ in found) - min(loss for loss, _ in found) <= 1e-4
    assert all(accuracy > 70 for _, accuracy in found), output
    if example in ("equinox_digits", "haiku_style"):  # state in variables, and state that steps replace
        output = run(example, "--strategy", *names, "--epochs", "2", *flags)
        assert "goes on after epoch 1" in output
        assert "epoch 1:" not in output
        assert float(RESULT.findall(output)[0][0]) < found[0][0]
