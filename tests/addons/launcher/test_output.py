"""The ranks' output: read without waiting for it, and carried on."""

import asyncio
import fcntl
import os
import re
import shutil
import struct
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.launcher import output
from jaxtribute._src.addons.launcher.output import OutputReader, RankOutput, open_log

TRACEBACK = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    {}["x"]
KeyError: 'x'"""
CHAINED = f"""{TRACEBACK}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    raise ValueError("boom")
ValueError: boom"""


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is printed, each piece with the prefix that the terminal puts before it."""
    found: list[bytes] = []
    monkeypatch.setattr(output, "write", lambda prefix, data: found.append((prefix or b"") + data))
    return found


def test_lines_get_a_prefix(written: list[bytes]) -> None:
    rank = RankOutput(b"[1] ", shown=True, log=None)
    rank.feed(b"on")
    assert written == []
    rank.feed(b"e\ntwo\r\n 10%\r 90%\r100%\nla")
    assert written == [b"[1] one\n[1] two\n[1] 100%\n"]
    rank.close()
    assert written[-1] == b"[1] la\n"
    assert rank.last_line() == "la"


@given(st.lists(st.text("ab\r\n", max_size=5).map(str.encode), max_size=8))
def test_what_is_shown_in_time_ends_as_the_lines_are(pieces: list[bytes]) -> None:
    shown: list[bytes] = []

    def show(prefix: bytes | None, data: bytes) -> None:  # as the terminal puts prefixes
        shown.append(data if shown and not shown[-1].endswith(b"\n") else (prefix or b"") + data)

    rank = RankOutput(b"> ", shown=True, log=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "write", show)
        for piece in pieces:
            rank.feed(piece)
            rank.feed(b"")
            line = b"".join(pieces[: pieces.index(piece) + 1]).rpartition(b"\n")[2]
            if pieces.count(piece) == 1 and line.strip(b"\r"):
                seen = b"".join(shown).rpartition(b"\n")[2].strip(b"\r").rpartition(b"\r")[2]
                assert seen.endswith(line.strip(b"\r").rpartition(b"\r")[2])
        rank.close()
    drawn = b"".join(shown).split(b"\n")[:-1]
    assert [line.strip(b"\r").rpartition(b"\r")[2] for line in drawn] == [b"> " + line for line in rank.lines()]


@pytest.mark.parametrize("prefix", [None, b""])
def test_what_every_start_prints_is_left_to_the_log(written: list[bytes], prefix: bytes | None, tmp_path: Path) -> None:
    log = open_log(tmp_path, 0, 0)
    rank = RankOutput(prefix, shown=True, log=log)
    rank.feed(b"one\n[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\ntwo\n")
    rank.feed(b"W1120 14:3 1 service.cc:185] [9] Using experimental recoverable task feature. The default\nthree\n")
    rank.close()
    assert b"".join(written) == b"one\ntwo\nthree\n"
    assert (tmp_path / "rank-0.log").read_text().count("\n") == 5


@given(st.lists(st.integers(0, 2), min_size=3, max_size=21))
def test_lines_that_threads_print_at_once_are_left_to_the_log(turns: list[int]) -> None:
    """Each thread prints its line in pieces, and a piece stays whole."""
    pieces = ["[Gloo] Rank ", "{}", " is connected to ", "3", " peer ranks. "]
    pieces += ["Expected number of connected peer ranks is : ", "3\n"]
    left = [[piece.format(rank) for piece in pieces] for rank in range(3)]
    text = ""
    for turn in [*turns, *sorted([0, 1, 2] * 7)]:
        text += left[turn].pop(0) if left[turn] else ""
    rank = RankOutput(b"", shown=False, log=None)
    rank.feed(
        b"peer ranks. 3 is a line of mine\n7\n\n"
        + text.encode()
        + b"[Gloo] Rank 3 is mine too\n3 is connected to 4\n 8 \n"
    )
    # Of a line that ends early there may be left what a program may print, too, such as "3 is connected to 4".
    rest = [line for line in rank.lines() if line.replace(b" is connected to ", b"").strip(b" 0123456789")]
    assert rest == [b"peer ranks. 3 is a line of mine", b"[Gloo] Rank 3 is mine too"]
    assert {b"7", b"3 is connected to 4", b" 8 "} <= set(rank.lines())


def test_a_bare_output_is_passed_on_as_it_comes(written: list[bytes]) -> None:
    rank = RankOutput(None, shown=True, log=None)
    rank.feed(b" 10%\r 90%")
    assert written == [b" 10%\r 90%"]


