"""Where in the user's code a call comes from."""

from __future__ import annotations

import sys
import threading
from typing import Any

from jaxtribute._src.core.callers import caller, frame_of, located, stack


def test_the_users_own_line() -> None:
    line = sys._getframe().f_lineno + 1  # pyright: ignore[reportPrivateUsage]
    assert caller() == f"{__file__}:{line}"


def test_frames_of_the_library_are_passed_over() -> None:
    scope: dict[str, Any] = {"__name__": "jaxtribute.somewhere", "caller": caller}
    exec("def inner():\n    return caller()", scope)
    assert caller().rpartition(":")[0] == scope["inner"]().rpartition(":")[0] == __file__


def test_nobody() -> None:
    assert located(None) == "an unknown place"
    assert stack(None) == ""


def test_the_main_thread_seen_from_another() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend([located(frame_of()), stack(frame_of())]))
    thread.start()
    thread.join(10)
    assert found[0]
    assert "test_the_main_thread_seen_from_another" in found[1]
