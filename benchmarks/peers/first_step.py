"""A program from its first line to the end of its first step: digits MLP, by the library or by hand.

python -m benchmarks.peers.first_step jaxtribute 4
"""

from __future__ import annotations

import sys
import time

START = time.perf_counter()


def main() -> None:
    """Prints the seconds until the imports, the variables, and the first step were done, and its loss."""
    kind, devices = sys.argv[1], int(sys.argv[2])
    import jax

    marks = {"import jax": time.perf_counter() - START}
    if kind == "jaxtribute":
        import jaxtribute as jd

        jd.config.set_logical_cpu_devices(devices)
    else:
        jax.config.update("jax_num_cpu_devices", devices)
    import optax  # noqa: F401  (by hand it would be used as well)

    marks["import"] = time.perf_counter() - START
    from benchmarks.peers import jax_steps
    from benchmarks.problems import make

    problem = make("64-256-256-10", 256)
    if kind == "jaxtribute":
        import jaxtribute as jd

        strategy = jd.MirroredStrategy([f"cpu:{i}" for i in range(devices)])
        step = jax_steps.by_jaxtribute("jaxtribute", problem, strategy)
    else:
        step = jax_steps.by_hand("shard-map", problem, jax.devices())
    marks["set up"] = time.perf_counter() - START
    _, loss = step(1)
    marks["first step"] = time.perf_counter() - START
    import json

    print(json.dumps({"marks": marks, "loss": loss}))


if __name__ == "__main__":
    main()
