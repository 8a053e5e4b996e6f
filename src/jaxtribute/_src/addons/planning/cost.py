"""Cost of a step, apart from any machine: a fixed part, and a part per example."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxtribute._src.addons.launcher.regular_files import read_regular
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import parse_json

_FORMAT = 2
_MANY_REPLICAS = 4
"""From so many on, `jd.Optimizer` shards the update of large variables."""


@dataclass(frozen=True, slots=True)
class Line:
    """A quantity on one device, as a straight line over the examples that fall to it."""

    fixed: float
    each: float

    @classmethod
    def through(cls, few: int, low: float, many: int, high: float) -> Line:
        """The line through the values at `few` and `many` examples; never falling, never below zero."""
        # The compiler may choose another algorithm for more examples; a falling line would predict less than nothing.
        each = max((high - low) / (many - few), 0.0) if many > few else 0.0
        return cls(max(low - each * few, 0.0), each)

    def at(self, rows: float) -> float:
        """The value for `rows` examples."""
        return self.fixed + self.each * rows


@dataclass(frozen=True, slots=True)
class StepCost:
    """Cost of a training step on each device that takes part.

    Attributes:
      name: where it was found.
      batch: examples in a global batch.
      replicas: how many replicas the program that was looked at has.
      flops: floating-point operations.
      traffic: bytes that operations read and write.
      memory: bytes of variables, arguments, results and scratch, up to the examples that were seen.
      most: the examples on a device, and the bytes of memory, of a larger step that was compiled: what is scratch for
        few examples, such as the gradients, hides that activations grow. None if that is not known.
      collectives: what the replicas exchange.
      parameters: bytes of the variables that a step changes and trains, which bound what must be exchanged.
      half: whether the matrix products are of 16-bit numbers.
      exact: whether `fixed` and `each` were told apart; else everything is taken to grow with the examples.
      layout: the table of an automatic layout of the variables; empty if there is none.
      budget: what was chosen for budgets of memory; empty if there are none.
      slots: bytes of the optimizer's slots that `MirroredStrategy` shares out among many replicas.
      sharded: bytes of the variables and slots that lie in slices over all replicas, of which each has its share.
      per_replica: how many devices a replica has; what it costs is then that of each of them.
    """

    name: str
    batch: int
    replicas: int
    flops: Line
    traffic: Line
    memory: Line
    collectives: tuple[Collective, ...]
    parameters: int
    half: bool
    exact: bool = True
    layout: str = ""
    slots: int = 0
    sharded: int = 0
    budget: str = ""
    per_replica: int = 1
    most: tuple[int, float] | None = None

    def memory_on(self, replicas: int, rows: float) -> float:
        """Bytes on each of so many devices, among which slices, and from four on large slots, are shared out."""
        share, seen = (1 / count if count >= _MANY_REPLICAS else 1.0 for count in (replicas, self.replicas))
        in_slices = self.sharded * (1 / replicas - 1 / self.replicas)
        return self._held(rows) + self.slots * (share - seen) + in_slices

    def _held(self, rows: float) -> float:
        """Bytes for so many examples; between those that were compiled rather too many, as memory bends upwards."""
        few = self._seen
        if self.most is None or rows <= few:
            return self.memory.at(rows)
        many, high = self.most
        low = self.memory.at(few)
        return max(self.memory.at(rows), low + (high - low) / (many - few) * (rows - few))

    @property
    def known_rows(self) -> int:
        """The examples on a device up to which memory is known; for more it is a guess."""
        return self.most[0] if self.most is not None else self._seen

    @property
    def _seen(self) -> int:
        """The examples on a device of the step that was seen."""
        return max(self.batch // self.replicas, 1)

    @property
    def within(self) -> tuple[Collective, ...]:
        """The collectives among the devices of a replica."""
        return tuple([one for one in self.collectives if self._is_within(one)])

    def exchanged(self) -> tuple[Collective, ...]:
        """The collectives between several replicas; where only one was seen, the gradients' all-reduce."""
        if self.replicas > 1:
            return tuple([one for one in self.collectives if not self._is_within(one)])
        # One replica exchanges nothing with others, so what several would exchange is concluded.
        return (Collective("all-reduce", (self.parameters,)),) if self.parameters else ()

    def _is_within(self, one: Collective) -> bool:
        # The devices of a replica stand behind each other in the program.
        if self.per_replica == 1 or (self.replicas > 1 and not one.groups):
            return False
        return all(len({place // self.per_replica for place in group}) == 1 for group in one.groups)

    def save(self, path: Path) -> None:
        """Writes the cost as JSON, for another machine to plan with."""
        path.write_text(json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> StepCost:
        """Reads what `save` wrote.

        Raises:
          ArgumentError: the file is none of those.
        """
        try:
            data: dict[str, Any] = parse_json(read_regular(path).decode())
            # In a file of another format the same names may mean something else.
            if data.pop("format") != _FORMAT:
                raise ValueError("another format")
            for name in ("flops", "traffic", "memory"):
                data[name] = Line(**data[name])
            data["most"] = tuple(data["most"]) if data.get("most") else None
            data["collectives"] = tuple(
                Collective(
                    one["kind"], tuple(one["parts"]), groups=tuple(map(tuple, one["groups"])), times=one["times"]
                )
                for one in data["collectives"]
            )
            return cls(**data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(f"{path} holds no cost of a step: {error}. HINT: write one with --save.") from error
