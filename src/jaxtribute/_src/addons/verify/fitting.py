"""`jaxtribute.integrations.keras.Verify`: verifies the steps of `fit` and `evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from jaxtribute._src.addons.verify.asserting import NotOneDeviceError
from jaxtribute._src.addons.verify.report import text
from jaxtribute._src.addons.verify.verdict import Verdict
from jaxtribute._src.addons.verify.watching import KINDS, Watcher
from jaxtribute.extending import subscribe


class Verify(keras.callbacks.Callback):
    """A callback that checks that the steps of `fit` and `evaluate` do what they do on one device with the whole batch.

    Each step is verified once, before it first runs, as `jd.testing.verify` does it: no variable changes by it.

    Args:
      raises: whether to raise an error if a step differs; otherwise `verdicts` says so.

    Attributes:
      verdicts: what came of each step.

    Raises:
      NotOneDeviceError: (in `fit`) a step differs, or could not be verified; the message is the report.
    """

    def __init__(self, *, raises: bool = True) -> None:
        super().__init__()
        self._raises = raises
        self._watcher = Watcher(self._told, None)
        self._ends: list[Callable[[], None]] = []

    @property
    def verdicts(self) -> list[Verdict]:
        """The result for each step."""
        return self._watcher.verdicts

    def _told(self, verdict: Verdict) -> None:
        if self._raises and not (verdict.right and verdict.tried):
            self._end()
            raise NotOneDeviceError(text(verdict))

    def _begin(self, logs: Any = None) -> None:
        """Begins to look at steps."""
        del logs
        self._end()
        self._ends.append(subscribe(self._watcher, *KINDS))

    def _end(self, logs: Any = None) -> None:
        """Looks at no more steps."""
        del logs
        while self._ends:
            self._ends.pop()()

    on_train_begin = on_test_begin = _begin
    on_train_end = on_test_end = _end

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Looks at the epoch's steps."""
        del epoch
        self._begin(logs)
