"""The collectives of a program, and the bytes that they move."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from jaxtribute._src.addons.tools.hlo.loops import runs
from jaxtribute._src.addons.tools.hlo.text import Dims, Instruction, dims_of, read, sizes_of

_COLLECTIVE = re.compile(
    r"(?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?P<start>-start)?"
)
_CHAIN = re.compile(r'chain_id="(\d+)"')
# The ways in which XLA writes the devices among which a collective goes on: listed, counted, or by axes of a mesh.
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_COUNTED = re.compile(r"replica_groups=\[\d+,(?P<size>\d+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?")
_NAMED = re.compile(r"replica_groups=mesh\[(?P<axes>[^\]]*)\] \{(?P<names>[^}]*)\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_PART = re.compile(r"'(?P<axis>[^']+)'(?::\((?P<before>\d+)\)(?P<size>\d+))?")
_MARKS = re.compile(r", [us]32\[\](?:\{[^}]*\})?(?=[,)])")
"""Numbers by which the TPU compiler knows a permutation that it has begun; they do not travel."""
_SCATTERED = "all-reduce-scatter"
"""Part of the name of a computation in which the TPU compiler writes a reduce-scatter: a sum and a slice of it."""
_IN_TURN = '"is_sync":true'
"""The mark of a GPU's collective that is begun and waited for in one, though written as two."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a step.

    Attributes:
      kind: XLA's name, such as `all-reduce`.
      parts: bytes of each of its results on one device, of its operands for a reduce-scatter; XLA joins small ones
        into one operation.
      asynchronous: whether other operations run beside it.
      groups: devices that exchange data with each other, by their places in the program: the first of equal groups, or
        all pairs of a permutation; empty for all devices.
      times: how often a step makes it: more than once within a loop.
    """

    kind: str
    parts: tuple[int, ...]
    asynchronous: bool = False
    groups: tuple[tuple[int, ...], ...] = ()
    times: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of all parts, each time."""
        return sum(self.parts)

    def among(self, devices: int) -> int:
        """The number of devices that take part together, in a program on so many."""
        return len(self.groups[0]) if self.groups else devices

    def sent(self, devices: int) -> float:
        """Bytes that each of so many devices sends each time, in rings."""
        if self.kind == "collective-permute":
            return self.nbytes
        among = self.among(devices)
        # A ring sums each part on one device, and then brings the sums to all.
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * self.nbytes * (among - 1) / among


def collectives(text: str, devices: int) -> tuple[Collective, ...]:
    """The collectives of a program on so many devices, from its HLO text; none that never run."""
    module = read(text)
    times = runs(module).times
    found: list[Collective] = []
    chains: set[tuple[str, str]] = set()
    for computation in module.computations.values():
        for one in computation.instructions if times[computation.name] else ():
            collective = collective_of(one, devices, times[computation.name], computation.name)
            if collective is None:
                continue
            chain = chain_of(one.line)
            if chain is not None:
                # The TPU compiler writes one that runs beside several fusions once in each of them.
                if (collective.kind, chain) in chains:
                    continue
                chains.add((collective.kind, chain))
            found.append(collective)
    return tuple(found)


def collective_of(one: Instruction, devices: int, times: int = 1, within: str = "") -> Collective | None:
    """The collective that an instruction is, or begins; None for every other one.

    Args:
      one: the instruction.
      devices: how many devices the program runs on.
      times: how often it runs.
      within: the computation that it stands in.
    """
    kind = _COLLECTIVE.fullmatch(one.kind)
    if kind is None:
        return None
    beside = chain_of(one.line) is not None or (kind["start"] is not None and _IN_TURN not in one.line)
    groups = _groups(one.line)
    parts = _parts(one, kind["kind"], len(groups[0]) if groups else devices)
    # Of a sum, each device takes its slice at once.
    scattered = kind["kind"] == "all-reduce" and _SCATTERED in within
    return Collective("reduce-scatter" if scattered else kind["kind"], parts, beside, groups, times)


def chain_of(text: str) -> str | None:
    """The chain of fusions that a collective of the TPU compiler's runs beside; None if it has none."""
    chain = _CHAIN.search(text)
    return None if chain is None else chain[1]


def bytes_moved(text: str, devices: int) -> float:
    """Bytes that each device sends in a step, with collectives as rings; what a loop repeats counts as often.

    Args:
      text: the compiled program's HLO text. A loop whose number of turns is not known counts once.
      devices: how many devices the program runs on.
    """
    return sum(one.times * one.sent(devices) for one in collectives(text, devices))


def _parts(one: Instruction, kind: str, among: int) -> tuple[int, ...]:
    arrays = sizes_of(_MARKS.sub("", one.shape) if kind == "collective-permute" else one.shape)
    if one.kind.endswith("-start") and len(arrays) > 1:
        arrays = arrays[len(arrays) // 2 :]  # an asynchronous one lists its operands first
    # The text has the result, which is one part; what travels is the operand, as large as all parts.
    return tuple(nbytes * (among if kind == "reduce-scatter" else 1) for nbytes in arrays)


def _groups(line: str) -> tuple[tuple[int, ...], ...]:
    """The devices among which a collective goes on: its first group, or all pairs; empty for all devices."""
    listed = _LISTED.search(line)
    if listed is not None:
        found = tuple(map(dims_of, filter(None, listed[1].strip("{}").split("},{"))))
        return found if "source_target_pairs=" in line else found[:1]
    counted = _COUNTED.search(line)
    if counted is not None:
        # All devices in an array, whose axes may be turned; the groups are runs of what that gives.
        dims = dims_of(counted["dims"])
        places = np.arange(math.prod(dims)).reshape(dims)
        if counted["order"]:
            places = places.transpose(dims_of(counted["order"]))
        return (tuple(places.reshape(-1)[: int(counted["size"])].tolist()),)
    named = _NAMED.search(line)
    return () if named is None else (_along(named["axes"], named["names"]),)


def _along(axes: str, names: str) -> Dims:
    """The devices of the first group along some of a mesh's axes, or along parts of them."""
    sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
    parts = {part["axis"]: part for part in _PART.finditer(names)}
    dims: list[int] = []
    chosen: list[int | slice] = []
    for axis, size in sizes.items():
        part = parts.get(axis)
        within = 1 if part is None else int(part["size"] or size)
        before = 1 if part is None else int(part["before"] or 1)
        # An axis is what comes before a part, the part, and the rest.
        dims += [before, within, size // before // within]
        chosen += [0, slice(None), 0]
    return tuple(np.arange(math.prod(dims)).reshape(dims)[tuple(chosen)].reshape(-1).tolist())
