"""`jaxtribute.integrations.keras.Verify`: verifies the steps of `fit` and `evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from jaxtribute._src.addons.verify.asserting import NotOneDeviceError
from jaxtribute._src.addons.verify.report import text
from jaxtribute._src.addons.verify.verdict import Verdict
from jaxtribute._src.addons.verify.watching import KINDS, Watcher
from jaxtribute.extending import Callers, subscribe


class Verify(keras.callbacks.Callback):
    """A callback that checks that the steps of `fit` and `evaluate` do what they do on one device with the whole batch.

    Each step is verified once, before it first runs with this callback, as `jd.testing.verify` does it: no variable
    changes by it. A step that has run before is compiled anew for that.

    Args:
      raises: whether to raise an error if a step differs; otherwise `verdicts` says so.

    Attributes:
      verdicts: what came of each step.

    Raises:
      NotOneDeviceError: (in `fit`) a step differs, or could not be verified; the message is the report.

    Warns:
      UserWarning: there was no step to verify, as the model belongs to no strategy.
    """

    def __init__(self, *, raises: bool = True) -> None:
        super().__init__()
        self._raises = raises
        self._watcher = Watcher(self._told, None)
        self._ends: list[Callable[[], None]] = []
        self._looked_at: dict[str, Any] = {}
        """The functions of the model whose steps are looked at, by their attributes."""

    @property
    def verdicts(self) -> list[Verdict]:
        """The result for each step."""
        return self._watcher.verdicts

    def _told(self, verdict: Verdict) -> None:
        if self._raises and not verdict.right:
            self._end()
            raise NotOneDeviceError(text(verdict))

    def _begin(self) -> None:
        """Begins to look at steps."""
        self._end()
        self._ends.append(subscribe(self._watcher, *KINDS))

    def _end(self) -> None:
        """Looks at no more steps."""
        while self._ends:
            self._ends.pop()()

    def _begin_anew(self, name: str) -> None:
        """Begins to look at the steps of one of the model's functions, which may have run before."""
        if getattr(self.model, name) is not self._looked_at.get(name, self):
            getattr(self.model, f"make_{name}")(force=True)
            self._looked_at[name] = getattr(self.model, name)
        self._begin()

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins with the steps of `fit`."""
        del logs
        self._begin_anew("train_function")

    def on_test_begin(self, logs: Any = None) -> None:
        """Begins with the steps of `evaluate`, or of a validation."""
        del logs
        self._begin_anew("test_function")

    def on_train_end(self, logs: Any = None) -> None:
        """Ends, and says if there was no step."""
        del logs
        self._end()
        if not self.verdicts:
            Callers.warn(
                f"Verify() has verified nothing: no step of {type(self.model).__name__} ran on a strategy's replicas. "
                "HINT: make and compile the model in a strategy's scope, such as that of jd.MirroredStrategy(2)."
            )

    on_test_end = on_train_end

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Looks at the epoch's steps."""
        del epoch, logs
        self._begin()
