"""`Progress`: what the steps of one device have changed of what is trained, and by how much."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.comparing import Before, shows
from jaxtribute._src.addons.verify.operations import as_wide, is_key
from jaxtribute._src.addons.verify.stage import Outcome

_PLAIN = 100.0
"""Times what may differ: of a smaller change a mistake of some percent is not seen."""


class Progress:
    """Changes that some steps have made."""

    def __init__(self) -> None:
        self._trained: set[Any] = set()
        self._changed: set[Any] = set()
        self._plain = self._shown = False

    def add(self, one: Outcome, before: Before) -> bool:
        """Adds a step; returns True if it shows more than those before it."""
        self._trained, changed = _changes(one, before)
        plain = bool(changed) and shows(one, before, _PLAIN)
        more = not changed <= self._changed or (plain and not self._plain)
        self._changed |= changed
        self._plain = self._plain or plain
        self._shown = self._shown or (bool(changed) and shows(one, before, slots=True))
        return more

    @property
    def complete(self) -> bool:
        """True if nothing is to be expected of further steps."""
        return self._changed >= self._trained and (self._plain or not self._trained)

    @property
    def faint(self) -> bool:
        """True if something has changed, and by so little that a mistake in it may pass for rounding."""
        return bool(self._changed) and not self._plain

    @property
    def still(self) -> bool:
        """True if something is trained, and no step has changed it by more than rounding."""
        return bool(self._trained) and not self._shown


def _changes(one: Outcome, before: Before) -> tuple[set[Any], set[Any]]:
    """Returns what a step may have trained; and what of it has changed."""
    pairs: dict[Any, tuple[Any, Any]] = {
        variable: (value, before.variables[variable]) for variable, value in one.written.items() if variable.trainable
    }
    pairs.update({path: (one.outputs[path], old) for path, old in before.results.items()})
    real = {key: pair for key, pair in pairs.items() if not is_key(pair[0]) and pair[0].dtype.kind in "fc"}
    return set(real), {key for key, (new, old) in real.items() if not np.array_equal(new, as_wide(old))}