def test_what_is_not_shown_is_in_the_log(written: list[bytes], tmp_path: Path) -> None:
    for restart in (0, 1):
        rank = RankOutput(b"[1] ", shown=False, log=open_log(tmp_path / "logs", 1, restart))
        rank.feed(b"hidden\n")
        rank.close()
    assert written == []
    assert (tmp_path / "logs" / "rank-1.log").read_bytes() == b"hidden\n\n--- restart 1\nhidden\n"
    # Another launch into the same folder, such as a job's that was put back into its queue.
    RankOutput(b"", shown=False, log=open_log(tmp_path / "logs", 1, 0)).close()
    assert re.search(
        rb"hidden\n\n--- start of 2\d\d\d-[-0-9]+ [:0-9]+\n$", (tmp_path / "logs" / "rank-1.log").read_bytes()
    )
    assert open_log(None, 0, 0) is None


@pytest.mark.parametrize("kept", [True, False])
def test_a_log_that_is_deleted_is_told_once(
    kept: bool, written: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = RankOutput(b"[1] ", shown=False, log=open_log(tmp_path / "logs", 1, 0))
    rank.feed(b"one\n")
    log = tmp_path / "logs" / "rank-1.log"
    if kept:
        log.rename(tmp_path / "old.log")
    else:
        shutil.rmtree(tmp_path / "logs")
    for _ in range(3):
        rank.feed(b"more\n")
    rank.close()
    assert capsys.readouterr().err.count(f"the log {log} was deleted") == (0 if kept else 1)


@pytest.mark.parametrize("before", ["before\n", "half a line ", "\r 40 % ####\r 50 % #####", "x" * (2 << 20)])
@pytest.mark.parametrize("text", [TRACEBACK, CHAINED])
def test_a_traceback_is_found(text: str, before: str) -> None:
    rank = RankOutput(b"", shown=False, log=None)
    rank.feed(before.encode())
    rank.feed(f"{text}\nE1127 14:3 1 service.cc:185] after\n".encode())
    assert rank.traceback() == text


def test_of_two_tracebacks_it_is_the_last() -> None:
    rank = RankOutput(b"", shown=False, log=None)
    rank.feed(f"{TRACEBACK}\nwent on\n{CHAINED}".encode())
    rank.close()
    assert rank.traceback() == CHAINED


def test_without_a_traceback_there_is_none() -> None:
    rank = RankOutput(b"", shown=False, log=None)
    assert (rank.traceback(), rank.last_line()) == ("", "")
    rank.feed(b"word\n\n")
    assert (rank.traceback(), rank.last_line()) == ("", "word")


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_lines_do_not_depend_on_how_they_arrive(pieces: list[bytes]) -> None:
    def lines(parts: list[bytes]) -> list[bytes]:
        rank = RankOutput(b"", shown=False, log=None)
        for part in parts:
            rank.feed(part)
        rank.close()
        return rank.lines()

    assert lines(pieces) == lines([b"".join(pieces)])


def read(write: Callable[[OutputReader], object], *, terminal: bool = False, patience_s: float = 10.0) -> list[bytes]:
    """What arrives of what `write` writes to the child's end."""
    found: list[bytes] = []

    async def run() -> None:
        reader = OutputReader(found.append, terminal=terminal)
        try:
            write(reader)
            await asyncio.sleep(0)
        finally:
            if patience_s > 1:
                os.close(reader.child_end)
            await reader.finish(patience_s)
            await reader.finish(0.01)  # again is harmless
            assert reader.terminal is None
        if patience_s <= 1:
            os.close(reader.child_end)

    asyncio.run(run())
    return found


@pytest.mark.parametrize("terminal", [False, True])
def test_all_arrives_until_the_end(terminal: bool) -> None:
    found = read(lambda reader: os.write(reader.child_end, b"one\ntwo"), terminal=terminal)
    assert b"".join(found) == b"one\ntwo"


def test_a_prompt_is_shown_before_its_line_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_SHOW_S", 0.01)
    found: list[bytes] = []
    asked = threading.Event()

    def feed(data: bytes) -> None:
        found.append(data)
        if not data:
            asked.set()

    async def run() -> None:
        reader = OutputReader(feed, terminal=False)
        os.write(reader.child_end, b"Name? ")
        assert asked.wait(10)
        os.write(reader.child_end, b"Bob\n")
        os.close(reader.child_end)
        await reader.finish(10)

    asyncio.run(run())
    assert found == [b"Name? ", b"", b"Bob\n"]


def test_much_arrives_in_pieces() -> None:
    found = read(lambda reader: os.write(reader.child_end, b"x" * 60000))
    assert sum(map(len, found)) == 60000


def test_who_keeps_the_pipe_open_is_not_waited_for() -> None:
    assert b"".join(read(lambda reader: os.write(reader.child_end, b"x"), patience_s=0.05)) == b"x"


def test_a_terminal_has_a_size_and_is_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
        with os.fdopen(os.dup(theirs), "w") as screen:
            monkeypatch.setattr("sys.stdout", screen)

            def look(reader: OutputReader) -> None:
                assert os.get_terminal_size(reader.child_end) == (77, 33)
                assert reader.terminal is not None
                assert not termios.tcgetattr(reader.child_end)[1] & termios.OPOST

            read(look, terminal=True)
    finally:
        os.close(ours)
        os.close(theirs)
