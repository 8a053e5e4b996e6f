"""A compiled program's text, read: its collectives, the bytes that they move, and its passes over memory.

XLA's text is no interface: a line that is not understood counts as nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_OPERATION = re.compile(
    r"= (?P<shape>.+?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_CHAIN = re.compile(r'chain_id="(\d+)"')
_ARRAY = re.compile(r"\b(?P<dtype>pred|[a-z]+\d+\w*)\[(?P<dims>[\d,]*)\]")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?(?P<name>%?[\w.-]+) = (?P<shape>\(.*?\)|\S+) (?P<kind>[\w-]+)\((?P<rest>.*)")
_OPERAND = re.compile(r"%[\w.-]+")
_FUSED = re.compile(r"(?:calls|to_apply)=(%?[\w.-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=(%?[\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?(?P<name>%?[\w.-]+) \(.*\{$")
# The ways in which XLA writes the devices among which a collective goes on: listed, counted, or by axes of a mesh.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_NAMED = re.compile(r"replica_groups=mesh\[(?P<axes>[^\]]*)\] \{(?P<names>[^}]*)\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_PART = re.compile(r"'([^']+)'(?::\(\d+\)(\d+))?")
# Instructions that move no bytes.
_FREE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "partition-id"})
_PRODUCT = re.compile(r" (?:dot|convolution|custom-call)\(")
_BITS = re.compile(r"[a-z]+(\d+)")


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a step.

    Attributes:
      kind: XLA's name, such as `all-reduce`.
      parts: bytes of each of its results on one device, of its operands for a reduce-scatter; XLA joins small ones
        into one operation.
      asynchronous: whether other operations run beside it.
    """

    kind: str
    parts: tuple[int, ...]
    asynchronous: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of them all."""
        return sum(self.parts)


def collectives(text: str, replicas: int) -> tuple[Collective, ...]:
    """The collectives of a program on so many devices, from its HLO text; one inside a loop counts once."""
    found: list[Collective] = []
    chains: set[tuple[str, str]] = set()
    for line in text.splitlines():
        match = _OPERATION.search(line)
        if match is not None:
            shape, chain = match["shape"], _CHAIN.search(line)
            if chain is not None:
                # The TPU compiler writes one that runs beside several fusions once in each of them.
                if (match["kind"], chain[1]) in chains:
                    continue
                chains.add((match["kind"], chain[1]))
            arrays = [_nbytes(one["dtype"], one["dims"]) for one in _ARRAY.finditer(shape)]
            if "-start(" in line and len(arrays) > 1:
                arrays = arrays[len(arrays) // 2 :]  # an asynchronous one lists its operands first
            # The text has the result, which is one part; what travels is the operand, as large as all parts.
            times = replicas if match["kind"] == "reduce-scatter" else 1
            beside = chain is not None or "-start(" in line
            found.append(Collective(match["kind"], tuple(nbytes * times for nbytes in arrays), beside))
    return tuple(found)


def passes(text: str) -> tuple[int, ...]:
    """The bytes that each instruction of a program reads and writes, on one device, products and collectives apart.

    One inside a loop counts once.
    """
    shapes: dict[str, int] = {}
    products: set[str] = set()
    found: list[int] = []
    # Only the entry is counted: what is computed inside a fusion stays in registers.
    computation, entry = "", False
    for line in text.splitlines():
        opened = _COMPUTATION.match(line)
        if opened is not None:
            computation, entry = opened["name"], opened["entry"] is not None
        elif _PRODUCT.search(line):
            products.add(computation)
        match = _INSTRUCTION.match(line) if entry else None
        if match is None:
            continue
        shapes[match["name"]] = sum(_nbytes(one["dtype"], one["dims"]) for one in _ARRAY.finditer(match["shape"]))
        called = _FUSED.search(match["rest"])
        # Computations that are called stand before those that call them: by now all fusions with a product are known.
        apart = _PRODUCT.search(line) or _OPERATION.search(line) or (called is not None and called[1] in products)
        if not apart and match["kind"] not in _FREE:
            read = match["rest"].partition(")")[0]
            operands = (shapes.get(name, 0) for name in _OPERAND.findall(read))
            found.append(shapes[match["name"]] + sum(operands))
    return tuple(found)


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
        header = _COMPUTATION.match(line)
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


def _nbytes(dtype: str, dims: str) -> int:
    bits = 8 if dtype == "pred" else int((_BITS.match(dtype) or ["", "32"])[1])
    return math.prod(int(size) for size in dims.split(",") if size) * max(bits // 8, 1)
