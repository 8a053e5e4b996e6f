"""Reading what a process prints without waiting for it."""

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable

import pytest

from jaxtribute._src.launcher.reading import Reader


def read(write: Callable[[Reader], object], *, terminal: bool = False, patience_s: float = 10.0) -> list[bytes]:
    """What arrives of what `write` writes to the child's end."""
    found: list[bytes] = []

    async def run() -> None:
        reader = Reader(found.append, terminal=terminal)
        try:
            write(reader)
            await asyncio.sleep(0)
        finally:
            if patience_s > 1:
                os.close(reader.child_end)
            await reader.finish(patience_s)
            await reader.finish(0.0)  # again is harmless
            assert reader.terminal is None
        if patience_s <= 1:
            os.close(reader.child_end)

    asyncio.run(run())
    return found


@pytest.mark.parametrize("terminal", [False, True])
def test_all_arrives_until_the_end(terminal: bool) -> None:
    found = read(lambda reader: os.write(reader.child_end, b"one\ntwo"), terminal=terminal)
    assert b"".join(found) == b"one\ntwo"


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

            def look(reader: Reader) -> None:
                assert os.get_terminal_size(reader.child_end) == (77, 33)
                assert reader.terminal is not None
                assert not termios.tcgetattr(reader.child_end)[1] & termios.OPOST

            read(look, terminal=True)
    finally:
        os.close(ours)
        os.close(theirs)


def test_other_errors_are_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        reader = Reader(lambda _: None, terminal=False)
        os.close(reader.child_end)

        def fail(*_: object) -> bytes:
            raise PermissionError(1, "no")

        with monkeypatch.context() as patched:
            patched.setattr(os, "read", fail)
            with pytest.raises(PermissionError):
                reader._read()  # pyright: ignore[reportPrivateUsage]
            patched.setattr(os, "read", lambda *_: _raise(BlockingIOError()))
            reader._read()  # pyright: ignore[reportPrivateUsage]
        await reader.finish(5.0)

    asyncio.run(run())


def _raise(error: BaseException) -> bytes:
    raise error
