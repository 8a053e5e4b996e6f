"""The bytes that a compiled program moves between devices."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from jaxtribute._src.tools.planning.hlo import collectives

_HEADER = re.compile(r"^(?P<entry>ENTRY )?(?P<name>%?[\w.-]+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=(%?[\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_NAMED = re.compile(r"replica_groups=mesh\[(?P<axes>[^\]]*)\] \{(?P<names>[^}]*)\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_PART = re.compile(r"'([^']+)'(?::\(\d+\)(\d+))?")
_CHAIN = re.compile(r'chain_id="(\d+)"')


@dataclass
class _Computation:
    own: float = 0.0
    calls: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])


def bytes_moved(text: str, devices: int) -> float:
    """Bytes that each device sends in a step, with collectives as rings; what a loop repeats counts as often.

    Args:
      text: the compiled program's HLO text. A loop whose number of turns is not written there counts once.
      devices: how many devices the program runs on.
    """
    computations: dict[str, _Computation] = {}
    current, entry = _Computation(), ""
    chains: set[str] = set()
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            current = computations[header["name"]] = _Computation()
            entry = header["name"] if header["entry"] else entry
            continue
        chain = _CHAIN.search(line)
        if chain is None or chain[1] not in chains:  # the TPU compiler writes one in each fusion that it runs beside
            sent = _sent(line, devices)
            current.own += sent
            if chain is not None and sent:
                chains.add(chain[1])
        trips = _TRIPS.search(line)
        names = _CALLED.findall(line)
        for branches in _BRANCHES.findall(line):
            names += [name.strip() for name in branches.split(",")]
        current.calls += [(name, int(trips[1]) if trips else 1) for name in names]
    known: dict[str, float] = {}

    def total(name: str) -> float:
        if name not in known:
            known[name] = 0.0
            made = computations.get(name, _Computation())
            known[name] = made.own + sum(times * total(inner) for inner, times in made.calls)
        return known[name]

    return total(entry)


def _sent(line: str, devices: int) -> float:
    """Bytes that a device sends for the collective of a line, if it is one."""
    if "replica_groups=" not in line and "source_target_pairs=" not in line:
        return 0.0
    group = _group(line, devices)
    sent = 0.0
    for one in collectives(line, group):
        if one.kind == "collective-permute":
            sent += one.nbytes
        else:
            rounds = 2 if one.kind == "all-reduce" else 1
            sent += rounds * one.nbytes * (group - 1) / group
    return sent


def _group(line: str, devices: int) -> int:
    """The number of devices among which a collective goes on."""
    listed = _LISTED.search(line)
    if listed is not None:
        return len(listed[1].split(","))
    counted = _COUNTED.search(line)
    if counted is not None:
        return int(counted[1])
    named = _NAMED.search(line)
    if named is not None:
        sizes = {name: int(size) for name, size in _AXIS.findall(named["axes"])}
        return math.prod(int(part) if part else sizes[name] for name, part in _PART.findall(named["names"]))
    return devices
