"""Advice on a compiled step: what would make it faster, and by how much at most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute import Variable
from jaxtribute._src.addons.planning.inspection import Step
from jaxtribute._src.addons.planning.kinds import Device
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute._src.addons.tools.hlo.schedule import Timing
from jaxtribute._src.addons.tools.tables import seconds_text
from jaxtribute._src.addons.wires.summing import LEAST_ELEMENTS
from jaxtribute.errors import ArgumentError
from jaxtribute.experimental import CommunicationOptions
from jaxtribute.extending import Jaxpr, JaxprEqn, Programs

_TILE = 128
"""Rows and columns of a unit that multiplies matrices; of v6e twice as many."""
_MUCH = 0.03
"""The part of a step from which it is worth a line."""
_LAYERS = 4
"""Equal layers from which a scan is worth it."""


class _Product:
    """A matrix product of a traced program.

    Args:
      eqn: its operation.
      times: how often it runs, in scans.
    """

    def __init__(self, eqn: JaxprEqn, times: int) -> None:
        left, right = (Programs.aval(atom) for atom in eqn.invars)
        (contracted, other), (batch, of_right) = eqn.params["dimension_numbers"]
        self.depth = tuple([left.shape[axis] for axis in contracted])
        self.rows = tuple([size for axis, size in enumerate(left.shape) if axis not in (*contracted, *batch)])
        self.columns = tuple([size for axis, size in enumerate(right.shape) if axis not in (*other, *of_right)])
        batches = math.prod([left.shape[axis] for axis in batch])
        self.times = times
        self.operations = 2.0 * times * batches * math.prod((*self.depth, *self.rows, *self.columns))
        self.wide = np.dtype(left.dtype) == np.float32 and np.dtype(right.dtype) == np.float32
        self.key = str(eqn.invars[0].aval), str(eqn.invars[1].aval), str(eqn.params["dimension_numbers"])

    def padding(self) -> dict[int, float]:
        """Operations that padding to whole tiles adds, by the lengths that are padded; of whole matrices alone."""
        found: dict[int, float] = {}
        for sizes in (self.depth, self.columns):
            size = math.prod(sizes)
            # Less than a tile is what the model is; a little more than a few is what a choice of sizes has cost.
            if len(sizes) == 1 and size > _TILE and size % _TILE:
                found[size] = self.operations * (-size % _TILE) / size
        return found


def advice(
    step: Step, chip: Device, timing: Timing, seconds: float, exchange: Callable[[Collective], float]
) -> tuple[str, ...]:
    """Tells what would make a step faster, a line each.

    Args:
      step: the step.
      chip: the devices.
      timing: what its parts are predicted to take.
      seconds: how long compiling took.
      exchange: tells the seconds of a collective among all devices.
    """
    traced = step.traced()
    found = list(_products(traced, 1, scanned=False))
    whole = sum(product.operations for product, _ in found) or 1.0
    lines = [
        *_of_waits(step, traced, timing, exchange),
        *_of_tiles(found, whole, timing),
        *_of_numbers(found, whole, chip, timing),
    ]
    hosted = sorted(set(_callbacks(traced)))
    if hosted:
        lines.append(
            f"{', '.join(hosted)} in the step: the devices wait for the host. Take it out, or have it in another "
            "function that is called now and then."
        )
    return (*lines, *_of_layers(found, seconds))


def _products(jaxpr: Jaxpr, times: int, *, scanned: bool) -> Iterator[tuple[_Product, bool]]:
    """The matrix products of a program and of those inside it, and which of them stand in a scan."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield _Product(eqn, times), scanned
        turns = Programs.scan_counts(eqn)[2] if eqn.primitive.name == "scan" else 1
        for part in Programs.programs_in(eqn):
            yield from _products(Programs.opened(part), times * turns, scanned=scanned or turns > 1)


def _callbacks(jaxpr: Jaxpr) -> Iterator[str]:
    """Names of the operations that call Python from a program."""
    for eqn in jaxpr.eqns:
        if "callback" in eqn.primitive.name or "debug" in eqn.primitive.name:
            yield eqn.primitive.name
        for part in Programs.programs_in(eqn):
            yield from _callbacks(Programs.opened(part))


