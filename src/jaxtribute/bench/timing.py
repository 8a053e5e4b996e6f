"""Taking turns: calls that are compared run one after another, again and again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

_WAIT_EVERY = 8
"""Calls in flight at most: more can starve the threads of logical CPU devices."""


def alternate(calls: Mapping[str, Callable[[], Any]], *, count: int, rounds: int) -> dict[str, float]:
    """Median seconds of each call, `count` at a time, over `rounds` turns of all; one turn goes before.

    The numbers are fixed beforehand, and not by a clock, because all processes of a cluster must make the same calls.
    """
    for call in calls.values():
        _run(call, 2)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(_run(call, count))
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def _run(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    result = None
    for index in range(count):
        result = call()
        if index % _WAIT_EVERY == _WAIT_EVERY - 1:
            jax.block_until_ready(result)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / count
