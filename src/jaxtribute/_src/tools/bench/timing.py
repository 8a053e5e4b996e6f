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
    # The first calls compile.
    for call in calls.values():
        seconds_a_call(call, 2)
    seconds = in_turns(calls, dict.fromkeys(calls, count), rounds)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def in_turns(calls: Mapping[str, Callable[[], Any]], counts: Mapping[str, int], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each of `rounds` turns of all; in its turn each is made as often as `counts` says."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(seconds_a_call(call, counts[name]))
    return seconds


def seconds_a_call(call: Callable[[], Any], count: int) -> float:
    """Seconds of one of `count` calls that return arrays, of which some are in flight at a time."""
    start = time.perf_counter()
    result = None
    for index in range(count):
        result = call()
        if index % _WAIT_EVERY == _WAIT_EVERY - 1:
            jax.block_until_ready(result)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / count
