"""A GPT whose replicas have several devices, as the TPU compiler makes its step: of the library and by hand.

python -m benchmarks.compiled_groups [--topology v5e:4x4] [--size 1.3b] [--layers N] [--per-replica 4]
    [--whole-products] [--json FILE]

The model of `examples/gpt.py` with Adam, compiled and not run: operations, bytes accessed, memory and collectives of
each device, of the step under `MirroredStrategy` and of the same step by `jax.jit` and `NamedSharding` with the same
placements, and their ratios. Fewer layers than the size has take less time to compile.

By hand the compiler moves the sum over the replicas before the conversion of a gradient to float32, so that it adds up
bfloat16: half the bytes, and rounded. The library adds up the gradients that it is given, in float32; to compare the
same sums, its step is compiled once more with gradients that are converted to bfloat16 first.

The compiler divides large products into a loop whose parts travel meanwhile, in one program and not in the other, and
its count of the bytes of such a loop has the whole result for each part. `--whole-products` has none divided.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxtribute as jd
from benchmarks.compiled import Figures, figures_by_hand, figures_of_library, ratios_of
from jaxtribute._src.addons.compiling.topologies import topology_named

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import gpt

TRANSFORM = optax.adam(3e-4)
WHOLE_PRODUCTS = "--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000"

LAYOUT = gpt.layout(scanned=False)


class ByHand(gpt.Model):
    """The model with the shapes of its variables in place of variables, and its constraint as JAX writes it."""

    def __init__(self, size: gpt.Size, mesh: Mesh) -> None:
        self.mesh = mesh
        self.shapes: list[jax.ShapeDtypeStruct] = []
        super().__init__(size, scanned=False)

    def _matrix(self, name: str, *shape: int) -> Any:
        place = NamedSharding(self.mesh, P(*LAYOUT.find(name)))
        self.shapes.append(jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place))
        return len(self.shapes) - 1

    def _ones(self, name: str, *shape: int) -> Any:
        return self._matrix(name, *shape)

    def _divided(self, values: jax.Array, dimension: int) -> jax.Array:
        place = NamedSharding(self.mesh, P("replica", *(None,) * (dimension - 1), "model"))
        return jax.lax.with_sharding_constraint(values, place)

    def mean_loss(self, params: list[jax.Array], tokens: jax.Array) -> jax.Array:
        """The loss of a global batch, with what `losses` computes of each replica's part."""
        held: Any = self
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        hidden = (jnp.take(params[held.tokens], inputs, axis=0) + params[held.places]).astype(jnp.bfloat16)
        for layer in held.layers:
            hidden = jax.checkpoint(self._run)(hidden, [params[place] for place in layer])
        each = jax.checkpoint(self._measured)(hidden, params[held.scale], params[held.tokens], labels)
        return each.mean(axis=-1).sum() / tokens.shape[0]


def of_library(size: gpt.Size, topology: str, per_replica: int, sums: Any = jnp.float32) -> Figures:
    """The step under `MirroredStrategy`, which adds up gradients of the dtype `sums`."""

    def train() -> None:
        strategy = jd.MirroredStrategy(devices_per_replica=per_replica, layout=LAYOUT)
        batch = size.examples * strategy.num_replicas_in_sync
        with strategy.scope():
            model = gpt.Model(size, scanned=False)
            optimizer = jd.Optimizer(TRANSFORM, model.variables)

        def update(tokens: Any) -> Any:
            def loss() -> Any:
                return jd.nn.compute_average_loss(model.losses(tokens).mean(axis=-1), global_batch_size=batch)

            value, gradients = jd.value_and_grad(loss, model.variables)()
            optimizer.apply_gradients([gradient.astype(sums) for gradient in gradients])
            return value

        @jd.function
        def step(tokens: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(update, (tokens,)), axis=None)

        tokens = np.zeros((batch, size.length + 1), np.int32)
        for batch_of_tokens in strategy.experimental_distribute_dataset([tokens]):
            step(batch_of_tokens)

    return figures_of_library(topology, train)


def by_hand(size: gpt.Size, topology: str, per_replica: int) -> Figures:
    """The same step of global arrays, which XLA partitions among all devices."""
    devices = np.array(topology_named(topology).devices, dtype=object).reshape(-1, per_replica)
    mesh = Mesh(devices, ("replica", "model"))
    model = ByHand(size, mesh)
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("replica"))
    by_shape = {one.shape: one.sharding for one in model.shapes}
    slots = jax.tree.map(
        lambda slot: jax.ShapeDtypeStruct(slot.shape, slot.dtype, sharding=by_shape.get(slot.shape, whole)),
        jax.eval_shape(TRANSFORM.init, model.shapes),
    )

    def step(params: Any, slots: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(model.mean_loss)(params, tokens)
        updates, slots = TRANSFORM.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, value

    places = jax.tree.map(lambda leaf: leaf.sharding, (model.shapes, slots))
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(*places, whole))
    shape = size.examples * len(devices), size.length + 1
    compiled = jitted.lower(model.shapes, slots, jax.ShapeDtypeStruct(shape, jnp.int32, sharding=split)).compile()
    return figures_by_hand(compiled, devices.size)


def main() -> None:
    """Prints the figures and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--size", choices=gpt.SIZES, default="1.3b")
    parser.add_argument("--layers", type=int, nargs="+", help="by default those of the size")
    parser.add_argument("--per-replica", type=int, default=4)
    parser.add_argument("--whole-products", action="store_true", help="divide no product into a loop")
    parser.add_argument("--quick", action="store_true", help="the small model, to see that it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.whole_products:  # the compiler's library reads its flags when it is loaded
        os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {WHOLE_PRODUCTS}".strip()
    size = gpt.SIZES["small" if options.quick else options.size]
    rows: list[dict[str, Any]] = []
    for layers in options.layers or [size.layers]:
        one = replace(size, layers=layers)
        begun = time.perf_counter()
        hand = by_hand(one, options.topology, options.per_replica)
        row: dict[str, Any] = {"layers": layers, "by hand": asdict(hand)}
        for name, sums in {"library": jnp.float32, "library, sums in bfloat16": jnp.bfloat16}.items():
            library = of_library(one, options.topology, options.per_replica, sums)
            row[name] = {"figures": asdict(library), "ratios": ratios_of(library, hand)}
        rows.append({**row, "seconds": time.perf_counter() - begun})
        print(json.dumps(rows[-1]), flush=True)
        if options.json:
            flags = WHOLE_PRODUCTS if options.whole_products else ""
            what = f"compiled for {options.topology}, not run; JAX {jax.__version__}; flags: {flags or 'none'}"
            options.json.write_text(json.dumps({"what": what, "figures": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
