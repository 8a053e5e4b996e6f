"""Work of a program on each device: operations, bytes that they touch, passes over memory, kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from jaxtribute._src.addons.tools.hlo.convolutions import convolution_flops
from jaxtribute._src.addons.tools.hlo.loops import Runs, runs
from jaxtribute._src.addons.tools.hlo.text import Computation, Dims, Instruction, Module, dims_of, read
from jaxtribute.typing import Foreign

_CALLED = re.compile(r"calls=(%?[\w.-]+)")
_CONTRACTED = re.compile(r'lhs_contracting_d(?:ims=\{|imensions":\[)(?P<dims>["\d,]*)')
_KERNEL = re.compile(r"dim_labels=\w+_(?P<labels>\w+)->")
# Of a backward convolution the forward one's result is an operand, and of that of kernels the kernel is the result.
_CONVOLUTIONS = {
    "__cudnn$convForward": (0, 2),
    "__cudnn$convBiasActivationForward": (0, 2),
    "__cudnn$convBackwardInput": (1, 2),
    "__cudnn$convBackwardFilter": (2, 0),
}
FREE = frozenset(
    {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "partition-id"}
    | {"while", "conditional", "call"}  # what they call is looked at itself
)
"""Kinds of instructions that move no bytes."""
_PRODUCTS = frozenset({"dot", "convolution", "custom-call"})
_EXCHANGES = re.compile(r"(?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?")
_ELEMENTWISE = frozenset(
    {"add", "subtract", "multiply", "divide", "maximum", "minimum", "negate", "abs", "sign", "compare", "select", "and"}
    | {"or", "xor", "not", "convert", "floor", "ceil", "remainder", "clamp", "is-finite", "shift-left"}
    | {"shift-right-logical", "shift-right-arithmetic"}
)
_SLICES = frozenset({"dynamic-slice", "gather", "slice"})
"""Kinds that read as much of their first operand as their result holds."""


def costs(compiled: Foreign) -> tuple[float, float]:
    """The operations of a program that JAX has compiled, on each device, and the bytes that they touch.

    XLA counts what a loop does once. Its figures are multiplied by what the text comes to with all turns of all loops,
    relative to one turn of each.
    """
    told = compiled.cost_analysis() or {}
    text = compiled.as_text()
    operations, nbytes = (max(float(told.get(key, 0.0)), 0.0) for key in ("flops", "bytes accessed"))
    if text is None:
        return operations, nbytes
    if not told:  # the compiler of GPUs says nothing
        return flops(text), traffic(text)
    module = read(text)
    found = runs(module)
    return (
        operations * _ratio(_flops(module, found, every=True), _flops(module, found.once, every=True)),
        nbytes * _ratio(_traffic(module, found), _traffic(module, found.once)),
    )


def open_loops(text: str) -> int:
    """The number of loops whose turns depend on values, or could not be read: they count once."""
    return runs(read(text)).unknown


def flops(text: str) -> float:
    """Operations of the products and convolutions of a program, on one device: two for each pair of factors.

    Those inside of fusions and those that cuBLAS and cuDNN compute are counted. What else a program computes is not: on
    accelerators memory bounds it.
    """
    module = read(text)
    return _flops(module, runs(module), every=False)


def traffic(text: str) -> float:
    """Bytes that the instructions of a program read and write, on one device.

    What a fusion keeps inside is no traffic. Of an array that only a slice is taken from, the slice counts.
    """
    module = read(text)
    return _traffic(module, runs(module))


def passes(text: str) -> tuple[int, ...]:
    """The bytes that each instruction of a program reads and writes, on one device, products and collectives apart.

    One inside a loop comes as often as the loop turns.
    """
    module = read(text)
    products = {
        name for name, one in module.computations.items() if any(each.kind in _PRODUCTS for each in one.instructions)
    }
    found: list[int] = []
    for computation, one, times in _outer(module, runs(module)):
        called = _CALLED.search(one.line)
        apart = one.kind in _PRODUCTS or _EXCHANGES.fullmatch(one.kind)
        if not apart and (called is None or called[1] not in products):
            found += [touched(module, computation, one)] * times
    return tuple(found)


def kernels(text: str) -> int:
    """The number of times that a program computes, copies or exchanges something."""
    module = read(text)
    return sum(times for _, _, times in _outer(module, runs(module)))


def _ratio(all_turns: float, one_turn: float) -> float:
    return all_turns / one_turn if one_turn else 1.0


def _outer(module: Module, found: Runs) -> Iterator[tuple[Computation, Instruction, int]]:
    """The instructions that do something and lie inside of no other, with their computation and number of turns."""
    for computation in module.computations.values():
        times = found.times[computation.name]
        if not times or not computation.name or computation.name in found.inside:
            continue
        for one in computation.instructions:
            if one.kind not in FREE and not one.kind.endswith("-done"):  # `done` ends what another began
                yield computation, one, times


def operations_within(module: Module, computation: Computation, one: Instruction) -> float:
    """Operations of the products and convolutions that an instruction is, or that a fusion has inside."""
    inner = module.computations.get(_called(one)) if one.kind == "fusion" else None
    parts = [(computation, one)] if inner is None else [(inner, each) for each in inner.instructions]
    return sum(_operations(each, _shapes(where, each)) for where, each in parts)


def _flops(module: Module, found: Runs, *, every: bool) -> float:
    """Operations of a program; with `every` those of single elements, too."""
    total = 0.0
    for computation in module.computations.values():
        times = found.times[computation.name]
        for one in computation.instructions if times else ():
            arrays = _shapes(computation, one)
            operations = _operations(one, arrays)
            if every and one.kind in _ELEMENTWISE:
                operations = math.prod(one.dims)
            elif every and one.kind in ("reduce", "reduce-window") and len(arrays) > 1:
                operations = math.prod(arrays[1])
            total += times * operations
    return total


def _shapes(computation: Computation, one: Instruction) -> list[Dims]:
    """Shapes of an instruction's result and of its operands."""
    return [one.dims, *(value.dims if value else () for value in _values(computation, one))]


