"""The command line that all peers of training steps share."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.problems import Problem, make

Step = Callable[[int], tuple[float, float]]
"""Runs that many steps; returns seconds a step and the last loss."""


@dataclass
class Asked:
    """What a peer is to measure."""

    problem: Problem
    devices: int
    """Logical devices of this process."""
    contenders: list[str]
    plain: bool
    """Set up the devices as plain JAX does, with no library at all."""


def parse() -> Asked:
    """The command line of this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--problem", default="64-256-10")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--contender", action="append", required=True)
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    return Asked(make(given.problem, given.batch), given.devices, given.contender, given.plain)


def timed(step: Callable[[], Any], wait: Callable[[Any], float], wait_every: int = 0) -> Step:
    """Runs `step` many times, waiting now and then for its loss where that is needed."""

    def run(count: int) -> tuple[float, float]:
        start = time.perf_counter()
        loss = None
        for index in range(count):
            loss = step()
            if wait_every and index % wait_every == wait_every - 1:
                wait(loss)
        value = wait(loss)
        return (time.perf_counter() - start) / count, value

    return run
