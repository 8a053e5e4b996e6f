"""23 TensorFlow programs of different styles: `jaxtribute migrate --write`, one edit at most, TensorFlow's loss.

`styles/` has the programs, `styles.json` what TensorFlow 2.21 prints: for `embeddings` and `text` what Keras on
JAX prints, whose Adam treats rows otherwise than on TensorFlow. Figures whose names begin with `sane_` depend on random
numbers, and are only to lie near; those with `half_` on the half precision. Each run tries two programs, by the day;
`JAXTRIBUTE_ALL_CASES=1` tries all.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.scan import scan
from processes import run_python
from samples import ALL_CASES

HERE = Path(__file__).parent
RECORDED: dict[str, dict[str, float]] = json.loads((HERE / "styles.json").read_text())
EDITS: dict[str, tuple[str, str]] = {
    "no_input": ("Sequential([Flatten()", "Sequential([tf.keras.Input((5, 5)), Flatten()"),
}
"""What a reader changes after `--write`, as the finding says."""
LEFT: dict[str, list[str]] = {
    "no_input": ["Sequential without Input"],
    "autograph": ["while in tf.function", "if in tf.function", "for tf.range in tf.function"],
    "tpu_steps": ["for tf.range in tf.function"],
}
"""What is left after `--write`; of the others nothing."""
NOT_RUN = {"autograph", "servers"}
"""AutoGraph is not here; parameter servers have a test of their own."""
RUN = sorted(RECORDED.keys() - NOT_RUN)
# Two of them each day, so that all have been run within eleven days.
CHOSEN = RUN if ALL_CASES else [RUN[(int(time.time() // 86400) * 2 + n) % len(RUN)] for n in (0, 1)]


def migrated(name: str) -> str:
    return scan((HERE / "styles" / f"{name}.py").read_text()).rewritten()


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_what_is_left_is_named_and_nothing_else(name: str) -> None:
    report = scan(migrated(name))
    assert {finding.name for finding in report.left()} == set(LEFT.get(name, []))
    assert not [finding for finding in report.findings if finding.edits]
    assert all(finding.advice for finding in report.findings if finding.kind is not Kind.SAME)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_programs_train_to_the_losses_of_tensorflow(tmp_path: Path) -> None:
    for name in CHOSEN:
        text = migrated(name)
        old, new = EDITS.get(name, ("", ""))
        assert old in text
        (tmp_path / f"{name}.py").write_text(text.replace(old, new) if old else text)
    # In one process, which loads the libraries once; one program's policy is not for the next.
    runner = (
        "import runpy, sys, warnings\nwarnings.simplefilter('ignore')\nimport jaxtribute.compat.tf as tf\n"
        "for path in sys.argv[1:]:\n    tf.keras.mixed_precision.set_global_policy('float32')\n"
        "    runpy.run_path(path, run_name='__main__')\n"
    )
    output = run_python(runner, *[str(tmp_path / f"{name}.py") for name in CHOSEN], devices=2, timeout=2900)
    results = [json.loads(line) for line in output.split("\n") if line.startswith("{")]
    for name, seen in zip(CHOSEN, results, strict=True):
        _check(name, seen, RECORDED[name])


def _check(name: str, seen: dict[str, Any], recorded: dict[str, float]) -> None:
    assert seen.keys() == recorded.keys(), name
    for figure, value in recorded.items():
        if figure.startswith("sane_"):
            # A GAN's figures go up and down: what counts is that they are numbers of this size.
            assert seen[figure] < 3 * abs(value) + 0.5, (name, figure, seen[figure], value)
        else:
            tolerance = 2e-2 if figure.startswith("half_") else 1e-3
            assert seen[figure] == pytest.approx(value, rel=tolerance, abs=tolerance), (name, figure)
