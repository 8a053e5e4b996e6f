"""`Module`: the instructions of a compiled program, by computation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?(?P<name>%?[\w.-]+) = (?P<shape>\(.*?\)|\S+) (?P<kind>[\w-]+)\((?P<rest>.*)"
)
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?(?P<name>%?[\w.-]+) \(.*\{$")
_OPERAND = re.compile(r"%[\w.-]+(?:#\d+)?")
_ARRAY = re.compile(r"\b(?P<dtype>pred|[a-z]+\d+\w*)\[(?P<dims>[\d,]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")
_BITS = re.compile(r"[a-z]+(\d+)")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation, such as `%sum.1 = f32[8]{0} add(%a, %b)`.

    Attributes:
      name: what other lines call its result.
      shape: the text of the result's shape.
      kind: what it does, such as `add`.
      operands: names of the values that it takes.
      line: the whole line.
      root: True if its result is that of the computation.
    """

    name: str
    shape: str
    kind: str
    operands: tuple[str, ...]
    line: str
    root: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the result, of all arrays of a tuple."""
        return sum(sizes_of(self.shape))

    @property
    def dims(self) -> Dims:
        """Shape of the result; of the first of several, as cuBLAS and cuDNN return their scratch memory after it."""
        array = _ARRAY.search(self.shape)
        return dims_of(array["dims"]) if array else ()

    @property
    def target(self) -> str:
        """Name of the code that a custom call runs; empty for what is none."""
        found = _TARGET.search(self.line) if self.kind == "custom-call" else None
        return found[1] if found else ""


@dataclass
class Computation:
    """A computation of a module: the entry, the body of a loop or what a fusion calls.

    Attributes:
      name: what instructions call it.
      instructions: in the order of the text.
    """

    name: str
    instructions: list[Instruction] = field(default_factory=list[Instruction])

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """The instructions by their names, which are unique within a computation only."""
        return {one.name: one for one in self.instructions}

    @cached_property
    def root(self) -> Instruction | None:
        """The instruction whose result the computation returns."""
        return next((one for one in self.instructions if one.root), None)

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        """The instructions that stand for the computation's arguments, by their numbers."""
        return {_number(one): one for one in self.instructions if one.kind == "parameter"}

    def users(self, name: str) -> Iterator[Instruction]:
        """The instructions that take a value."""
        return (one for one in self.instructions if name in one.operands)

    def value(self, place: Instruction, operand: int) -> Instruction | None:
        """The instruction whose result another one takes; None if the text does not have it."""
        return self.by_name.get(place.operands[operand]) if operand < len(place.operands) else None


@dataclass(frozen=True)
class Module:
    """A program.

    Attributes:
      computations: by name, in the order of the text: each stands before those that call it.
      entry: the name of the one that the program begins with; empty if none is marked.
    """

    computations: dict[str, Computation]
    entry: str


def read(text: str) -> Module:
    """Reads a program's text; lines outside of every computation form one without a name."""
    current = Computation("")
    computations = {"": current}
    entry = ""
    shapes: dict[str, str] = {}
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header is not None:
            current = computations[header["name"]] = Computation(header["name"])
            entry = header["name"] if header["entry"] else entry
            shapes = {}
            continue
        match = _INSTRUCTION.match(line)
        if match is not None:
            # Attributes after the bracket name computations, not values.
            operands = tuple(_OPERAND.findall(match["rest"].partition(")")[0]))
            one = Instruction(
                match["name"], match["shape"], match["kind"], operands, line, root=match["root"] is not None
            )
            current.instructions += [*_parts_taken(shapes, one), one]
            shapes[one.name] = one.shape
    return Module(computations, entry)


def _parts_taken(shapes: dict[str, str], one: Instruction) -> Iterator[Instruction]:
    """The parts of tuples that operands such as `%pair#1` are, as a compiler writes before it generates code."""
    for name in dict.fromkeys(one.operands):
        whole, _, place = name.partition("#")
        if place and name not in shapes:
            shape = shapes[name] = elements_of(shapes[whole])[int(place)]
            line = f"  {name} = {shape} get-tuple-element({whole}), index={place}"
            yield Instruction(name, shape, "get-tuple-element", (whole,), line, root=False)


def dims_of(text: str) -> Dims:
    """The numbers of a text such as `8,64`; a scalar has none."""
    return tuple(map(int, filter(None, text.split(","))))


def sizes_of(shape: str) -> list[int]:
    """Bytes of each array of a shape's text, or of a tuple's."""
    return [_nbytes(one["dtype"], one["dims"]) for one in _ARRAY.finditer(shape)]


def elements_of(shape: str) -> list[str]:
    """The shapes in the text of a tuple's, which may be tuples, too."""
    found, depth = [""], 0
    for each in _COMMENT.sub("", shape)[1:-1]:
        depth += (each in "([{") - (each in ")]}")
        if each == "," and not depth:
            found.append("")
        else:
            found[-1] += each
    return [one.strip() for one in found]


def _nbytes(dtype: str, dims: str) -> int:
    bits = 8 if dtype == "pred" else int((_BITS.match(dtype) or ["", "32"])[1])
    # Numbers of four bits are counted as whole bytes.
    return math.prod(dims_of(dims)) * max(bits // 8, 1)


def _number(parameter: Instruction) -> int:
    """The number of an argument, of a line such as `%x = f32[8] parameter(2)`."""
    found = re.search(r"parameter\((\d+)\)", parameter.line)
    return int(found[1]) if found else -1
