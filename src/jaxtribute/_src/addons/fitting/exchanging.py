"""A user's script with another strategy than it names, in a process that only compiles."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import signature
from typing import Any

import jaxtribute as jd
from jaxtribute._src.addons.fitting.candidates import Candidate
from jaxtribute.experimental import AutomaticLayout

_KEPT = ("layout", "min_bytes", "regather", "communication_options")
"""Arguments of a user's strategy that the one in its place takes over, where it has them."""


class Exchanged:
    """The objects that a script has made in the place of its own.

    Attributes:
      strategies: those that stand in the place of the script's own.
      optimizers: the optimizers that it has made.
      own: what the script's strategy keeps of its own arguments.
      calls: the largest `accumulate_steps` of the script itself.
    """

    def __init__(self) -> None:
        self.strategies: list[jd.Strategy] = []
        self.optimizers: list[jd.Optimizer] = []
        self.calls = 1
        self.own: dict[str, Any] = {}

    @property
    def sliced(self) -> bool:
        """True if an optimizer updates slices of variables that each replica has whole."""
        return any(
            all(variable.policy.cut is None for variable in optimizer.trainable_variables)
            and any(slot.policy.cut is not None for slot in optimizer.variables)
            for optimizer in self.optimizers
        )


STRATEGIES = "MirroredStrategy", "MultiWorkerMirroredStrategy", "FullyShardedStrategy", "TPUStrategy"
"""The strategies in whose place another one can train, by their names in `jaxtribute`."""


def _classes() -> list[type[jd.Strategy]]:
    """The classes of those that are there."""
    found: list[type[jd.Strategy]] = []
    for name in STRATEGIES:
        with suppress(ImportError):  # that of TPUs is an add-on's
            found.append(getattr(jd, name))
    return found


def _kept(of: Any, args: tuple[Any, ...], given: dict[str, Any], wanted: Any) -> dict[str, Any]:
    """Arguments of the initializer `of`, those in their places too, as far as that of `wanted` takes them."""
    named, takes = signature(of).bind(None, *args, **given).arguments, signature(wanted).parameters
    return {name: named[name] for name in _KEPT if named.get(name) is not None and name in takes}


def _in_place(of: Any, wanted: type[jd.Strategy]) -> Callable[..., jd.Strategy]:
    """Makes a strategy of another class from arguments of the initializer `of`."""
    return lambda _, *args, **given: wanted(**_kept(of, args, given, wanted.__init__))


def _plainly_made(cls: type, *_: Any, **__: Any) -> Any:
    return object.__new__(cls)


def _settings(given: dict[str, Any], candidate: Candidate, layout: Any, tries: int) -> dict[str, Any]:
    """Arguments of the candidate's strategy, where `given` is kept of the script's own; see `exchanging`."""
    if candidate.per_replica == 1:
        return given
    if given.get("layout") in (None, "auto"):
        given = given | {"layout": layout if layout is not None else AutomaticLayout(tries=max(tries, 1))}
    return given | {"devices_per_replica": candidate.per_replica}


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
    begin: Any = wanted.__init__

    def replace(of: type, name: str, value: Any) -> None:
        # A class whose own `__new__` was taken away no longer takes arguments: it keeps a plain one.
        before = vars(of).get(name, staticmethod(_plainly_made))
        undo.append(lambda: setattr(of, name, before))
        setattr(of, name, value)

    for each in _classes():
        if each is not wanted:
            replace(each, "__new__", staticmethod(_in_place(each.__init__, wanted)))

    @wraps(begin)
    def begun(self: Any, *args: Any, **given: Any) -> None:
        kept = _kept(begin, args, given, begin)
        if candidate.per_replica == 1:
            kept.pop("layout", None)
        begin(self, **_settings(kept, candidate, layout, tries))
        made.own = {name: value if isinstance(value, int) else None for name, value in kept.items()}
        made.strategies.append(self)

    replace(wanted, "__init__", begun)
    replace(jd.Optimizer, "__init__", _optimizing(jd.Optimizer.__init__, candidate, made))
    jd.config.set_memory_budget(candidate.memory)
    if candidate.memory is not None:  # a script's own would take its place
        replace(jd.config, "set_memory_budget", lambda _: None)
    try:
        yield made
    finally:
        for back in reversed(undo):
            back()
        jd.config.set_memory_budget(None)


def _optimizing(begin: Any, candidate: Candidate, made: Exchanged) -> Any:
    @wraps(begin)
    def begun(self: Any, *args: Any, **given: Any) -> None:
        made.optimizers.append(self)
        made.calls = max(made.calls, given.get("accumulate_steps", 1))
        if candidate.accumulate > 1:  # the script's own batch may be a part of an update already
            given["accumulate_steps"] = candidate.accumulate * given.get("accumulate_steps", 1)
        if candidate.whole_slots:
            given["shard_update"] = False
        begin(self, *args, **given)

    return begun
