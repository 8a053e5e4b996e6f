"""Steps as the compilers of TPUs and GPUs make them, of the library and by hand: compiled, not run.

python -m benchmarks.compiled [--topology v5e:2x4 or h100:1x8] [--json FILE]

Each problem of `problems.py` with Adam: operations, bytes accessed, memory and collectives of each device, of the step
under `MirroredStrategy` and of the same step by hand (`jax.jit`, `NamedSharding`, donated state), and their ratios.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxtribute as jd
from benchmarks.peers.jax_steps import OPS, replica_step_of
from benchmarks.problems import Problem, make
from jaxtribute._src.tools import hlo
from jaxtribute._src.tools.compiling.step import costs
from jaxtribute._src.tools.compiling.targets import compile_for
from jaxtribute._src.tools.compiling.topologies import topology_named

PROBLEMS = {"64-256-256-10": 256, "784-2048-2048-10": 1024, "conv": 256, "transformer": 64, "small-20": 64}


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
    exchanged = hlo.bytes_moved(found.text, len(found.devices))
    memory = found.held.total - found.held.code
    kernels = hlo.kernels(found.text)
    return Figures(found.flops, found.traffic, memory, found.held.scratch, kernels, len(found.collectives), exchanged)


def figures_by_hand(compiled: Any, devices: int) -> Figures:
    """The figures of what JAX has compiled for a number of devices."""
    text, held = compiled.as_text() or "", compiled.memory_analysis()
    flops, traffic = costs(compiled, text)
    sums = hlo.collectives(text, devices)
    kept = held.argument_size_in_bytes + held.output_size_in_bytes - held.alias_size_in_bytes
    return Figures(
        flops,
        traffic,
        kept + held.temp_size_in_bytes,
        held.temp_size_in_bytes,
        hlo.kernels(text),
        len(sums),
        hlo.bytes_moved(text, devices),
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


def by_hand(problem: Problem, topology: str) -> Figures:
    """The step with state copied to each device and the batch split, which XLA partitions."""
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

    slots = jax.eval_shape(transform.init, problem.params)
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(whole, whole, whole))
    lowered = jitted.lower(placed(problem.params, whole), placed(slots, whole), placed(problem.data, split))
    return figures_by_hand(lowered.compile(compiler_options=dict(target.options)), len(devices))


def compared(topology: str, problems: dict[str, int]) -> list[dict[str, Any]]:
    """The figures of both and their ratios, for each problem."""
    found: list[dict[str, Any]] = []
    for name, batch in problems.items():
        problem = make(name, batch)
        library, hand = of_library(problem, topology), by_hand(problem, topology)
        ratios = ratios_of(library, hand)
        found.append({"problem": problem.name, "library": asdict(library), "by hand": asdict(hand), "ratios": ratios})
        shown = ", ".join(f"{key} {ratio:.3f}" for key, ratio in ratios.items())
        print(f"{problem.name}: {shown}", flush=True)
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
