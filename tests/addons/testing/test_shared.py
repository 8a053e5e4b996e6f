"""Tests share processes; there are never many of them."""

from typing import Any

import pytest

from jaxtribute._src.addons.testing import shared
from jaxtribute._src.addons.testing.shared import SharedRunners

pytestmark = pytest.mark.slow


class Runner:
    """Stands for a runner, which would start processes."""

    def __init__(self, workers: int, devices: int | None, **more: object) -> None:
        self.shape, self.more, self.pids = (workers, devices), more, (workers,)
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_the_one_not_used_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MultiProcessRunner", Runner)
    with SharedRunners() as runners:
        runners.environment["MINE"] = "1"
        first: Any = runners(1)
        second: Any = runners(2, 2)
        assert runners(1) is first
        third: Any = runners(3)
        assert [one.closed for one in (first, second, third)] == [False, True, False]
        assert runners.pids == {1, 3}
        assert first.more["env"] == {"MINE": "1"}
    assert third.closed
    assert runners.pids == frozenset()
