"""Peak memory of compiled steps over 400 MB of parameters: a peer process for `harness`, in bytes for seconds."""

from __future__ import annotations

import ctypes
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd
from benchmarks.harness import serve

SIDE, COUNT = 5000, 4


def main() -> None:
    """Serves `sgd` (steps; answers with their peak), `creation` (the peak until then) and `parameters` (their size)."""
    strategy = jd.OneDeviceStrategy("cpu:0")
    jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((8, 8))))
    start = resident("VmRSS")
    with strategy.scope():
        variables = [jd.Variable(lambda: np.full((SIDE, SIDE), 1e-3, np.float32), name=f"w{i}") for i in range(COUNT)]
    optimizer = jd.Optimizer(optax.sgd(1e-3), variables)
    size = sum(variable.size * variable.dtype.itemsize for variable in variables)

    @jd.function
    def step(x: jax.Array) -> jax.Array:
        def loss() -> jax.Array:
            hidden = x
            for variable in variables:
                hidden = jnp.tanh(hidden @ variable.read_value())
            return (hidden**2).sum()

        value, grads = jd.value_and_grad(loss, variables)()
        optimizer.apply_gradients(grads)
        return value

    x = jnp.ones((4, SIDE), jnp.float32)

    created = resident("VmHWM") - start

    def run(count: int) -> tuple[float, float]:
        ctypes.CDLL(None).malloc_trim(0)  # what making the variables left behind is no part of a step
        Path("/proc/self/clear_refs").write_text("5")  # restarts VmHWM
        value = None
        for _ in range(count):
            value = step(x)
        jax.block_until_ready(value)
        return resident("VmHWM") - start, float(np.asarray(value))

    serve({"sgd": run, "creation": lambda _: (created, 0.0), "parameters": lambda _: (float(size), 0.0)})


def resident(field: str) -> float:
    """This process's resident memory in bytes: now (`VmRSS`) or at its highest (`VmHWM`)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return float(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main()
