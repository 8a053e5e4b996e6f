"""How an attempt ended, in numbers and words."""

import json

import pytest

from jaxtribute._src.launcher.outcome import Kind, Outcome, exit_code, in_words


def test_an_outcome_travels() -> None:
    outcome = Outcome(Kind.FAILED, 3, 1, "ended", "Traceback", 2)
    assert Outcome.from_json(json.loads(json.dumps(outcome.as_json()))) == outcome


@pytest.mark.parametrize(
    ("returncode", "code", "words"),
    [
        (0, 0, "ended with exit code 0"),
        (3, 3, "ended with exit code 3"),
        (-9, 137, "was killed by SIGKILL"),
        (-33, 161, "was killed by signal 33"),
    ],
)
def test_return_codes(returncode: int, code: int, words: str) -> None:
    assert exit_code(returncode) == code
    assert in_words(returncode) == words
