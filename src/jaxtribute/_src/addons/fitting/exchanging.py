"""A user's script with another strategy than it names, in a process that only compiles."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import jaxtribute as jd
from jaxtribute._src.addons.fitting.candidates import SHARDED, Candidate
from jaxtribute.experimental import AutomaticLayout

_KEPT = ("layout", "min_bytes", "regather")
"""Arguments of a user's strategy that the one in its place takes over, where it has them."""


class Exchanged:
    """The objects that a script has made in the place of its own.

    Attributes:
      strategies: those that stand in the place of the script's own.
      optimizers: how many optimizers it has made.
    """

    def __init__(self) -> None:
        self.strategies: list[jd.Strategy] = []
        self.optimizers = 0


STRATEGIES = "MirroredStrategy", "MultiWorkerMirroredStrategy", "FullyShardedStrategy", "TPUStrategy"
"""The strategies in whose place another one can train, by their names in `jaxtribute`."""


def _classes() -> list[type[jd.Strategy]]:
    """The classes of those that are there."""
    found: list[type[jd.Strategy]] = []
    for name in STRATEGIES:
        with suppress(ImportError):  # that of TPUs is an add-on's
            found.append(getattr(jd, name))
    return found


def _plainly_made(cls: type, *_: Any, **__: Any) -> Any:
    return object.__new__(cls)


def _settings(given: dict[str, Any], candidate: Candidate, layout: Any, tries: int) -> dict[str, Any]:
    """Arguments of the candidate's strategy, where a script gives some to its own; see `exchanging`."""
    names = _KEPT if candidate.strategy == SHARDED else ("layout",)
    kept = {name: given[name] for name in names if name in given}
    if candidate.per_replica == 1:
        kept.pop("layout", None)
        return kept
    if kept.get("layout") in (None, "auto"):
        kept["layout"] = layout if layout is not None else AutomaticLayout(tries=max(tries, 1))
    return kept | {"devices_per_replica": candidate.per_replica}


@contextmanager
def exchanging(candidate: Candidate, layout: Any, tries: int) -> Generator[Exchanged]:
    """Makes the candidate's strategy wherever a synchronous one is made, and its settings the defaults.

    It changes public classes while it lasts, whoever has imported them: for processes that run a user's script for this
    alone.

    Args:
      candidate: the way of training.
      layout: for groups of devices whose script names none; None to choose it from the program.
      tries: programs that may be compiled for that.
    """
    made, undo = Exchanged(), list[Callable[[], None]]()
    wanted: type[jd.Strategy] = getattr(jd, candidate.strategy)

    def replace(of: type, name: str, value: Any) -> None:
        # A class whose own `__new__` was taken away no longer takes arguments: it keeps a plain one.
        before = vars(of).get(name, staticmethod(_plainly_made))
        undo.append(lambda: setattr(of, name, before))
        setattr(of, name, value)

    for each in _classes():
        if each is not wanted:
            replace(each, "__new__", staticmethod(lambda _, *__, **given: wanted(**given)))
    begin: Any = wanted.__init__

    @wraps(begin)
    def begun(self: Any, *_: Any, **given: Any) -> None:
        begin(self, **_settings(given, candidate, layout, tries))
        made.strategies.append(self)

    replace(wanted, "__init__", begun)
    replace(jd.Optimizer, "__init__", _accumulating(jd.Optimizer.__init__, candidate, made))
    jd.config.set_memory_budget(candidate.memory)
    try:
        yield made
    finally:
        jd.config.set_memory_budget(None)
        for back in reversed(undo):
            back()


def _accumulating(begin: Any, candidate: Candidate, made: Exchanged) -> Any:
    @wraps(begin)
    def begun(self: Any, *args: Any, **given: Any) -> None:
        made.optimizers += 1
        if candidate.accumulate > 1:
            given["accumulate_steps"] = candidate.accumulate
        begin(self, *args, **given)

    return begun
