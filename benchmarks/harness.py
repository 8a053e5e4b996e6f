"""Alternating measurement: each contender is a process (or part of one) that runs steps when asked.

Timings on shared machines drift, so contenders take turns (A B A B ...) and medians and ratios are reported.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DEADLINE_S = 300.0


@dataclass
class Result:
    """What one contender did: seconds a step for each round, and its last loss."""

    name: str
    seconds: list[float] = field(default_factory=list)
    loss: float = float("nan")

    @property
    def median(self) -> float:
        """Median seconds a step."""
        return statistics.median(self.seconds)


class Peer:
    """A Python process that serves `steps N` requests on its standard input; see `serve`."""

    def __init__(self, module: str, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.names: list[str] = self._read()["names"]

    def steps(self, name: str, count: int) -> tuple[float, float]:
        """Runs `count` steps of contender `name`; returns seconds a step and the last loss."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": name, "count": count}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return answer["seconds"], answer["loss"]

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with code {self._process.wait(DEADLINE_S)}; see its output above")
        return json.loads(line)


def serve(contenders: Mapping[str, Any]) -> None:
    """Answers a `Peer`'s requests until it closes: each contender is a function `(count) -> (seconds, loss)`."""
    print(json.dumps({"names": list(contenders)}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        seconds, loss = contenders[request["name"]](request["count"])
        print(json.dumps({"seconds": seconds, "loss": loss}), flush=True)


def alternate(contenders: Sequence[tuple[Peer, str, str]], *, steps: int, rounds: int, warmup: int = 2) -> list[Result]:
    """Lets contenders `(peer, name in the peer, label)` take turns.

    Args:
      contenders: who takes part.
      steps: steps a turn.
      rounds: counted turns of each.
      warmup: turns of each that are not counted; the losses after them must agree.

    Raises:
      AssertionError: the contenders' losses differ by more than 1e-5 (relative) after the warm-up.
    """
    results = [Result(label) for _, _, label in contenders]
    for _ in range(warmup):
        for result, (peer, name, _) in zip(results, contenders, strict=True):
            result.loss = peer.steps(name, steps)[1]
    for result in results:
        first = results[0].loss
        assert abs(result.loss - first) <= 1e-5 * max(abs(first), 1e-3), f"{result.name}: {result.loss} != {first}"
    for _ in range(rounds):
        for result, (peer, name, _) in zip(results, contenders, strict=True):
            result.seconds.append(peer.steps(name, steps)[0])
    return results


def ratio(numerator: Result, denominator: Result) -> float:
    """Median over the rounds of the ratio of neighbouring turns."""
    return statistics.median(a / b for a, b in zip(numerator.seconds, denominator.seconds, strict=True))
