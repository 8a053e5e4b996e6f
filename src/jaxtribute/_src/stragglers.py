"""A line now and then on whom the workers of a cluster wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtribute._src.core.cluster import watch as watching
from jaxtribute._src.core.cluster.failures import say
from jaxtribute._src.core.cluster.watch import Watch
from jaxtribute._src.core.environment import reader, seconds

EVERY = "JAXTRIBUTE_STRAGGLERS_S"
_NOTABLE = 0.1
"""The share of the time that the others must have waited for a worker to be worth a line."""

Reports = Mapping[int, Mapping[str, Any]]


def install() -> None:
    """Has the first worker of each cluster say it."""
    watching.looks.append(_Stragglers)


class _Stragglers:
    """Says now and then whom the workers wait for.

    Args:
      watch: knows what the workers report.
      now: the moment of the first look.
    """

    def __init__(self, watch: Watch, now: float) -> None:
        self._watch = watch
        # One worker says it for all.
        self._every_s = interval_s() if watch.roster.rank == 0 else 0.0
        self._then, self._before = now, dict[int, dict[str, Any]]()

    def __call__(self, now: float) -> None:
        """Compares what workers report now with what they did before, if it is time."""
        passed_s = now - self._then
        if not self._every_s or passed_s < self._every_s:
            return
        before, self._then, self._before = self._before, now, self._watch.pulses.reports()
        text = comparison(before, self._before, passed_s, self._watch.roster.names)
        if text is not None:
            say(text)


def interval_s() -> float:
    """Seconds between two lines; 0 for none.

    Raises:
      ConfigError: the environment variable is no number.
    """
    return seconds(EVERY, 60.0, 0.0)


reader(EVERY, interval_s)


def comparison(before: Reports, after: Reports, seconds: float, names: Sequence[str]) -> str | None:
    """Compares the workers' times between two rounds of reports; None if nobody held the others up.

    In a synchronous step all wait for the slowest, which therefore waits least for the devices.

    Args:
      before: what each worker said of itself then.
      after: what it says now.
      seconds: the time between.
      names: the workers' names, by rank.
    """
    ranks = [rank for rank in range(len(names)) if rank in before and rank in after]
    # Before all have reported twice there is nothing to compare: the one that is missing may be the slowest.
    if len(ranks) < len(names) or seconds <= 0:
        return None
    spent = {rank: _spent(before[rank], after[rank]) for rank in ranks}
    if all(steps == 0 for steps, _, _ in spent.values()):
        return None
    # Whoever waited least is the one that the others waited for.
    slowest = min(ranks, key=lambda rank: spent[rank][2])
    most = max(waited for _, _, waited in spent.values())
    if most - spent[slowest][2] < _NOTABLE * seconds:
        return None
    parts = [
        f"{names[rank]} input {waited_input:.1f} s, waiting {waited:.1f} s of {steps} steps"
        for rank, (steps, waited_input, waited) in spent.items()
    ]
    cause = "its input" if spent[slowest][1] > _NOTABLE * seconds else "its own computation"
    return f"in {seconds:.0f} s: {'; '.join(parts)}. The others wait for {names[slowest]}, for {cause}"


def _spent(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int, float, float]:
    """Steps, seconds of waiting for input, and seconds of waiting for the devices."""
    steps, waited_input, waited = (after[key] - before[key] for key in ("step", "input_s", "waited_s"))
    return int(steps), float(waited_input), float(waited)
