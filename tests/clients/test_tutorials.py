"""How TensorFlow's tutorials are changed, run and compared."""

import json
from pathlib import Path

import pytest

from clients import tutorials
from clients.tutorials import Outcome, by_hand, difference, shorter


def cell(number: int, *numbers: float, error: str = "") -> dict[str, object]:
    return {"cell": number, "error": error, "numbers": list(numbers)}


def notebook(file: Path, *cells: str) -> Path:
    made = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": [text]}
        for text in cells
    ]
    file.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return file


def test_a_notebook_is_made_shorter_and_keeps_to_its_folder(tmp_path: Path) -> None:
    text = "EPOCHS = 12\ntime.sleep(20)\nserve('localhost:12345')\nopen('/tmp/log')"
    assert shorter(text, tmp_path, [1, 2]) == f"EPOCHS = 2\ntime.sleep(1)\nserve('localhost:1')\nopen('{tmp_path}/log')"


def test_lines_changed_by_hand_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tutorials, "BY_HAND", {"one": (('x = "a"', 'x = "b"'),)})
    file = notebook(tmp_path / "one.ipynb", 'x = "a"\ny = 1')
    assert by_hand("one", file) == 1
    assert json.loads(file.read_text())["cells"][0]["source"] == ['x = "b"\ny = 1']
    assert by_hand("other", file) == 0
    with pytest.raises(LookupError, match="one: there is no line"):
        by_hand("one", file)


def test_numbers_of_cells_that_both_ran_are_compared() -> None:
    ours = Outcome([cell(1, 1.0, 200.0), cell(2, 3.0), cell(3, 4.0, 5.0), cell(4, 7.0), cell(5, 9.0)])
    theirs = Outcome([cell(1, 1.5, 202.0), cell(3, 4.0), cell(4, error="ValueError"), cell(5, 9.0)])
    assert difference(ours, theirs) == (3, pytest.approx(1 / 3), [3])


@pytest.mark.slow
def test_a_notebook_is_migrated_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = notebook(
        tmp_path / "source.ipynb",
        "import tensorflow as tf",
        "strategy = tf.distribute.MirroredStrategy()",
        "print(float(tf.reduce_sum(tf.constant([1.5, 2.0]))), strategy.num_replicas_in_sync)",
        "raise ValueError('as it should')",
    )
    row = tutorials.tutorial("short", source, tmp_path, None)
    assert row == "| short | 0 | 3 of 4 | 0 |"
    assert "cell 4, ours: ValueError: as it should" in capsys.readouterr().out
    found = json.loads((tmp_path / "short" / "ours" / "found.json").read_text())
    assert found[2]["numbers"] == [3.5, 2.0]
