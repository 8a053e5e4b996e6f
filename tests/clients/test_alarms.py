"""Keras's own tests go through `jaxtribute verify` in a strategy's scope: it raises no alarm."""

import importlib.util
from pathlib import Path

import pytest

from clients.alarms import ALARM
from clients.keras_suite import KNOWN_ALARMS, Suite
from samples import ALL_CASES

PARTS = ("trainers", "models", "callbacks", "metrics") if ALL_CASES else ("trainers/trainer_test.py::TestTrainer",)
EVERY = 1 if ALL_CASES else 80
"""Every so many of the tests are run: the same each time."""


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_keras_own_tests_raise_no_alarm(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    steps = tmp_path / "steps"
    for name, value in (("CLIENT_VERIFY", "1"), ("CLIENT_EVERY", str(EVERY)), ("CLIENT_STEPS", str(steps))):
        monkeypatch.setenv(name, value)
    outcomes = Suite(Path(spec.origin).parent / "src", tmp_path).run(part, "mirrored")
    raised = {test: outcome.reason for test, outcome in outcomes.items() if ALARM in outcome.reason}
    assert {test: reason for test, reason in raised.items() if not test.startswith(tuple(KNOWN_ALARMS))} == {}
    assert sum(outcome.result == "passed" for outcome in outcomes.values()) > len(outcomes) / 2
    assert steps.exists()
