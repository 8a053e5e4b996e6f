"""What the launcher says of a rank that Gloo has aborted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxtribute._src import last_call
from jaxtribute._src.addons.launcher import last_calls
from jaxtribute._src.addons.launcher.attempt import Kind, exit_code, failure
from jaxtribute._src.addons.launcher.last_calls import LastCalls
from jaxtribute._src.addons.launcher.output import RankOutput

MISMATCH = b"""loss 3.0
terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at external/gloo/transport/tcp/pair.cc:459] op.preamble.length <= op.nbytes. 32 vs 8. Received
"""
ODD = b"libc++abi: terminating due to uncaught exception of type gloo::IoException: broken\n"
TRACEBACK = b"Traceback (most recent call last):\nValueError: boom\n"


def words(code: int, text: bytes, calls: dict[int, str]) -> str:
    output = RankOutput(b"", shown=False, log=None)
    output.feed(text)
    output.close()
    outcome = failure(code, 1, output, 1, calls)
    assert (outcome.kind, outcome.code, outcome.rank, outcome.killed) == (
        Kind.FAILED,
        1 if b"Traceback" in text else exit_code(code),
        1,
        1,
    )
    return outcome.words


@pytest.mark.parametrize("after", [b"", b"Fatal Python error: Aborted\n\nThread 0x01 (most recent call first):\n"])
def test_the_calls_of_all_are_told(after: bytes) -> None:
    found = words(-6, MISMATCH + after, {0: "step 6 of train, after 6 batches", 1: "step 5 of train, after 6 batches"})
    assert found.startswith("was killed by SIGABRT, as its collective does not fit to those of the others, or broke")
    assert "(Gloo: op.preamble.length <= op.nbytes. 32 vs 8. Received). The last calls were:\n" in found
    assert "\n  rank 0: step 6 of train, after 6 batches\n  rank 1: step 5 of train, after 6 batches\nHINT: " in found
    assert "JAXTRIBUTE_DEBUG=collectives" in found


def test_what_is_not_known_is_left_out() -> None:
    assert "broke (Gloo). The last calls were: not told\nHINT: " in words(-6, ODD, {})


@pytest.mark.parametrize(
    ("code", "text"), [(-6, b"loss 3.0\n"), (-11, MISMATCH), (3, MISMATCH), (-9, MISMATCH), (-6, TRACEBACK + MISMATCH)]
)
def test_other_ends_are_told_as_they_are(code: int, text: bytes) -> None:
    assert "does not fit" not in words(code, text, {0: "step 6 of train"})


def test_files(tmp_path: Path) -> None:
    files = LastCalls(tmp_path)
    assert files.read() == {}
    for rank in (10, 9, 0):
        (name,) = files.environment(rank)
        assert name == last_call.FILE == last_calls.FILE
    (tmp_path / "certificate").touch()
    assert files.read() == {}
    for rank, text in ((10, "step 2\nep 10 of what was longer"), (9, "step 1\n")):
        path = Path(files.environment(rank)[last_call.FILE])
        with os.fdopen(os.open(path, os.O_WRONLY), "wb") as file:
            file.write(text.encode())
    assert files.read() == {9: "step 1", 10: "step 2"}
