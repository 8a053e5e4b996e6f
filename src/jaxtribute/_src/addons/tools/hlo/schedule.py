"""The time of a program along its schedule: what runs beside what, and who waits for whom.

Compilers of accelerators write instructions in the order in which they are begun. A collective, or a copy between
memories, that is begun by one and awaited by another takes its time on a lane of its own; it is hidden as far as other
instructions run meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxtribute._src.addons.tools.hlo.exchanges import Collective, chain_of, collective_of
from jaxtribute._src.addons.tools.hlo.loops import called_by, runs
from jaxtribute._src.addons.tools.hlo.text import Computation, Instruction, Module, read, sizes_of
from jaxtribute._src.addons.tools.hlo.work import FREE, operations_within, touched

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_MOVES = frozenset({"copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"})
"""Kinds that begin a copy between memories of a device, or to or from its host."""
_HOST = "S(5)"
"""Marks arrays in the memory of the host."""
_INDEX_BYTES = 8
"""Arrays that are as small tell where a slice begins."""
_STATED = re.compile(r'"cost_estimate":\{([^}]*)\}')
"""Costs of a kernel, as whoever wrote it states them."""
_COST = re.compile(r'"(\w+)":"(\d+)"')
_NOTHING = frozenset({"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound"})
"""Targets of custom calls that neither compute nor move anything."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of an accelerator, in the opinion of whoever asks.

    Attributes:
      clock: cycles of a compiler that tells them; None if it tells none.
      operations: floating-point operations of products.
      kernels: operations of kernels that state theirs.
      traffic: bytes of memory.
      host: bytes to or from the memory of the host.
      launch: seconds that each instruction takes at least.
      exchange: tells the seconds of a collective.
    """

    clock: float | None
    operations: float
    kernels: float
    traffic: float
    host: float
    launch: float
    exchange: Callable[[Collective], float]


@dataclass(slots=True)
class Timing:
    """Seconds of a program.

    Attributes:
      step: from its beginning to its end.
      compute: computing, and copies that something waits for, those to or from the host too.
      exchange: collectives, hidden ones too.
      told: the part of `compute` that is the compiler's own.
      waits: seconds that computing waits for collectives, by their kind and number of devices.
    """

    step: float = 0.0
    compute: float = 0.0
    exchange: float = 0.0
    told: float = 0.0
    waits: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])

    @property
    def exposed(self) -> float:
        """Seconds of collectives that nothing hides."""
        return sum(self.waits.values())

    @property
    def hidden(self) -> float:
        """Seconds of collectives that run beside computing."""
        return max(self.exchange - self.exposed, 0.0)

    def compute_for(self, seconds: float, told: bool) -> None:
        """Computes for so long, which the compiler has told or not."""
        self.step, self.compute = self.step + seconds, self.compute + seconds
        self.told += seconds if told else 0.0

    def wait(self, collective: Collective, seconds: float, devices: int) -> None:
        """Waits for a collective, of a program on so many devices."""
        key = collective.kind, collective.among(devices)
        self.step += seconds
        self.waits[key] = self.waits.get(key, 0.0) + seconds

    def add(self, other: Timing, times: float) -> None:
        """Adds what runs so often."""
        self.step += times * other.step
        self.compute += times * other.compute
        self.exchange += times * other.exchange
        self.told += times * other.told
        for key, seconds in other.waits.items():
            self.waits[key] = self.waits.get(key, 0.0) + times * seconds


class _Exchange(NamedTuple):
    """A collective, by what instructions that belong to it have in common."""

    key: str
    collective: Collective


def timing(text: str, devices: int, rates: Rates, *, shortest: bool = False) -> Timing:
    """The time of a program on so many devices, from its scheduled text.

    Args:
      text: the compiled program's HLO text; a loop whose number of turns is not known counts once.
      devices: how many devices the program runs on.
      rates: what one of them does in a second.
      shortest: whether conditions take the branch that ends first; otherwise the one that ends last.
    """
    module = read(text)
    return _Walk(module, devices, rates, min if shortest else max).of(module.entry)


class _Lane:
    """A lane beside computing: one thing after the other, each awaited or not."""

    def __init__(self) -> None:
        self._free = 0.0
        self._ends: dict[str, float] = {}

    def begin(self, name: str, now: float, seconds: float) -> None:
        """Begins something that takes so long, behind what was begun before."""
        self._free = self._ends[name] = max(now, self._free) + seconds

    def rest(self, name: str, now: float) -> float:
        """Seconds that who asks for it now has to wait."""
        return max(self._ends.pop(name, now) - now, 0.0)


def _moved(one: Instruction) -> int:
    """Bytes of a copy: its start lists the whole of which it is a part, the part, and where it begins."""
    sizes = sizes_of(one.shape)
    return min([size for size in sizes if size > _INDEX_BYTES], default=sizes[0])


class _Walk:
    """Goes through computations in the order of their instructions."""

    def __init__(self, module: Module, devices: int, rates: Rates, branch: Callable[..., Timing]) -> None:
        self._module, self._devices, self._rates, self._branch = module, devices, rates, branch
        self._turns = runs(module).turns
        self._known: dict[str, Timing] = {}

    def of(self, name: str) -> Timing:
        """The time of one run of a computation."""
        computation = self._module.computations.get(name)
        if name not in self._known:
            self._known[name] = Timing() if computation is None else self._walked(computation)
        return self._known[name]

    def _walked(self, computation: Computation) -> Timing:
        found, links, copies, host = Timing(), _Lane(), _Lane(), _Lane()
        exchanges = {one.name: self._exchange(one) for one in computation.instructions}
        # One that runs beside several fusions is written in each of them: it begins with the first, ends with the last.
        last = {each.key: name for name, each in exchanges.items() if each is not None}
        begun: dict[str, Collective] = {}
        for one in computation.instructions:
            if one.kind in ("while", "call", "conditional"):
                self._add(found, computation, one)
            elif one.kind.endswith("-done"):
                start = one.operands[0] if one.operands else ""
                if start in begun:
                    found.wait(begun.pop(start), links.rest(start, found.step), self._devices)
                else:
                    found.compute_for(max(lane.rest(start, found.step) for lane in (copies, host)), told=False)
            elif self._begins(one) in _MOVES:
                lane, rate = (host, self._rates.host) if _HOST in one.shape else (copies, self._rates.traffic)
                lane.begin(one.name, found.step, _moved(one) / rate)
            else:
                exchange, now = exchanges[one.name], found.step
                found.compute_for(*self._cost(computation, one, exchange))
                if exchange is None:
                    continue
                key, collective = exchange
                if key not in begun:
                    begun[key] = collective
                    found.exchange += (seconds := self._rates.exchange(collective))
                    # Computing of a fusion of its chain goes on beside it already.
                    links.begin(key, now if collective.asynchronous else found.step, seconds)
                if last[key] == one.name and not one.kind.endswith("-start"):
                    found.wait(begun.pop(key), links.rest(key, found.step), self._devices)
        return found

    def _add(self, found: Timing, computation: Computation, one: Instruction) -> None:
        """Adds what an instruction runs of other computations."""
        parts = [self.of(name) for name in called_by(one)]
        if one.kind == "conditional":
            parts = [self._branch(parts, key=lambda part: part.step)] if parts else []
        for part in parts:
            found.add(part, self._turns.get((computation.name, one.name), 1))

    def _cost(self, computation: Computation, one: Instruction, exchange: _Exchange | None) -> tuple[float, bool]:
        """Seconds of computing of an instruction, and whether its compiler has told them."""
        rates = self._rates
        if one.kind in FREE or one.kind.endswith("-start") or collective_of(one, self._devices) is not None:
            return 0.0, True
        if one.target in _NOTHING:
            return 0.0, True
        told = _CYCLES.search(one.line)
        if told is not None and rates.clock:
            return int(told[1]) / rates.clock, True
        if exchange is not None and exchange.collective.asynchronous:
            return 0.0, True  # a fusion that only begins or ends it
        stated = _STATED.search(one.line)
        if stated is not None:
            costs = dict(_COST.findall(stated[1]))
            computing, nbytes = int(costs["flops"]) / rates.kernels, int(costs["bytes_accessed"])
        else:
            computing = operations_within(self._module, computation, one) / rates.operations
            nbytes = touched(self._module, computation, one)
        return max(computing, nbytes / rates.traffic, rates.launch), False

    def _begins(self, one: Instruction) -> str:
        """The kind of an instruction; `slice-start` for a begun computation of a slice alone."""
        if one.kind != "async-start":
            return one.kind
        for name in called_by(one):
            root = self._module.computations[name].root
            return one.kind if root is None else f"{root.kind}-start"
        return one.kind

    def _instructions(self, name: str) -> list[Instruction]:
        computation = self._module.computations.get(name)
        return [] if computation is None else list(computation.instructions)

    def _exchange(self, one: Instruction) -> _Exchange | None:
        """The collective that an instruction is, or that a fusion has inside."""
        inside = called_by(one) if one.kind in ("fusion", "async-start") else []
        parts = [(one, ""), *((each, name) for name in inside for each in self._instructions(name))]
        for each, within in parts:
            collective = collective_of(each, self._devices, within=within)
            if collective is not None:
                chain_id = chain_of(each.line)
                return _Exchange(one.name if chain_id is None else f"{collective.kind} {chain_id}", collective)
        return None
