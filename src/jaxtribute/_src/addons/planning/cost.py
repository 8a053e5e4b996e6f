"""Cost of a step, apart from any machine: a fixed part, and a part per example."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxtribute._src.addons.planning.holding import Held, held_on
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute._src.regular_files import read_regular
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import parse_json

_FORMAT = 3


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
      state: the variables and slots, which say what each takes of a device on any number of replicas.
      alone: likewise the cost of the program of one replica, which holds nothing for an exchange. None if it was not
        looked at; the memory of one replica is then rather told too large.
      per_replica: how many devices a replica has; what it costs is then that of each of them.
      mixes: whether the work for an example grows with the batch, as where each row meets those of all replicas.
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
    state: tuple[Held, ...] = ()
    alone: StepCost | None = None
    budget: str = ""
    per_replica: int = 1
    most: tuple[int, float] | None = None
    mixes: bool = False

    def memory_on(self, replicas: int, rows: float) -> float:
        """Bytes on each device of so many replicas: those of variables and slots as they lie there, and all others."""
        if replicas == 1 and self.alone is not None:
            return self.alone.memory_on(1, rows)
        held = self._held(rows) + held_on(self.state, replicas) - held_on(self.state, self.replicas)
        # A program of one replica may update by each gradient as it comes; an exchange has all of them, and all sums.
        exchanged = 2 * self.parameters if self.replicas == 1 and replicas > 1 else 0
        return held + exchanged

    def _held(self, rows: float) -> float:
        """Bytes for so many examples; between those that were compiled rather too many, as memory bends upwards."""
        few = self._seen
        if self.most is None or rows <= few:
            return self.memory.at(rows)
        many, high = self.most
        low = self.memory.at(few)
        return max(self.memory.at(rows), low + (high - low) / (many - few) * (rows - few))

    @property
    def planned_under(self) -> str:
        """The strategy under which other numbers of replicas are planned, where one replica was looked at."""
        sharded = any(one.several.name == "sharded" for one in self.state)
        return "FullyShardedStrategy" if sharded else "MirroredStrategy"

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

    @property
    def sent(self) -> int:
        """Bytes that replicas exchange."""
        return sum(one.times * one.nbytes for one in self.exchanged())

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
            return cls._made(data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(f"{path} holds no cost of a step: {error}. HINT: write one with --save.") from error

    @classmethod
    def _made(cls, data: dict[str, Any]) -> StepCost:
        """Makes one of what `asdict` gave, out of JSON."""
        for name in ("flops", "traffic", "memory"):
            data[name] = Line(**data[name])
        data["most"] = tuple(data["most"]) if data.get("most") else None
        data["state"] = tuple(map(Held.loaded, data["state"]))
        data["alone"] = cls._made(data["alone"]) if data["alone"] else None
        data["collectives"] = tuple(
            Collective(one["kind"], tuple(one["parts"]), groups=tuple(map(tuple, one["groups"])), times=one["times"])
            for one in data["collectives"]
        )
        return cls(**data)
