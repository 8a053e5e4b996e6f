"""What the run of Keras's own tests makes of their outcomes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clients import keras_suite
from clients.keras_suite import Outcome, Suite, claim, compare, differences, list_files, read

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

    def test_differs_a_lot(self):
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
        '{"test": "", "outcome": "ended"}\n'
    )
    assert read(report) == {"a": FAILED, "b": Outcome("skipped"), "c": Outcome("missing", "the process ended")}


def test_only_what_passes_plain_can_differ() -> None:
    plain = {"a": PASSED, "b": PASSED, "c": FAILED, "d": Outcome("skipped"), "e": PASSED}
    found = differences(plain, {"a": PASSED, "b": FAILED, "c": FAILED, "d": PASSED})
    assert found == {"b": FAILED, "e": Outcome("missing", "it has not been run")}


def test_known_differences_are_told_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(keras_suite, "KNOWN", {"part/a_test.py::One": "asks for an object's identity"})
    scoped = {"part/a_test.py::One::test": FAILED, "part/a_test.py::Two::test": FAILED, "part/b_test.py::x": PASSED}
    assert compare("part", {"plain": dict.fromkeys(scoped, PASSED), "mirrored": scoped}) == 1
    assert capsys.readouterr().out.splitlines() == [
        "| part | 3 passed | 2 failed, 1 passed, 2 differ |",
        "mirrored: part/a_test.py::One::test: failed: asks for an object's identity",
        "mirrored: part/a_test.py::Two::test: failed: UNKNOWN: 1 != 2",
    ]


def test_reports_are_of_one_state_of_the_sources(tmp_path: Path) -> None:
    claim(tmp_path / "reports", tmp_path)
    claim(tmp_path / "reports", tmp_path)
    (tmp_path / "reports" / "sources").write_text("others")
    with pytest.raises(SystemExit, match="HINT: give a folder of its own"):
        claim(tmp_path / "reports", tmp_path)


def test_parts_are_folders_files_and_tests(tmp_path: Path) -> None:
    (tmp_path / "part" / "deeper").mkdir(parents=True)
    for name in ("a_test.py", "a.py", "deeper/b_test.py"):
        (tmp_path / "part" / name).touch()
    assert list_files(tmp_path, "part") == ["part/a_test.py", "part/deeper/b_test.py"]
    assert list_files(tmp_path, "part/a_test.py::One") == ["part/a_test.py::One"]


@pytest.mark.slow
def test_what_has_ended_does_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "odd_test.py").write_text(TESTS)
    suite = Suite(tmp_path, tmp_path / "reports")
    report = suite.report("odd_test.py", "mirrored")
    report.parent.mkdir(parents=True)
    ended = "odd_test.py::TestScope::test_differs"
    report.write_text(
        json.dumps({"test": ended, "when": "call", "outcome": "passed", "reason": ""})
        + "\n"
        + json.dumps({"test": ended, "when": "teardown", "outcome": "passed", "reason": ""})
        + "\n"
    )
    scoped = suite.run("odd_test.py", "mirrored")
    assert {test.split("::")[-1]: outcome.result for test, outcome in scoped.items()} == {
        "test_differs": "passed",  # as the report says: in a scope the test would fail
        "test_differs_a_lot": "failed",
        "test_ends_the_process": "missing",
        "test_fails": "failed",
        "test_same": "passed",
    }
    lines = report.read_text()
    assert lines.count('ends_the_process", "outcome": "begun"') == 2
    assert suite.run("odd_test.py", "mirrored") == scoped
    assert report.read_text() == lines


@pytest.mark.slow
def test_the_script_says_what_it_takes() -> None:
    result = subprocess.run(
        [sys.executable, keras_suite.__file__, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0
    assert "--reports" in result.stdout
