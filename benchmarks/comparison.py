"""Contenders at one problem, and their figures."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.environments import python_of
from benchmarks.harness import Group, Peer, Result, alternate, ratio

if TYPE_CHECKING:
    from tests.support.namespaces import Machine

TUNED = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
"""glibc keeps freed memory, as the library tells it to."""


@dataclass
class Row:
    """One contender's figures."""

    name: str
    median: float
    low: float
    high: float
    unit: str = "s"
    ratio: float | None = None
    """The library's median ratio to this contender, round by round."""
    bar: float | None = None
    """What the ratio should not exceed."""
    loss: float | None = None
    """The final one."""

    def shown(self, value: float) -> str:
        """The value for people."""
        if self.unit == "bytes":
            return f"{value / 2**20:.0f} MiB" if value >= 2**20 else f"{value:,.0f} bytes"
        if self.unit != "s":
            return f"{value:.3g} {self.unit}"
        return f"{value * 1e6:.1f} us" if value < 1e-4 else f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.2f} s"

    @property
    def met(self) -> str:
        """Whether it is within its bar, in a word; empty where there is none."""
        return "" if self.bar is None or self.ratio is None else "yes" if self.ratio <= self.bar else "no"


@dataclass
class Comparison:
    """The contenders at one problem, the library first."""

    problem: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For the file of results."""
        return asdict(self)


@dataclass(frozen=True)
class Kind:
    """A process, or a cluster of them, in which contenders run.

    Attributes:
      module: what runs there.
      environment: the environment of its own that it needs; None for the library's.
      flags: more of its command line.
      env: environment variables, as pairs.
      suffix: for the labels of its contenders.
      python: an interpreter of another state of the library.
    """

    module: str = "benchmarks.peers.jax_steps"
    environment: str | None = None
    flags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    suffix: str = ""
    python: str | None = None


LIBRARY = Kind()
"""The processes of the library; JAX by hand in the same ones has its settings."""
PLAIN = Kind(flags=("--plain",), suffix=", default settings")
PLAIN_TUNED = Kind(flags=("--plain",), env=tuple(TUNED.items()), suffix=", tuned allocator")
BIG_POOL = Kind(env=(("PJRT_NPROC", "8"),), suffix=", 8 threads")
KERAS = Kind("benchmarks.peers.keras_steps", suffix=" (JAX)")
TENSORFLOW = Kind("benchmarks.peers.tensorflow_steps", "tensorflow")
TORCH = Kind("benchmarks.peers.torch_steps", "torch")


@dataclass(frozen=True)
class Contender:
    """A way to take the step.

    Attributes:
      name: what its peer calls it.
      kind: where it runs.
      bar: what the library's ratio to it should not exceed.
      same: whether it computes the same, so that its losses are checked.
      most_steps: the most steps of a turn, if one takes seconds; None for as many as the others take.
    """

    name: str
    kind: Kind = LIBRARY
    bar: float | None = None
    same: bool = True
    most_steps: int | None = None

    @property
    def label(self) -> str:
        """The name for the table."""
        return self.name + self.kind.suffix


def compare(
    problem: str,
    arguments: Sequence[str],
    contenders: Sequence[Contender],
    *,
    steps: int,
    rounds: int,
    workers: int = 1,
    tolerance: float = 1e-4,
    machines: Sequence[Machine] = (),
    check_steps: int = 16,
) -> Comparison:
    """Lets the contenders take turns at one problem; the first is the library.

    Args:
      problem: its name for the table.
      arguments: the command line that all peers get.
      contenders: who takes part.
      steps: steps a turn.
      rounds: counted turns.
      workers: processes of each contender.
      tolerance: how far the losses may differ, relative: after `check_steps`, and after the warm-up.
      machines: where the processes of several run; this machine by default.
      check_steps: steps of the first turn, after which the losses are compared.
    """
    found = {one.label: Result(one.label) for one in contenders}
    # Who starts first is some 2 % slower all along: half of the rounds are with processes that start in reverse order.
    for order, turns in ((contenders, rounds - rounds // 2), (contenders[::-1], rounds // 2)):
        for result in _measured(order, arguments, steps, turns, workers, tolerance, machines, check_steps):
            found[result.name].add(result)
    return Comparison(problem, rows_of(contenders, list(found.values())))


def _measured(
    contenders: Sequence[Contender],
    arguments: Sequence[str],
    steps: int,
    rounds: int,
    workers: int,
    tolerance: float,
    machines: Sequence[Machine],
    check_steps: int,
) -> list[Result]:
    """What some rounds give, with processes that start in the order of the contenders."""
    peers: list[Peer | Group] = []
    try:
        # Programs that share a process would get in each other's way a little.
        peers.extend(_start(one.kind, [*arguments, "--contender", one.name], workers, machines) for one in contenders)
        for peer in peers:  # they start side by side, which takes most of a suite's time
            peer.wait()
        return alternate(
            [(peer, one.name, one.label) for peer, one in zip(peers, contenders, strict=True)],
            steps=steps,
            rounds=rounds,
            check_steps=check_steps,
            lead=1 if steps % 16 else 16,  # contenders that take 16 steps a call take part where `steps` allows it
            tolerance=tolerance,
            unchecked=[one.label for one in contenders if not one.same],
            few={one.label: one.most_steps for one in contenders if one.most_steps},
        )
    finally:
        for peer in peers:
            peer.hang_up()
        for peer in peers:
            peer.close()


def _start(kind: Kind, arguments: Sequence[str], workers: int, machines: Sequence[Machine]) -> Peer | Group:
    python = python_of(kind.environment) if kind.environment else kind.python or sys.executable
    arguments = [*arguments, *kind.flags]
    if workers > 1:
        return Group(workers, kind.module, arguments, dict(kind.env), python, machines, wait=False)
    return Peer(kind.module, arguments, dict(kind.env), python, wait=False)


def rows_of(contenders: Sequence[Contender], results: Sequence[Result]) -> list[Row]:
    """A row each; ratios are to the first."""
    return [
        Row(
            one.label,
            statistics.median(result.seconds),
            min(result.seconds),
            max(result.seconds),
            ratio=ratio(results[0], result) if result is not results[0] else None,
            bar=one.bar,
            loss=result.loss,
        )
        for one, result in zip(contenders, results, strict=True)
    ]
