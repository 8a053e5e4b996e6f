"""Operations and bytes of a compiled program, counted in its text, for compilers that tell neither."""

from __future__ import annotations

import math
import re
from collections.abc import Generator

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?[\w.-]+ \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?(?P<name>%?[\w.-]+) = (?P<shape>\(.*?\)|\S+) (?P<kind>[\w-]+)\((?P<rest>.*)")
_ARRAY = re.compile(r"\b(?P<dtype>pred|[a-z]+\d+\w*)\[(?P<dims>[\d,]*)\]")
_OPERAND = re.compile(r"%[\w.-]+")
_CONTRACTED = re.compile(r'lhs_contracting_d(?:ims=\{|imensions":\[)(?P<dims>["\d,]*)')
_KERNEL = re.compile(r"dim_labels=\w+_(?P<labels>\w+)->")
_TARGET = re.compile(r'custom_call_target="(?P<name>[^"]+)"')
_BITS = re.compile(r"[a-z]+(\d+)")
_FREE = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "partition-id"})
# Of a backward convolution the forward one's result is an operand, and of that of kernels the kernel is the result.
_CONVOLUTIONS = {
    "__cudnn$convForward": (0, 2),
    "__cudnn$convBiasActivationForward": (0, 2),
    "__cudnn$convBackwardInput": (1, 2),
    "__cudnn$convBackwardFilter": (2, 0),
}

Dims = tuple[int, ...]


def flops(text: str) -> float:
    """Operations of the products and convolutions of a program, on one device: two for each pair of factors.

    Those inside of fusions and those that cuBLAS and cuDNN compute are counted; one inside a loop counts once. What
    else a program computes is not: on accelerators memory bounds it.
    """
    shapes: dict[str, Dims] = {}
    found = 0.0
    for line in text.splitlines():
        if _COMPUTATION.match(line):
            shapes = {}
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        results = [_dims(one["dims"]) for one in _ARRAY.finditer(match["shape"])]
        shapes[match["name"]] = results[0] if results else ()
        operands = [shapes.get(name, ()) for name in _OPERAND.findall(match["rest"].partition(")")[0])]
        found += _operations(match["kind"], line, [shapes[match["name"]], *operands])
    return found


def traffic(text: str) -> float:
    """Bytes that the instructions of a program read and write, on one device; what a fusion keeps inside is no traffic.

    One inside a loop counts once.
    """
    sizes: dict[str, float] = {}
    found = 0.0
    for match in _entry(text):
        sizes[match["name"]] = sum(_nbytes(one["dtype"], one["dims"]) for one in _ARRAY.finditer(match["shape"]))
        if _works(match["kind"]):
            read = _OPERAND.findall(match["rest"].partition(")")[0])
            found += sizes[match["name"]] + sum(sizes.get(name, 0.0) for name in read)
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
        outputs = arrays[kernel][labels["labels"].index("o")]
        return 2.0 * math.prod(arrays[result]) * math.prod(arrays[kernel]) / max(outputs, 1)
    if kind == "dot" or name.startswith("__cublas$"):
        contracted = _CONTRACTED.search(line)
        axes = _dims(contracted["dims"].replace('"', "")) if contracted is not None else ()
        if len(arrays) < 2 or any(axis >= len(arrays[1]) for axis in axes):
            return 0.0
        return 2.0 * math.prod(arrays[0]) * math.prod(arrays[1][axis] for axis in axes)
    return 0.0


def _dims(text: str) -> Dims:
    return tuple(int(size) for size in text.split(",") if size)


def _nbytes(dtype: str, dims: str) -> float:
    bits = 8 if dtype == "pred" else int((_BITS.match(dtype) or ["", "32"])[1])
    return math.prod(_dims(dims)) * bits / 8
