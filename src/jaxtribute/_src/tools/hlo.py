"""A compiled program's text, read: collectives, the bytes that they move, passes over memory, operations, kernels.

XLA's text is no interface: a line that is not understood counts as nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

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
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_COUNTED = re.compile(r"replica_groups=\[\d+,(?P<size>\d+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?")
_NAMED = re.compile(r"replica_groups=mesh\[(?P<axes>[^\]]*)\] \{(?P<names>[^}]*)\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_PART = re.compile(r"'(?P<axis>[^']+)'(?::\((?P<before>\d+)\)(?P<size>\d+))?")
_IN_TURN = '"is_sync":true'
"""The mark of a GPU's collective that is begun and waited for in one, though written as two."""
_CONTRACTED = re.compile(r'lhs_contracting_d(?:ims=\{|imensions":\[)(?P<dims>["\d,]*)')
_KERNEL = re.compile(r"dim_labels=\w+_(?P<labels>\w+)->")
_TARGET = re.compile(r'custom_call_target="(?P<name>[^"]+)"')
# Of a backward convolution the forward one's result is an operand, and of that of kernels the kernel is the result.
_CONVOLUTIONS = {
    "__cudnn$convForward": (0, 2),
    "__cudnn$convBiasActivationForward": (0, 2),
    "__cudnn$convBackwardInput": (1, 2),
    "__cudnn$convBackwardFilter": (2, 0),
}

# Instructions that move no bytes.
_FREE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "partition-id"})
_PRODUCT = re.compile(r" (?:dot|convolution|custom-call)\(")
_BITS = re.compile(r"[a-z]+(\d+)")


Dims = tuple[int, ...]


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
    """

    kind: str
    parts: tuple[int, ...]
    asynchronous: bool = False
    groups: tuple[tuple[int, ...], ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of them all."""
        return sum(self.parts)

    def among(self, devices: int) -> int:
        """The number of devices that take part together, in a program on so many."""
        return len(self.groups[0]) if self.groups else devices


