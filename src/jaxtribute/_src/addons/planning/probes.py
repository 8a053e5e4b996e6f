"""Programs that measure what a machine takes for the parts of a step, none of which is the step.

| probe | is, on all devices at once |
|---|---|
| `base` | a program that does next to nothing |
| `launch` | one with as many arrays as the step takes and returns |
| `meeting` | one at whose end the devices meet, in the smallest of all-reduces |
| `products` | all matrix products and convolutions of the step, one after the other; the devices meet at the end |
| `pass N` | arithmetic that reads and writes N bytes, several times |
| `collectives` | the collectives of the step, of arrays of their sizes |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxtribute._src.addons.bench.rates import in_turns, seconds_a_call
from jaxtribute._src.addons.planning.products import Product, all_made
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute.extending import Cut
from jaxtribute.typing import Array, HostArray

# From what fits into a core's first cache to what fits into none: seconds per byte differ in between.
_SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 25)
"""Bytes of the passes that are measured."""
_TIMES = (16, 16, 4, 1, 1)
"""Number of times that a probe makes each step."""
_SMALL = 4
_TURN_S, _AT_MOST, _TOGETHER = 0.01, 100, 4
"""A turn is so short that some of many are not disturbed; how many calls it has at most, and in several processes."""
_ROUNDS_S, FEWEST, MOST = 6.0, 12, 60
_STEP = "step"


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a step by its parts.

    Attributes:
      launch: starting a program on all devices.
      products: matrix products and convolutions.
      passes: all other operations, by the bytes that they read and write.
      collectives: what the devices exchange.
    """

    launch: float
    products: float
    passes: float
    collectives: float

    @property
    def compute(self) -> float:
        """All but the collectives."""
        return self.launch + self.products + self.passes


@dataclass(frozen=True)
class Wanted:
    """Parts of a step on each device.

    Attributes:
      arrays: how many arrays it takes.
      products: its products.
      passes: bytes of each of its other operations.
      collectives: its collectives.
    """

    arrays: int
    products: Sequence[Product]
    passes: Sequence[int]
    collectives: Sequence[Collective]


def measure(wanted: Wanted, step: Callable[[], Any], devices: Sequence[Any]) -> tuple[Parts, float]:
    """Measures the parts of a step and the step itself in turns, so that a machine that slows down does so for both.

    Of many short turns the fastest counts, which others disturbed least.

    Args:
      wanted: what it is made of.
      step: makes one, and returns arrays that are done when it is.
      devices: all that take part, of all processes; each process measures, and makes as many calls.
    """
    found = probes(wanted, devices)
    calls = {**found.calls, _STEP: step}
    # Several processes must make the same calls in the same order: there no clock decides how many.
    counts, rounds = dict.fromkeys(calls, _TOGETHER), MOST // 3
    # The first calls compile.
    for call in calls.values():
        seconds_a_call(call, 2)
    if jax.process_count() == 1:
        whole = 0.0
        for name, call in calls.items():
            one = seconds_a_call(call, 2)
            counts[name] = min(max(int(_TURN_S / one), 1), _AT_MOST)
            whole += one * counts[name]
        rounds = min(max(int(_ROUNDS_S / whole), FEWEST), MOST)
    taken = {name: min(turns) for name, turns in in_turns(calls, counts, rounds).items()}
    return parts(wanted, taken, found), taken[_STEP]


@dataclass(frozen=True)
class Probes:
    """Programs that measure.

    Attributes:
      calls: each by its name.
      times: how often each does what it measures.
      besides: bytes of the passes that `products` makes besides.
    """

    calls: dict[str, Callable[[], Any]]
    times: dict[str, float]
    besides: Sequence[int] = ()


def parts(wanted: Wanted, taken: Mapping[str, float], found: Probes) -> Parts:
    """The parts of a step from what the probes took.

    Args:
      wanted: what it is made of.
      taken: seconds of each probe.
      found: what was measured.
    """

    # Every probe also starts a program; what it is to measure is the rest.
    def work(name: str, base: str = "base") -> float:
        return max(taken[name] - taken[base], 0.0) if name in taken else 0.0

    sizes = [size for size in _SIZES if f"pass {size}" in taken]
    seconds = [work(f"pass {size}") / found.times[f"pass {size}"] for size in sizes]

    def passing(wanted: Sequence[int]) -> float:
        # Beyond the largest pass the memory's bandwidth is reached, and time grows with the bytes.
        larger = sum(seconds[-1] * max(size / sizes[-1] - 1, 0.0) for size in wanted)
        return larger + (float(np.interp(wanted, sizes, seconds).sum()) if wanted else 0.0)

    products = max(work("products", "meeting") - passing(found.besides), 0.0) / found.times.get("products", 1.0)
    # Each array of the launch probe is also read and written, which the passes count already.
    launch = max(taken["launch"] - wanted.arrays * seconds[0], taken["base"])
    return Parts(launch, products, passing(wanted.passes), work("collectives"))