def _of_waits(step: Step, traced: Jaxpr, timing: Timing, exchange: Callable[[Collective], float]) -> Iterator[str]:
    seldom, size = _made_seldom(step), _rounded_bytes(step, traced)
    # What travels in a smaller type is sent to be summed, and the sums to all.
    saved = exchange(Collective("all-reduce", (size,))) if size else 0.0
    saved -= sum(exchange(Collective(kind, (size // 2,))) for kind in ("all-to-all", "all-gather")) if size else 0.0
    for (kind, among), seconds in sorted(timing.waits.items(), key=lambda one: -one[1]):
        if seconds > _MUCH * timing.step:
            # What the devices of one replica exchange are no sums of gradients.
            between = among == step.replicas and among != step.per_replica
            remedies = ["more examples on each device"]
            remedies += ["accumulate_steps"] if between and kind in seldom else []
            remedies += ['wire="bfloat16"'] if between and kind == "all-reduce" and saved > _MUCH * timing.step else []
            yield (
                f"{seconds_text(seconds)} ({seconds / timing.step:.0%}) of waiting for {kind} among {among}, which "
                f"nothing hides: {', '.join(remedies)}, or what jaxtribute plan --fit finds."
            )


def _made_seldom(step: Step) -> set[str]:
    """The kinds of collectives between replicas of which an optimizer with `accumulate_steps` makes fewer."""
    trained = _trained(step)
    # Tables refuse it; gradients of variables in slices are summed, and the slices gathered, in every call.
    if not trained or any(one.policy.by_rows or one.policy.cut is not None for one in trained):
        return set()
    kinds = {"all-reduce", "reduce-scatter"}
    kinds |= {"all-gather"} if _is_sharded(step) else set()
    # So are sums made that travel in a smaller type.
    return kinds | ({"all-to-all", "all-gather"} if any(map(_wire, trained)) else set())


def _rounded_bytes(step: Step, traced: Jaxpr) -> int:
    """Bytes of the gradients that would travel in a smaller type if it were asked for; sharded updates stay exact."""
    trained = _trained(step)
    large = [
        one for one in trained if one.dtype == np.float32 and one.size >= LEAST_ELEMENTS and not one.policy.by_rows
    ]
    if _is_sharded(step) or not large or any(map(_wire, trained)):
        return 0
    try:
        for strategy in {one.distribute_strategy for one in large}:
            strategy.extended.summation(CommunicationOptions(wire="bfloat16"))
    except ArgumentError:
        return 0
    # Of large matrices the factors may be what is exchanged.
    return min(4 * sum(one.size for one in large), 4 * sum(size for size in _summed(traced) if size >= LEAST_ELEMENTS))


def _trained(step: Step) -> list[Variable]:
    return [variable for variable in step.program.donated if variable.trainable]


def _is_sharded(step: Step) -> bool:
    """True if each replica updates a slice of some variables."""
    return any(variable.policy.cut is not None for variable in step.program.donated)


def _wire(variable: Variable) -> str | None:
    """The type in which gradients of a variable travel by its strategy's hints."""
    return variable.distribute_strategy.extended.wire


def _summed(jaxpr: Jaxpr) -> Iterator[int]:
    """The sizes of the float32 arrays that a program sums over the replicas."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("psum", "psum_invariant", "jd_sum") and Programs.names_axis(eqn, AXIS):
            avals = map(Programs.aval, eqn.invars)
            yield from (math.prod(one.shape) for one in avals if one.dtype == np.float32)
        for part in Programs.programs_in(eqn):
            yield from _summed(Programs.opened(part))


def _of_tiles(found: Sequence[tuple[_Product, bool]], whole: float, timing: Timing) -> Iterator[str]:
    added: Counter[int] = Counter()
    for product, _ in found:
        for size, operations in product.padding().items():
            added[size] += int(operations)
    for size, operations in added.most_common(3):
        share = operations / (whole + sum(added.values()))
        if share > _MUCH:
            up = -(-size // _TILE) * _TILE
            yield (
                f"{size:,} is no multiple of {_TILE}: {share:.0%} of what the products compute is padding, at most "
                f"{seconds_text(share * timing.compute)}. Make it {up - _TILE:,} or {up:,}."
            )


def _of_numbers(found: Sequence[tuple[_Product, bool]], whole: float, chip: Device, timing: Timing) -> Iterator[str]:
    share = sum(product.operations for product, _ in found if product.wide) / whole
    gain = share * timing.compute * (1 - chip.single / chip.half)
    if share > _MUCH and gain > _MUCH * timing.step:
        yield (
            f"{share:.0%} of the products' operations are of 32-bit numbers; in bfloat16 they take half of the memory "
            f"and at best half of the time: at most {seconds_text(gain)} less. See jd.precision."
        )


def _of_layers(found: Sequence[tuple[_Product, bool]], seconds: float) -> Iterator[str]:
    apart: Counter[Any] = Counter()
    for product, scanned in found:
        if not scanned:
            apart[product.key] += 1
    # Each layer has several products, some of which are computed again: the number of layers is that of most of them.
    kinds = Counter(apart.values())
    layers, most = max(kinds.items(), key=lambda one: (one[1], one[0]), default=(0, 0))
    if layers >= _LAYERS and most > 1:
        yield (
            f"{layers} layers seem to be equal and are compiled one by one ({seconds:.0f} s in all). With stacked "
            "weights jax.lax.scan has one of them compiled."
        )