def _values(computation: Computation, one: Instruction) -> Iterator[Instruction | None]:
    """The instructions whose results another one takes."""
    return (computation.by_name.get(name) for name in one.operands)


def _operations(one: Instruction, arrays: list[Dims]) -> float:
    """Operations of a product whose result and operands have these shapes; none of another instruction."""
    name = one.target
    if one.kind == "convolution":
        return convolution_flops(one.line, arrays)
    if name in _CONVOLUTIONS:
        result, kernel = _CONVOLUTIONS[name]
        labels = _KERNEL.search(one.line)
        if labels is None or max(result, kernel) >= len(arrays):
            return 0.0
        # Each element of the result takes a product with the whole kernel of its output feature.
        outputs = arrays[kernel][labels["labels"].index("o")]
        return 2.0 * math.prod(arrays[result]) * math.prod(arrays[kernel]) / max(outputs, 1)
    if one.kind == "dot" or name.startswith("__cublas$"):
        contracted = _CONTRACTED.search(one.line)
        # The compiler of GPUs writes the axes as strings, in JSON.
        axes = dims_of(contracted["dims"].replace('"', "")) if contracted is not None else ()
        if len(arrays) < 2 or max(axes, default=-1) >= len(arrays[1]):
            return 0.0
        return 2.0 * math.prod(arrays[0]) * math.prod(arrays[1][axis] for axis in axes)
    return 0.0


def _traffic(module: Module, found: Runs) -> float:
    return float(sum(times * touched(module, computation, one) for computation, one, times in _outer(module, found)))


def touched(module: Module, computation: Computation, one: Instruction) -> int:
    """The bytes that an instruction reads and writes."""
    reads = (_reads(module, computation, one, place) for place in range(len(one.operands)))
    return sum(reads) + _writes(module, computation, one)


def _reads(module: Module, computation: Computation, one: Instruction, place: int) -> int:
    """The bytes that an instruction reads of one operand."""
    if place == 0 and one.kind in _SLICES:
        return one.nbytes
    if place == 0 and one.kind == "dynamic-update-slice":
        return 0  # the rest stays where it is
    inner = module.computations.get(_called(one))
    parameter = inner.parameters.get(place) if inner is not None else None
    if inner is None or parameter is None:
        value = computation.value(one, place)
        return value.nbytes if value is not None else 0
    return min(parameter.nbytes, _reads_within(module, inner, parameter))


def _reads_within(module: Module, inner: Computation, value: Instruction) -> int:
    """The bytes that a fusion reads of a value that comes from outside; each user counts."""
    total = 0
    for user in inner.users(value.name):
        if user.kind == "bitcast":
            total += _reads_within(module, inner, user)
        else:
            places = [place for place, name in enumerate(user.operands) if name == value.name]
            total += sum(_reads(module, inner, user, place) for place in places)
    # What only names a value, such as the fusion's own result, reads it once.
    return total or (value.nbytes if not list(inner.users(value.name)) else 0)


def _writes(module: Module, computation: Computation, one: Instruction) -> int:
    """The bytes that an instruction writes: of an array that a slice is written into, the slice."""
    if one.kind == "dynamic-update-slice":
        update = computation.value(one, 1)
        return update.nbytes if update is not None else one.nbytes
    inner = module.computations.get(_called(one))
    root = inner.root if inner is not None else None
    if inner is None or root is None:
        return one.nbytes
    results = [root] if root.kind != "tuple" else list(filter(None, _values(inner, root)))
    total = 0
    for result in results:
        made: Instruction | None = result
        while made is not None and made.kind == "bitcast":
            made = inner.value(made, 0)
        sliced = made is not None and made.kind in ("dynamic-update-slice", "fusion")
        total += _writes(module, inner, made) if made is not None and sliced else result.nbytes
    return min(total, one.nbytes)


def _called(one: Instruction) -> str:
    """The computation of a fusion; empty for every other instruction."""
    found = _CALLED.search(one.line) if one.kind == "fusion" else None
    return found[1] if found else ""
