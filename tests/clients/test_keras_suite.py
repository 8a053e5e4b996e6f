"""What the run of Keras's own tests makes of their outcomes."""

import subprocess
import sys
from pathlib import Path

import pytest

from clients import keras_suite
from clients.keras_suite import Outcome, compare, differences, list_files, read, run

PASSED, FAILED = Outcome("passed"), Outcome("failed", "1 != 2")

TESTS = """
import os
import unittest

import jaxtribute as jd


class TestScope(unittest.TestCase):
    def setUp(self):
        self.replicas = jd.get_strategy().num_replicas_in_sync

    def test_differs(self):
        self.assertEqual(self.replicas, 1)

    def test_ends_the_process(self):
        if self.replicas > 1:
            os._exit(3)

    def test_fails(self):
        self.fail("always")

    def test_same(self):
        self.assertIn(self.replicas, (1, 4))
"""


def test_a_test_fails_if_one_of_its_phases_does(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    report.write_text(
        '{"test": "a", "outcome": "begun"}\n'
        '{"test": "a", "when": "setup", "outcome": "passed", "reason": ""}\n'
        '{"test": "a", "when": "call", "outcome": "failed", "reason": "1 != 2"}\n'
        '{"test": "a", "when": "teardown", "outcome": "passed", "reason": ""}\n'
        '{"test": "b", "outcome": "begun"}\n'
        '{"test": "b", "when": "setup", "outcome": "skipped", "reason": ""}\n'
        '{"test": "b", "when": "teardown", "outcome": "passed", "reason": ""}\n'
        '{"test": "c", "outcome": "begun"}\n'
        '{"test": "c", "when": "setup", "outcome": "passed", "reason": ""}\n'
    )
    assert read(report) == {"a": FAILED, "b": Outcome("skipped"), "c": Outcome("missing", "the process ended")}


def test_only_what_passes_plain_can_differ() -> None:
    plain = {"a": PASSED, "b": PASSED, "c": FAILED}
    assert differences(plain, {"a": PASSED, "b": FAILED, "c": FAILED, "d": Outcome("skipped")}) == {"b": FAILED}


def test_known_differences_are_told_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(keras_suite, "KNOWN", {"part/a_test.py::One": "asks for an object's identity"})
    scoped = {"part/a_test.py::One::test": FAILED, "part/a_test.py::Two::test": FAILED, "part/b_test.py::x": PASSED}
    assert compare("mirrored", ["part"], dict.fromkeys(scoped, PASSED), scoped) == 1
    printed = capsys.readouterr().out
    assert "One::test: failed: asks for an object's identity" in printed
    assert "Two::test: failed: UNKNOWN: 1 != 2" in printed
    assert "passed: 1, differ: 2, unknown: 1" in printed


def test_parts_are_folders_files_and_tests(tmp_path: Path) -> None:
    (tmp_path / "part" / "deeper").mkdir(parents=True)
    for name in ("a_test.py", "a.py", "deeper/b_test.py"):
        (tmp_path / "part" / name).touch()
    assert list_files(tmp_path, "part") == ["part/a_test.py", "part/deeper/b_test.py"]
    assert list_files(tmp_path, "part/a_test.py::One") == ["part/a_test.py::One"]


@pytest.mark.slow
def test_a_scope_is_entered_and_tests_that_end_the_process_are_missing(tmp_path: Path) -> None:
    (tmp_path / "odd_test.py").write_text(TESTS)
    scoped = run(tmp_path, ["odd_test.py"], "mirrored", tmp_path / "mirrored.jsonl")
    plain = run(tmp_path, ["odd_test.py"], "plain", tmp_path / "plain.jsonl")
    assert {test.split("::")[-1]: outcome.result for test, outcome in scoped.items()} == {
        "test_differs": "failed",
        "test_ends_the_process": "missing",
        "test_fails": "failed",
        "test_same": "passed",
    }
    assert {test.split("::")[-1] for test in differences(plain, scoped)} == {"test_differs", "test_ends_the_process"}


@pytest.mark.slow
def test_the_script_says_what_it_takes() -> None:
    result = subprocess.run(
        [sys.executable, keras_suite.__file__, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0
    assert "--reports" in result.stdout