def probes(wanted: Wanted, devices: Sequence[Any]) -> Probes:
    """The programs that measure the parts of a step on these devices."""
    everywhere = _Everywhere(devices)
    calls = {"base": everywhere.call(_more, [_floats(_SMALL)])}
    calls["launch"] = everywhere.call(_more, [_floats(_SMALL)] * wanted.arrays)
    # Devices that share cores end at different times, and a step waits for the last one where it exchanges something.
    meet = bool(wanted.collectives) and len(devices) > 1
    calls["meeting"] = everywhere.call(_more, [_floats(_SMALL)], meet=meet)
    times: dict[str, float] = {}
    besides: Sequence[int] = ()
    if wanted.products:
        make, times["products"], besides = all_made(wanted.products)
        operands: list[jax.ShapeDtypeStruct] = []
        for one in wanted.products:
            operands += one.shapes
        calls["products"] = everywhere.call(make, operands, meet=meet)
    largest = max((*wanted.passes, *besides), default=0)
    for place, (size, count) in enumerate(zip(_SIZES, _TIMES, strict=True)):
        # Up to the first size that is large enough for all passes; two at least, between which others are placed.
        if place < 2 or _SIZES[place - 1] < largest:
            name = f"pass {size}"
            times[name] = count + (count > 1)  # one before the loop
            calls[name] = everywhere.call(_passes(count), [_floats(size // 8)])  # half is read, half is written
    if wanted.collectives and len(devices) > 1:
        arrays: list[jax.ShapeDtypeStruct] = []
        repeated: list[Collective] = []
        for one in wanted.collectives:
            repeated += [one] * one.times
        for one in repeated:
            arrays += [_floats(max(nbytes // 4, 1)) for nbytes in one.parts]
        calls["collectives"] = everywhere.call(_exchanges(repeated), arrays)
    return Probes(calls, times, besides)


def _floats(count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), np.dtype(np.float32))


class _Everywhere:
    """Makes programs that run on all devices at once, each on arrays of its own."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self._mesh = jax.sharding.Mesh(np.array(devices), ("replica",))
        self._split = jax.P("replica")

    def call(
        self, function: Callable[..., Any], shapes: Sequence[jax.ShapeDtypeStruct], *, meet: bool = False
    ) -> Callable[[], Any]:
        """A call of `function` on each device, of a carry and ones of these shapes; it returns a new carry first.

        The carry makes a call wait for the one before, as steps of a training do; of all devices, where they `meet`.
        """
        arrays = list(map(self._ones, shapes))

        def local(carry: Array, *values: Array) -> Any:
            carry, rest = function(carry, *values)
            return (jax.lax.psum(carry, "replica") if meet else carry), rest

        mapped = jax.shard_map(local, mesh=self._mesh, in_specs=self._split, out_specs=self._split, check_vma=False)
        program = jax.jit(mapped)
        # In a list, as `call` replaces it.
        carry = [self._ones(_floats(1))]

        def call() -> Any:
            carry[0], rest = program(carry[0], *arrays)
            return carry[0], rest

        return call

    def _ones(self, shape: jax.ShapeDtypeStruct) -> Any:
        first, *rest = shape.shape
        whole = (first * self._mesh.size, *rest)
        sharding = jax.NamedSharding(self._mesh, self._split)

        # Each process makes the parts of its own devices.
        def part(index: tuple[slice, ...] | None) -> HostArray:
            sizes = [len(range(*one.indices(size))) for one, size in zip(index or (), whole, strict=True)]
            return np.ones(sizes, shape.dtype)

        return jax.make_array_from_callback(whole, sharding, part)


def _more(carry: Array, *values: Array) -> Any:
    return carry * 0.5, [value + 1 for value in values]


def _passes(times: int) -> Callable[..., Any]:
    def run(carry: Array, value: Array) -> Any:
        value = value * 0.5 + carry
        if times > 1:  # a loop, as XLA would make one pass of several
            value = jax.lax.fori_loop(0, times, lambda _, before: before * 0.5 + 1, value)
        # The carry takes a part of the result: XLA cannot leave the work out, and the next call waits for it.
        return value[:1] * 0, value

    return run


def _exchanges(wanted: Sequence[Collective]) -> Callable[..., Any]:
    def run(carry: Array, *values: Array) -> Any:
        # One operand of the first collective depends on the carry, the smallest, whose change costs least.
        first = min(range(len(wanted[0].parts)), key=lambda place: values[place].size)
        rest = list(values)
        rest[first] = values[first] + carry
        results: list[Any] = []
        for one in wanted:
            mine, rest = rest[: len(one.parts)], rest[len(one.parts) :]
            results += _exchanged(one.kind, mine)
        return results[-1][:1] * 0, results  # whole ones, so that nothing of them can be left out

    return run


def _exchanged(kind: str, values: list[Any]) -> list[Any]:
    """One collective of several arrays. Rare kinds cost at most what an all-reduce of as many bytes does."""
    size = jax.lax.axis_size("replica")
    # An array with fewer elements than there are devices cannot be cut for them.
    if kind == "reduce-scatter" and all(value.size >= size for value in values):
        return [Cut(value.shape, size).scattered(value) for value in values]
    if kind == "collective-permute":
        pairs = [(place, (place + 1) % size) for place in range(size)]
        return [jax.lax.ppermute(value, "replica", pairs) for value in values]
    if kind == "all-gather":
        # The bytes of a collective are those of its results, so each device gives its share of them.
        return [jax.lax.all_gather(value[: max(value.size // size, 1)], "replica", tiled=True) for value in values]
    return list(jax.lax.psum(tuple(values), "replica"))
