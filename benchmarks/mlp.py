"""One training step of an MLP, by jaxtribute and by hand: a peer process for `harness`.

python -m benchmarks.mlp --layers 64-256-10 --batch 64 --devices 4 --contender jaxtribute --contender named-sharding
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LEARNING_RATE, MOMENTUM = 0.01, 0.9
Step = Callable[[int], tuple[float, float]]


def problem(layers: Sequence[int], batch: int) -> tuple[list[np.ndarray[Any, Any]], Any, Any]:
    """Initial parameters (weights and biases in turn), inputs and labels, the same for every contender."""
    rng = np.random.default_rng(0)
    params: list[np.ndarray[Any, Any]] = []
    for rows, columns in itertools.pairwise(layers):
        params.append((rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32))
        params.append(np.zeros(columns, np.float32))
    images = rng.normal(size=(batch, layers[0])).astype(np.float32)
    return params, images, rng.integers(0, layers[-1], batch).astype(np.int32)


def loss_sum(params: Sequence[Any], images: Any, labels: Any) -> jax.Array:
    """Summed cross-entropy."""
    hidden = images
    for weight, bias in zip(params[:-2:2], params[1:-2:2], strict=True):
        hidden = jax.nn.relu(hidden @ weight + bias)
    logits = jax.nn.log_softmax(hidden @ params[-2] + params[-1])
    return -jnp.take_along_axis(logits, labels[:, None], 1).sum()


def many_small_loss(params: Sequence[Any], images: Any, labels: Any) -> jax.Array:
    """A loss over many small matrices, whose gradients are cheap and whose number is what costs."""
    hidden = images
    for weight in params:
        hidden = jnp.tanh(hidden @ weight)
    return ((hidden - labels[:, None].astype(hidden.dtype)) ** 2).sum()


def timed(step: Callable[[], Any], wait_every: int) -> Step:
    """Runs `step` many times, waiting now and then for its loss, as raw JAX on CPU must."""

    def run(count: int) -> tuple[float, float]:
        start = time.perf_counter()
        loss = None
        for index in range(count):
            loss = step()
            if wait_every and index % wait_every == wait_every - 1:
                jax.block_until_ready(loss)
        jax.block_until_ready(loss)
        seconds = (time.perf_counter() - start) / count
        return seconds, float(np.asarray(loss).reshape(-1)[0])

    return run


def by_hand(kind: str, params: Any, images: Any, labels: Any, loss: Any, devices: int) -> Step:
    """The step as a JAX user writes it: `named-sharding` (jit) or `shard-map` (one psum a gradient)."""
    batch = len(images)

    def update(params: Any, momenta: Any, grads: Any) -> tuple[Any, Any]:
        momenta = [MOMENTUM * m + g for m, g in zip(momenta, grads, strict=True)]
        return [p - LEARNING_RATE * m for p, m in zip(params, momenta, strict=True)], momenta

    def whole(params: Any, momenta: Any, images: Any, labels: Any) -> Any:
        value, grads = jax.value_and_grad(lambda p: loss(p, images, labels) / batch)(params)
        return *update(params, momenta, grads), value

    def local(params: Any, momenta: Any, images: Any, labels: Any) -> Any:
        value, grads = jax.value_and_grad(lambda p: loss(p, images, labels) / batch)(params)
        grads = [jax.lax.psum(g, "replica") for g in grads]
        return *update(params, momenta, grads), jax.lax.psum(value, "replica")

    mesh = Mesh(np.array(jax.devices()[:devices]), ("replica",))
    copies, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("replica"))
    if kind == "shard-map":
        whole = jax.shard_map(
            local, mesh=mesh, in_specs=(P(), P(), P("replica"), P("replica")), out_specs=P(), check_vma=False
        )
    if devices == 1:
        copies = split = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    step = jax.jit(whole, donate_argnums=(0, 1), out_shardings=copies)
    state = [jax.device_put(params, copies), jax.device_put([np.zeros_like(p) for p in params], copies)]
    data = jax.device_put((images, labels), split)

    def run() -> Any:
        state[0], state[1], value = step(state[0], state[1], *data)
        return value

    return timed(run, 16 if devices > 1 else 0)


def by_jaxtribute(params: Any, images: Any, labels: Any, loss: Any, devices: int, shard_update: Any) -> Step:
    """The step as a user of the library writes it."""
    import optax

    import jaxtribute as jd

    names = [f"cpu:{i}" for i in range(devices)]
    strategy = jd.OneDeviceStrategy(names[0]) if devices == 1 else jd.MirroredStrategy(names)
    with strategy.scope():
        variables = [jd.Variable(p) for p in params]
    optimizer = jd.Optimizer(optax.sgd(LEARNING_RATE, momentum=MOMENTUM), variables, shard_update=shard_update)
    batch = len(images)
    data = [next(iter(strategy.experimental_distribute_dataset([array]))) for array in (images, labels)]

    def replica_step(images: Any, labels: Any) -> Any:
        def mean_loss() -> Any:
            return loss([v.read_value() for v in variables], images, labels) / batch

        value, grads = jd.value_and_grad(mean_loss, variables)()
        optimizer.apply_gradients(grads)
        return value

    @jd.function
    def train_step(images: Any, labels: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (images, labels)), axis=None)

    return timed(lambda: train_step(*data), 0)


def main() -> None:
    """Serves the contenders named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", default="64-256-10", help="sizes of the layers, or small-100: 100 4x4 matrices")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--contender", action="append", required=True)
    parser.add_argument("--plain", action="store_true", help="set up the devices as plain JAX does: no library at all")
    arguments = parser.parse_args()
    if arguments.plain:
        jax.config.update("jax_num_cpu_devices", arguments.devices)
    else:
        import jaxtribute as jd

        jd.config.set_logical_cpu_devices(arguments.devices)
    if arguments.layers.startswith("small-"):
        rng = np.random.default_rng(0)
        params = [rng.normal(size=(4, 4)).astype(np.float32) / 2 for _ in range(int(arguments.layers[6:]))]
        images = rng.normal(size=(arguments.batch, 4)).astype(np.float32)
        labels, loss = rng.integers(0, 2, arguments.batch).astype(np.int32), many_small_loss
    else:
        params, images, labels = problem([int(n) for n in arguments.layers.split("-")], arguments.batch)
        loss = loss_sum
    contenders: dict[str, Step] = {}
    for name in arguments.contender:
        if name.startswith("jaxtribute"):
            sharded = {"jaxtribute": "auto", "jaxtribute-sharded": True, "jaxtribute-whole": False}[name]
            contenders[name] = by_jaxtribute(params, images, labels, loss, arguments.devices, sharded)
        else:
            contenders[name] = by_hand(name, params, images, labels, loss, arguments.devices)
    from benchmarks.harness import serve

    serve(contenders)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
