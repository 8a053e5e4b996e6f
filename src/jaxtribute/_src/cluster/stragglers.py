"""One line now and then on which worker the others wait for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtribute.errors import ConfigError

EVERY = "JAXTRIBUTE_STRAGGLERS_S"
_NOTABLE = 0.1
"""The share of the time that the others must have waited for a worker to be worth a line."""

Reports = Mapping[int, Mapping[str, Any]]


def interval_s() -> float:
    """Seconds between two lines; 0 for none.

    Raises:
      ConfigError: the environment variable is no number.
    """
    text = os.environ.get(EVERY, "60")
    try:
        return max(0.0, float(text))
    except ValueError:
        raise ConfigError(
            f"{EVERY}={text!r} is no number of seconds. HINT: unset it for 60, or 0 for no line."
        ) from None


def line(before: Reports, after: Reports, seconds: float, names: Sequence[str]) -> str | None:
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
    slowest = min(ranks, key=lambda rank: spent[rank][2])
    most = max(waited for _, _, waited in spent.values())
    if most - spent[slowest][2] < _NOTABLE * seconds:
        return None
    parts = [
        f"{names[rank]} input {given:.1f} s, waiting {waited:.1f} s of {steps} steps"
        for rank, (steps, given, waited) in spent.items()
    ]
    cause = "its input" if spent[slowest][1] > _NOTABLE * seconds else "its own computation"
    return f"in {seconds:.0f} s: {'; '.join(parts)}. The others wait for {names[slowest]}, for {cause}"


def _spent(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int, float, float]:
    """Steps, seconds of waiting for input, and seconds of waiting for the devices."""
    steps, given, waited = (after[key] - before[key] for key in ("step", "input_s", "waited_s"))
    return int(steps), float(given), float(waited)
