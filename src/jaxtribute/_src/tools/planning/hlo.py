"""The collectives in the text of a compiled program, and its passes over memory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_OPERATION = re.compile(
    r"= (?P<shape>.+?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_CHAIN = re.compile(r'chain_id="(\d+)"')
_ARRAY = re.compile(r"\b(?P<dtype>pred|[a-z]+\d+\w*)\[(?P<dims>[\d,]*)\]")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?(?P<name>%?[\w.-]+) = (?P<shape>\(.*?\)|\S+) (?P<kind>[\w-]+)\((?P<rest>.*)")
_OPERAND = re.compile(r"%[\w.-]+")
_CALLED = re.compile(r"(?:calls|to_apply)=(%?[\w.-]+)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?(?P<name>%?[\w.-]+) \(.*\{$")
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
            computation, entry = opened["name"], line.startswith("ENTRY")
        elif _PRODUCT.search(line):
            products.add(computation)
        match = _INSTRUCTION.match(line) if entry else None
        if match is None:
            continue
        shapes[match["name"]] = sum(_nbytes(one["dtype"], one["dims"]) for one in _ARRAY.finditer(match["shape"]))
        called = _CALLED.search(match["rest"])
        # Computations that are called stand before those that call them: by now all fusions with a product are known.
        apart = _PRODUCT.search(line) or _OPERATION.search(line) or (called is not None and called[1] in products)
        if not apart and match["kind"] not in _FREE:
            read = match["rest"].partition(")")[0]
            operands = (shapes.get(name, 0) for name in _OPERAND.findall(read))
            found.append(shapes[match["name"]] + sum(operands))
    return tuple(found)


def _nbytes(dtype: str, dims: str) -> int:
    bits = 8 if dtype == "pred" else int((_BITS.match(dtype) or ["", "32"])[1])
    return math.prod(int(size) for size in dims.split(",") if size) * max(bits // 8, 1)
