"""Numbers of runs of a program's computations: the body of a loop as often as the loop turns.

The compilers of CPUs and GPUs write the number of turns beside a loop whose length is known. The compiler of TPUs
does not: there the number follows from the condition, which compares a counter with a constant.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

from jaxtribute._src.addons.tools.hlo.text import Computation, Instruction, Module

_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(r"(?:calls|to_apply|true_computation|false_computation)=(%?[\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_BODY = re.compile(r"\bbody=(%?[\w.-]+)")
_CONDITION = re.compile(r"\bcondition=(%?[\w.-]+)")
_INTEGER = re.compile(r" constant\((-?\d+)\)")
_INDEX = re.compile(r"\), index=(\d+)")
_DIRECTION = re.compile(r"direction=(\w\w)")
_SAME = frozenset({"copy", "bitcast", "convert", "reshape", "copy-done", "copy-start"})
"""Kinds whose result is their operand's value."""


@dataclass
class Runs:
    """Numbers of runs of computations, in one run of the program.

    Attributes:
      times: by the computation's name; those of a loop of unknown length count once.
      inside: computations that others call from within an instruction, such as those of fusions.
      unknown: loops whose number of turns depends on values, or could not be read.
      turns: by the names of a computation and of a loop in it; those of unknown length have one.
    """

    times: Counter[str] = field(default_factory=Counter[str])
    turns: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    inside: set[str] = field(default_factory=set[str])
    unknown: int = 0

    @property
    def once(self) -> Runs:
        """The same computations, each of which runs a single time."""
        once = Counter({name: 1 for name, times in self.times.items() if times})
        return Runs(once, dict.fromkeys(self.turns, 1), self.inside, self.unknown)


def runs(module: Module) -> Runs:
    """Counts how often each computation of a program runs."""
    found = Runs()
    found.times[""] = found.times[module.entry] = 1
    loops = _loops(module)
    # Callers stand after what they call. Seen from the end, a computation's own number is known when it is reached.
    for computation in reversed(module.computations.values()):
        times = found.times[computation.name]
        for one in computation.instructions:
            if one.kind == "while":
                turns = _turns(module, loops, computation, one)
                found.unknown += turns is None and times > 0
                found.turns[computation.name, one.name] = 1 if turns is None else turns
            names = called_by(one)
            for name in names:
                found.times[name] += times * found.turns.get((computation.name, one.name), 1)
            if one.kind not in ("while", "call", "conditional", "async-start"):
                found.inside.update(names)
    return found


def called_by(one: Instruction) -> list[str]:
    """Names of the computations that an instruction calls: bodies, branches, what a fusion has inside."""
    names = [*_CALLED.findall(one.line), *_BODY.findall(one.line), *_CONDITION.findall(one.line)]
    for branches in _BRANCHES.findall(one.line):
        names += map(str.strip, branches.split(","))
    return names


_Loops = dict[str, tuple[Computation, Instruction]]
"""For the body and the condition of each loop the computation that has the loop, and the loop."""


def _loops(module: Module) -> _Loops:
    found: _Loops = {}
    for computation in module.computations.values():
        for one in computation.instructions:
            if one.kind == "while":
                for name in (*_BODY.findall(one.line), *_CONDITION.findall(one.line)):
                    found[name] = computation, one
    return found


def _turns(module: Module, loops: _Loops, outer: Computation, loop: Instruction) -> int | None:
    """The number of turns of a loop; None if it is not known before the loop runs."""
    told = _TRIPS.search(loop.line)
    if told is not None:
        return int(told[1])
    condition = module.computations.get(next(iter(_CONDITION.findall(loop.line)), ""))
    body = module.computations.get(next(iter(_BODY.findall(loop.line)), ""))
    test = condition.root if condition is not None else None
    if condition is None or body is None or test is None or test.kind != "compare":
        return None
    counter = _element(condition, condition.value(test, 0))
    limit = _constant(module, loops, condition, condition.value(test, 1))
    direction = _DIRECTION.search(test.line)
    step = None if counter is None else _step(module, loops, body, counter)
    if counter is None or limit is None or direction is None or step is None:
        return None
    start = _constant(module, loops, outer, _initial(outer, loop, counter))
    return None if start is None else _count(start, limit, step, direction[1])


def _count(start: int, limit: int, step: int, direction: str) -> int | None:
    """The number of turns of a loop that goes on while `counter direction limit` holds."""
    if direction in ("LE", "GE"):
        limit += 1 if direction == "LE" else -1
    rising = direction in ("LT", "LE")
    if direction not in ("LT", "LE", "GT", "GE") or step == 0 or (step > 0) is not rising:
        return None
    return max(math.ceil((limit - start) / step), 0)


def _initial(outer: Computation, loop: Instruction, element: int) -> Instruction | None:
    """The value that an element of a loop's state begins with."""
    state = _plain(outer, outer.value(loop, 0))
    return outer.value(state, element) if state is not None and state.kind == "tuple" else None


def _plain(computation: Computation, value: Instruction | None) -> Instruction | None:
    """The value before it was copied or took another type."""
    while value is not None and value.kind in _SAME:
        value = computation.value(value, 0)
    return value


def _element(computation: Computation, value: Instruction | None) -> int | None:
    """The element of the state that a value within a loop is; None if it is something else."""
    value = _plain(computation, value)
    index = _INDEX.search(value.line) if value is not None and value.kind == "get-tuple-element" else None
    if value is None or index is None:
        return None
    source = _plain(computation, computation.value(value, 0))
    return int(index[1]) if source is not None and source.kind == "parameter" else None


def _constant(module: Module, loops: _Loops, computation: Computation, value: Instruction | None) -> int | None:
    """The integer that a value always is; None if it is not constant."""
    value = _plain(computation, value)
    if value is None:
        return None
    number = _INTEGER.search(value.line) if value.kind == "constant" else None
    if number is not None:
        return int(number[1])
    element = _element(computation, value)
    if element is None or computation.name not in loops:
        return None
    # A part of the state that no turn changes is what it was before the loop.
    outer, loop = loops[computation.name]
    body = module.computations.get(next(iter(_BODY.findall(loop.line)), ""))
    if body is None or body.root is None or body.root.kind != "tuple":
        return None
    if _element(body, body.value(body.root, element)) != element:
        return None
    return _constant(module, loops, outer, _initial(outer, loop, element))


def _step(module: Module, loops: _Loops, body: Computation, element: int) -> int | None:
    """The number that a turn adds to an element of the state; None if it does anything else with it."""
    root = body.root
    new = _plain(body, body.value(root, element)) if root is not None and root.kind == "tuple" else None
    if new is None or new.kind not in ("add", "subtract"):
        return None
    for place in (0, 1):
        old, other = body.value(new, place), body.value(new, 1 - place)
        if _element(body, old) == element:
            step = _constant(module, loops, body, other)
            if new.kind == "subtract":
                return -step if step is not None and place == 0 else None
            return step
    return None