def collectives(text: str, devices: int) -> tuple[Collective, ...]:
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
            arrays = _sizes(shape)
            if "-start(" in line and len(arrays) > 1:
                arrays = arrays[len(arrays) // 2 :]  # an asynchronous one lists its operands first
            # The text has the result, which is one part; what travels is the operand, as large as all parts.
            groups = _groups(line)
            among = len(groups[0]) if groups else devices
            times = among if match["kind"] == "reduce-scatter" else 1
            beside = chain is not None or ("-start(" in line and _IN_TURN not in line)
            found.append(Collective(match["kind"], tuple(nbytes * times for nbytes in arrays), beside, groups))
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
        touched = _touched(match, shapes)
        called = _FUSED.search(match["rest"])
        # Computations that are called stand before those that call them: by now all fusions with a product are known.
        apart = _PRODUCT.search(line) or _OPERATION.search(line) or (called is not None and called[1] in products)
        if not apart and match["kind"] not in _FREE:
            found.append(touched)
    return tuple(found)


def flops(text: str) -> float:
    """Operations of the products and convolutions of a program, on one device: two for each pair of factors.

    Those inside of fusions and those that cuBLAS and cuDNN compute are counted; one inside a loop counts once. What
    else a program computes is not: on accelerators memory bounds it.
    """
    shapes: dict[str, Dims] = {}
    found = 0.0
    for line in text.splitlines():
        if _COMPUTATION.match(line):
            # Names are unique within a computation only.
            shapes = {}
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        # The first of several results: cuBLAS and cuDNN return their scratch memory behind it.
        result = _ARRAY.search(match["shape"])
        shapes[match["name"]] = _dims(result["dims"]) if result else ()
        operands = [shapes.get(name, ()) for name in _operands(match)]
        found += _operations(match["kind"], line, [shapes[match["name"]], *operands])
    return found


def traffic(text: str) -> float:
    """Bytes that the instructions of a program read and write, on one device; what a fusion keeps inside is no traffic.

    One inside a loop counts once.
    """
    sizes: dict[str, int] = {}
    found = 0.0
    for match in _entry(text):
        touched = _touched(match, sizes)
        if _works(match["kind"]):
            found += touched
    return found


def kernels(text: str) -> int:
    """The number of instructions of a program that compute, copy or exchange something, apart from those in loops."""
    return sum(_works(match["kind"]) for match in _entry(text))


def _entry(text: str) -> Generator[re.Match[str]]:
    """The instructions of a program outside of the computations that it calls."""
    inside = False
    for line in text.splitlines():
        opened = _COMPUTATION.match(line)
        if opened is not None:
            inside = opened["entry"] is not None
        match = _INSTRUCTION.match(line) if inside else None
        if match is not None:
            yield match


def _works(kind: str) -> bool:
    """True if an instruction of that kind does something: it names no value, and ends nothing that another began."""
    return kind not in _FREE and not kind.endswith("-done")


def _operations(kind: str, line: str, arrays: list[Dims]) -> float:
    """Operations of one instruction whose result and operands have these shapes."""
    target = _TARGET.search(line) if kind == "custom-call" else None
    name = "" if target is None else target["name"]
    if kind == "convolution" or name in _CONVOLUTIONS:
        result, kernel = _CONVOLUTIONS.get(name, (0, 2))
        labels = _KERNEL.search(line)
        if labels is None or max(result, kernel) >= len(arrays):
            return 0.0
        # Each element of the result takes a product with the whole kernel of its output feature.
        outputs = arrays[kernel][labels["labels"].index("o")]
        return 2.0 * math.prod(arrays[result]) * math.prod(arrays[kernel]) / max(outputs, 1)
    if kind == "dot" or name.startswith("__cublas$"):
        contracted = _CONTRACTED.search(line)
        # The compiler of GPUs writes the axes as strings, in JSON.
        axes = _dims(contracted["dims"].replace('"', "")) if contracted is not None else ()
        if len(arrays) < 2 or max(axes, default=-1) >= len(arrays[1]):
            return 0.0
        return 2.0 * math.prod(arrays[0]) * math.prod(arrays[1][axis] for axis in axes)
    return 0.0


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
            names += map(str.strip, branches.split(","))
        current.calls += [(name, int(trips[1]) if trips else 1) for name in names]
    known: dict[str, float] = {}

    def total(name: str) -> float:
        if name not in known:
            # A computation that calls itself, in a text that is misread, must not go on for ever.
            known[name] = 0.0
            made = computations.get(name, _Computation())
            known[name] = made.own + sum(times * total(inner) for inner, times in made.calls)
        return known[name]

    return total(entry)


def _sent(line: str, devices: int) -> float:
    """Bytes that a device sends for the collective of a line, if it is one."""
    if "replica_groups=" not in line and "source_target_pairs=" not in line:
        return 0.0
    sent = 0.0
    for one in collectives(line, devices):
        among = one.among(devices)
        if one.kind == "collective-permute":
            sent += one.nbytes
        else:
            # A ring sums each part on one device, and then brings the sums to all.
            rounds = 2 if one.kind == "all-reduce" else 1
            sent += rounds * one.nbytes * (among - 1) / among
    return sent


def _groups(line: str) -> tuple[tuple[int, ...], ...]:
    """The devices among which a collective goes on: its first group, or all pairs; empty for all devices."""
    listed = _LISTED.search(line)
    if listed is not None:
        found = tuple(map(_dims, filter(None, listed[1].strip("{}").split("},{"))))
        return found if "source_target_pairs=" in line else found[:1]
    counted = _COUNTED.search(line)
    if counted is not None:
        # All devices in an array, whose axes may be turned; the groups are runs of what that gives.
        dims = _dims(counted["dims"])
        places = np.arange(math.prod(dims)).reshape(dims)
        if counted["order"]:
            places = places.transpose(_dims(counted["order"]))
        return (tuple(places.reshape(-1)[: int(counted["size"])].tolist()),)
    named = _NAMED.search(line)
    return () if named is None else (_along(named["axes"], named["names"]),)


def _along(axes: str, names: str) -> tuple[int, ...]:
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


def _dims(text: str) -> Dims:
    # A scalar has none, and its text is empty.
    return tuple(map(int, filter(None, text.split(","))))


def _sizes(shape: str) -> list[int]:
    """Bytes of each array that a shape, or a tuple of shapes, is made of."""
    return [_nbytes(one["dtype"], one["dims"]) for one in _ARRAY.finditer(shape)]


def _nbytes(dtype: str, dims: str) -> int:
    bits = 8 if dtype == "pred" else int((_BITS.match(dtype) or ["", "32"])[1])
    # Numbers of four bits are counted as whole bytes.
    return math.prod(_dims(dims)) * max(bits // 8, 1)


def _touched(instruction: re.Match[str], sizes: dict[str, int]) -> int:
    """The bytes that an instruction reads and writes; notes those of its result among `sizes`, for what reads it."""
    sizes[instruction["name"]] = sum(_sizes(instruction["shape"]))
    return sizes[instruction["name"]] + sum(sizes.get(name, 0) for name in _operands(instruction))


def _operands(instruction: re.Match[str]) -> list[str]:
    """Names of the values that an instruction takes; attributes behind the bracket name computations instead."""
    return _OPERAND.findall(instruction["rest"].partition(")")[0])
