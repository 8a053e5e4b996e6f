"""`Candidate`: a way of training that could be chosen, and `Outcome`: what the compiler says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any

from jaxtribute._src.addons.memory.budgeting import mib
from jaxtribute.errors import ArgumentError

MIRRORED, SHARDED = "MirroredStrategy", "FullyShardedStrategy"
"""The strategies, by their names in `jaxtribute`."""
TOO_LARGE = "does not fit"
"""Begins every refusal for lack of memory."""


@dataclass(frozen=True)
class Candidate:
    """A way of training.

    Attributes:
      strategy: the strategy's name.
      per_replica: devices of each replica.
      memory: bytes that the backward pass may keep; None for no bound.
      accumulate: calls of `apply_gradients` for each update.
      batch: examples of an update, on all replicas.
      whole_slots: whether each replica updates all of the large variables, of which it else updates a slice.
    """

    strategy: str
    batch: int
    per_replica: int = 1
    memory: int | None = None
    accumulate: int = 1
    whole_slots: bool = False

    def rows(self, devices: int) -> int:
        """Examples that a replica computes at a time, on so many devices; 0 if there are too few."""
        replicas = devices // self.per_replica
        return -(-self.batch // (replicas * self.accumulate)) if self.batch >= replicas * self.accumulate else 0

    def __str__(self) -> str:
        """A few words."""
        words = ["mirrored" if self.strategy == MIRRORED else "fully sharded"]
        words += [f"{self.per_replica} devices each"] if self.per_replica > 1 else []
        words += [f"{mib(self.memory)} kept"] if self.memory is not None else []
        words += [f"{self.accumulate} calls an update"] if self.accumulate > 1 else []
        words += ["whole slots"] if self.whole_slots else []
        return ", ".join(words)


@dataclass(frozen=True)
class Outcome:
    """The compiler's answer on a candidate; nothing has run.

    Attributes:
      candidate: the way of training.
      rows: examples that a replica computes at a time.
      refusal: why it cannot be; empty if it can.
      memory: bytes on the fullest device.
      held: those of variables and the rest of the state, of the arguments, and of gradients, where they are known.
      seconds: of an update: predicted.
      compute: the part of them in which something is computed.
      waits: seconds of waiting for collectives, by what they are, such as `all-gather among 8`.
      compiled: how many programs were compiled for it.
      layout: the layout that was chosen, by patterns of variables' names; empty where these cannot say it.
      own: arguments of the script's own strategy that are kept; None for those that are no numbers.
      calls: calls of `apply_gradients` for each update by the script's own `accumulate_steps`.
      sliced: whether replicas update slices of variables that each of them has whole.
      topology: the devices that it was compiled for; empty where that was not kept.
    """

    candidate: Candidate
    rows: int = 0
    refusal: str = ""
    memory: int = 0
    held: int = 0
    seconds: float = 0.0
    compute: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict[str, float])
    compiled: int = 1
    layout: Mapping[str, Any] = field(default_factory=dict[str, Any])
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    calls: int = 1
    sliced: bool = False
    topology: str = ""

    @property
    def fits(self) -> bool:
        """True if it can be."""
        return not self.refusal

    @property
    def has_layout(self) -> bool:
        """True if the layout is the script's own."""
        return not self.layout and "layout" in self.own

    @property
    def each(self) -> float:
        """Seconds for an example."""
        return self.seconds / self.candidate.batch

    @property
    def limit(self) -> str:
        """The largest parts of the time."""
        parts = {"computing": self.compute, **self.waits}
        shares = {name: seconds / self.seconds for name, seconds in parts.items()}
        largest = sorted(shares, key=shares.__getitem__, reverse=True)
        return ", ".join([f"{name} {shares[name]:.0%}" for name in largest[:2] if shares[name] >= 0.05])

    def lines(self, asked: int) -> list[str]:
        """The lines to write for it.

        Args:
          asked: examples of the script's own batch.
        """
        one, arguments = self.candidate, dict[str, str]()
        if one.per_replica > 1:
            arguments = {"devices_per_replica": str(one.per_replica), "layout": "..." if self.has_layout else '"auto"'}
        for name, value in self.own.items():
            arguments.setdefault(name, "..." if value is None else repr(value))
        given = ", ".join([f"{name}={value}" for name, value in arguments.items()])
        rest = "  # ... as the script has it" if "..." in arguments.values() else ""
        written = [f"strategy = jd.{one.strategy}({given}){rest}"]
        if one.memory is not None:  # whole MiB of what is small would be much less, or none
            amount = f"{one.memory >> 20}MiB" if one.memory >= 64 << 20 else f"{one.memory}B"
            written.append(f'jd.config.set_memory_budget("{amount}")')
        return written + self.lines_besides(asked)

    def lines_besides(self, asked: int) -> list[str]:
        """Those of them that no strategy can be told."""
        one, arguments, rest = self.candidate, list[str](), ""
        if one.accumulate > 1:
            arguments.append(f"accumulate_steps={one.accumulate * self.calls}")
            rest = f"  # each call with {-(-one.batch // one.accumulate):,} examples"
        arguments += ["shard_update=False"] if one.whole_slots else []
        written = [f"optimizer = jd.Optimizer(..., {', '.join(arguments)}){rest}"] if arguments else []
        return written + ([f"# a batch of {one.batch:,}"] if one.batch != asked else [])

    def as_dict(self) -> dict[str, Any]:
        """The outcome as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def read(cls, made: Mapping[str, Any]) -> Outcome:
        """Reads what `as_dict` made.

        Raises:
          ArgumentError: it is something else.
        """
        try:
            fields: dict[str, Any] = {**made, "candidate": Candidate(**made["candidate"])}
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise ArgumentError(f"{made!r} is no choice: {error}. HINT: write one with --save.") from error


def ranked(found: Iterable[Outcome]) -> list[Outcome]:
    """Those that fit, the fastest first; of equal ones the one that needs less memory."""
    return sorted(filter(attrgetter("fits"), found), key=attrgetter("each", "memory"))
