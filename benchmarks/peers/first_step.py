"""A program from its first line to the end of its first step, by the library or by hand.

python -m benchmarks.peers.first_step jaxtribute 4 64-256-256-10
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

START = time.perf_counter()


def main() -> None:
    """Prints the seconds until the imports, the variables, and the first step were done, and its loss.

    With them the seconds of processors that the first step took, and how often the loss was traced.
    """
    kind, devices, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    import jax

    marks = {"import jax": time.perf_counter() - START}
    if kind == "jaxtribute":
        import jaxtribute as jd

        jd.config.set_logical_cpu_devices(devices)
    else:
        jax.config.update("jax_num_cpu_devices", devices)
    import optax  # noqa: F401  # pyright: ignore[reportUnusedImport] (by hand it would be used as well)

    marks["import"] = time.perf_counter() - START
    from benchmarks.peers import jax_steps
    from benchmarks.problems import make

    given = make(name, 256 if name[0].isdigit() else 8)
    traces = 0

    def counted(*inputs: Any) -> Any:
        nonlocal traces
        traces += 1
        return given.loss(*inputs)

    problem = replace(given, loss=counted)
    if kind == "jaxtribute":
        import jaxtribute as jd

        strategy = jd.MirroredStrategy([f"cpu:{i}" for i in range(devices)])
        step = jax_steps.by_jaxtribute("jaxtribute", problem, strategy)
    else:
        step = jax_steps.by_hand("shard-map" if devices > 1 else "named-sharding", problem, jax.devices())
    marks["set up"] = time.perf_counter() - START
    busy = time.process_time()
    _, loss = step(1)
    busy = time.process_time() - busy
    marks["first step"] = time.perf_counter() - START
    import json

    print(json.dumps({"marks": marks, "loss": loss, "busy": busy, "traces": traces}))


if __name__ == "__main__":
    main()
