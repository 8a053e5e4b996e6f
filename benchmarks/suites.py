"""What is measured: problems, contenders and bars."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import Peer, Result, alternate, ratio


@dataclass
class Row:
    """One contender's figures: seconds a step, or bytes."""

    name: str
    median: float
    low: float
    high: float
    unit: str = "s"
    ratio: float | None = None
    """The library's median ratio to this contender, round by round."""
    bar: float | None = None
    """What the ratio should not exceed."""

    def shown(self, value: float) -> str:
        """The value for people."""
        if self.unit == "bytes":
            return f"{value / 2**20:.0f} MiB"
        return f"{value * 1e6:.0f} us" if value < 0.01 else f"{value * 1e3:.1f} ms"


@dataclass
class Comparison:
    """The contenders at one problem, the library first."""

    problem: str
    rows: list[Row]

    def as_json(self) -> dict[str, Any]:
        """For the file of results."""
        return asdict(self)


@dataclass
class Contender:
    """A step in a process with the library's CPU settings, or in a `plain` one that knows nothing of it."""

    name: str
    bar: float | None = None
    plain: bool = False

    @property
    def label(self) -> str:
        """The name for the table."""
        return self.name + (", JAX's default settings" if self.plain else "")


def compare(
    problem: str, arguments: Sequence[str], contenders: Sequence[Contender], steps: int, rounds: int
) -> Comparison:
    """Lets the contenders take turns at one problem; the first is the library."""
    peers: dict[bool, Peer] = {}
    try:
        for plain in (False, True):
            names = [one.name for one in contenders if one.plain is plain]
            if names:
                flags = [flag for name in names for flag in ("--contender", name)]
                peers[plain] = Peer("benchmarks.mlp", [*arguments, *flags, *(["--plain"] if plain else [])])
        turns = [(peers[one.plain], one.name, one.label) for one in contenders]
        results = alternate(turns, steps=steps, rounds=rounds)
    finally:
        for peer in peers.values():
            peer.close()
    return Comparison(
        problem,
        [_row(one, result, results[0]) for one, result in zip(contenders, results, strict=True)],
    )


def _row(contender: Contender, result: Result, library: Result) -> Row:
    against = None if result is library else ratio(library, result)
    return Row(
        contender.label,
        statistics.median(result.seconds),
        min(result.seconds),
        max(result.seconds),
        ratio=against,
        bar=contender.bar,
    )


def _mlp(layers: str, batch: int, devices: int) -> list[str]:
    return ["--layers", layers, "--batch", str(batch), "--devices", str(devices)]


def step(quick: bool) -> list[Comparison]:
    """The digits MLPs against hand-written JAX on 1, 2 and 4 devices."""
    found: list[Comparison] = []
    for layers, batch in (("64-256-10", 64), ("64-256-256-10", 256)):
        for devices in (1, 2, 4):
            bar = 1.05 if devices == 1 else 1.0
            others = [Contender("named-sharding", bar)] + ([Contender("shard-map")] if devices > 1 else [])
            contenders = [Contender("jaxtribute"), *others]
            problem = f"{layers}, batch {batch}, {devices} device(s)"
            rounds = 3 if quick else 31
            found.append(compare(problem, _mlp(layers, batch, devices), contenders, 20 if quick else 200, rounds))
    return found


def packing(quick: bool) -> list[Comparison]:
    """100 small variables on 4 devices against one collective a variable."""
    contenders = [Contender("jaxtribute"), Contender("shard-map", 0.25), Contender("named-sharding", 0.25)]
    problem = "100 variables of 4x4, batch 64, 4 devices"
    return [compare(problem, _mlp("small-100", 64, 4), contenders, 10 if quick else 50, 3 if quick else 15)]


def large(quick: bool) -> list[Comparison]:
    """The 784-2048-2048-10 MLP against `shard_map`, in a default process and in one with the same settings."""
    found: list[Comparison] = []
    for devices in (2, 4):
        contenders = [
            Contender("jaxtribute"),
            Contender("shard-map", 1.03),
            Contender("shard-map", 1 / 1.6, plain=True),
            Contender("jaxtribute-sharded"),
            Contender("jaxtribute-whole"),
        ]
        problem = f"784-2048-2048-10, batch 128, {devices} devices"
        arguments = _mlp("784-2048-2048-10", 128, devices)
        found.append(compare(problem, arguments, contenders, 4 if quick else 10, 3 if quick else 11))
    return found


def memory(quick: bool) -> list[Comparison]:
    """Peak memory of a step over 400 MB of parameters, as a multiple of the parameters."""
    del quick
    peer = Peer("benchmarks.memory", [])
    try:
        peak, _ = peer.steps("sgd", 3)
        created, _ = peer.steps("creation", 0)
        bare, _ = peer.steps("parameters", 0)
    finally:
        peer.close()
    rows = [
        Row("jaxtribute: peak of 3 steps", peak, peak, peak, "bytes"),
        Row("jaxtribute: peak of making the variables", created, created, created, "bytes"),
        Row("the parameters alone", bare, bare, bare, "bytes", ratio=peak / bare, bar=2.2),
    ]
    return [Comparison("SGD over 400 MB, one device", rows)]
