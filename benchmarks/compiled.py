"""Steps as the compilers of TPUs and GPUs make them, of the library and by hand: compiled, not run.

python -m benchmarks.compiled [--topology v5e:2x4 or h100:1x8] [--json FILE]

Problems of `problems.py`, and a table of embeddings, with Adam: operations, bytes accessed, memory and collectives of
each device, of the step under `MirroredStrategy` and of the same step by hand (`jax.jit`, `NamedSharding`, donated
state), and their ratios. Where the library updates slices of large variables, the step by hand is compiled twice: as it
is usually written, and with the slots of those variables in slices, too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxtribute as jd
from benchmarks.peers.jax_steps import OPS, replica_step_of
from benchmarks.problems import Problem, make
from jaxtribute._src.addons.compiling.targets import compile_for
from jaxtribute._src.addons.compiling.topologies import topology_named
from jaxtribute._src.addons.tools.hlo.exchanges import bytes_moved, collectives
from jaxtribute._src.addons.tools.hlo.work import costs, kernels

EMBEDDINGS = "embeddings"
PROBLEMS = {
    "64-256-256-10": 256,
    "784-2048-2048-10": 1024,
    "conv": 256,
    "transformer": 64,
    "small-20": 64,
    EMBEDDINGS: 256,
}
LARGE_BYTES = 1 << 20
"""Size of variables whose slots lie in slices."""


@dataclass(frozen=True)
class Figures:
    """What the compiler says of a step, on each device: operations, bytes, kernels, collectives and bytes sent."""

    flops: float
    accessed: float
    memory: int
    scratch: int
    kernels: int
    collectives: int
    exchanged: float


def figures_of_library(topology: str, train: Callable[[], Any]) -> Figures:
    """The figures of the step of a program of the library."""
    found = compile_for(topology, train)
    exchanged = bytes_moved(found.text, len(found.devices))
    memory = found.held.total - found.held.code
    return Figures(
        found.flops,
        found.traffic,
        memory,
        found.held.scratch,
        kernels(found.text),
        len(found.collectives),
        exchanged,
    )


def figures_by_hand(compiled: Any, devices: int) -> Figures:
    """The figures of what JAX has compiled for a number of devices."""
    text, held = compiled.as_text() or "", compiled.memory_analysis()
    flops, traffic = costs(compiled)
    sums = collectives(text, devices)
    kept = held.argument_size_in_bytes + held.output_size_in_bytes - held.alias_size_in_bytes
    return Figures(
        flops,
        traffic,
        kept + held.temp_size_in_bytes,
        held.temp_size_in_bytes,
        kernels(text),
        len(sums),
        bytes_moved(text, devices),
    )


def ratios_of(library: Figures, hand: Figures) -> dict[str, float]:
    """Each figure of the library as a multiple of that by hand, where that is not zero."""
    ours, theirs = asdict(library), asdict(hand)
    return {key: ours[key] / theirs[key] for key in ours if theirs[key]}


def of_library(problem: Problem, topology: str) -> Figures:
    """The step under `MirroredStrategy`."""

    def train() -> None:
        strategy = jd.MirroredStrategy()
        update = replica_step_of(problem, strategy, optax.adam(1e-3))

        @jd.function
        def step(*data: jax.Array) -> jax.Array:
            return strategy.reduce("SUM", strategy.run(update, data), axis=None)

        for batch in strategy.experimental_distribute_dataset([problem.data]):
            step(*batch)

    return figures_of_library(topology, train)


def embeddings(batch: int) -> Problem:
    """Twelve rows of a table of 50,000 words an example, and a dense layer; needs JAX."""

    def loss(_: Any, params: Any, words: Any, targets: Any) -> Any:
        return jnp.sum((jnp.take(params[0], words, axis=0).mean(axis=1) @ params[1] - targets) ** 2)

    params = [np.ones((50_000, 64), np.float32), np.ones((64, 8), np.float32)]
    data = np.zeros((batch, 12), np.int32), np.zeros((batch, 8), np.float32)
    return Problem(f"embeddings of 50,000 words, batch {batch}", params, data, loss)


def by_hand(problem: Problem, topology: str, *, in_slices: bool) -> Figures:
    """The step with state copied to each device and the batch split, which XLA partitions.

    Args:
      problem: what is trained.
      topology: the devices.
      in_slices: split the slots of large variables among the devices, along their last axis that can be divided.
    """
    target = topology_named(topology)
    devices = target.devices
    mesh = Mesh(devices, ("replica",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("replica"))
    transform = optax.adam(1e-3)

    def step(params: Any, slots: Any, data: Any) -> Any:
        def loss(params: Any) -> Any:
            return problem.loss(OPS, params, *data) / problem.batch

        value, gradients = jax.value_and_grad(loss)(params)
        updates, slots = transform.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, value

    def placed(nest: Any, where: NamedSharding) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), nest)

    def slot(array: Any) -> Any:
        axes = [axis for axis, size in enumerate(array.shape) if size % len(devices) == 0]
        if not in_slices or array.size * array.dtype.itemsize < LARGE_BYTES or not axes:
            return placed(array, whole)
        return placed(array, NamedSharding(mesh, PartitionSpec(*[None] * axes[-1], "replica")))

    slots = jax.tree.map(slot, jax.eval_shape(transform.init, problem.params))
    places = whole, jax.tree.map(lambda one: one.sharding, slots), whole
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=places)
    lowered = jitted.lower(placed(problem.params, whole), slots, placed(problem.data, split))
    return figures_by_hand(lowered.compile(compiler_options=dict(target.options)), len(devices))


def compared(topology: str, problems: dict[str, int]) -> list[dict[str, Any]]:
    """The figures of both and their ratios, for each problem."""
    found: list[dict[str, Any]] = []
    for name, batch in problems.items():
        problem = embeddings(batch) if name == EMBEDDINGS else make(name, batch)
        library = of_library(problem, topology)
        large = max(array.nbytes for array in problem.params) >= LARGE_BYTES
        for in_slices in (False, True) if large else (False,):
            hand = by_hand(problem, topology, in_slices=in_slices)
            ratios, title = ratios_of(library, hand), problem.name + ", slots in slices" * in_slices
            found.append({"problem": title, "library": asdict(library), "by hand": asdict(hand), "ratios": ratios})
            print(f"{title}: {', '.join(f'{key} {ratio:.3f}' for key, ratio in ratios.items())}", flush=True)
    return found


def main() -> None:
    """Prints the ratios, and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--quick", action="store_true", help="one problem, to see that it runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = arguments.problems[:1] if arguments.quick else arguments.problems
    found = compared(arguments.topology, {name: PROBLEMS[name] for name in names})
    if arguments.json:
        what = f"compiled for {arguments.topology}, not run; JAX {jax.__version__}"
        arguments.json.write_text(json.dumps({"what": what, "problems": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
