"""What `jaxtribute verify` says of other people's programs while they run: `CLIENT_VERIFY=1` asks for it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ALARM = "jaxtribute verify raises an alarm"
ASKED = "CLIENT_VERIFY" in os.environ
COUNT = "CLIENT_STEPS"
"""Names a file that gets a line for each step that was compared."""


@contextmanager
def alarms() -> Generator[list[str]]:
    """Gives a list that gets the report on each step that is said to be wrong."""
    from jaxtribute._src.addons.verify.verdict import Verdict
    from jaxtribute._src.addons.verify.watching import KINDS, Watcher
    from jaxtribute.experimental import observe

    found: list[str] = []

    def told(verdict: Verdict) -> None:
        if not verdict.right:
            found.append(f"{ALARM}: {verdict}")
        if COUNT in os.environ:
            with Path(os.environ[COUNT]).open("a", encoding="utf-8") as file:
                file.write(f"{verdict.name}: {len(verdict.tried)} arrangements, {verdict.unverified}\n")

    with observe(Watcher(told, None), *KINDS):
        yield found


@contextmanager
def no_alarm() -> Generator[None]:
    """Raises an error at the end of the block if a step in it is said to be wrong."""
    with alarms() as found:
        yield
    assert not found, "; ".join(found)
