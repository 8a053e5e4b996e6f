"""Trains a perceptron on islands, which save every few steps, up to a step; started again it goes on from there.

    python elastic_saves.py FOLDER STEPS LAST [OWN]

As `elastic_program.py`, with a checkpoint of variables, slots and the position in the data in `FOLDER/saves`; each
island has a folder of its own if OWN is given.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd
from elastic_program import batches, initial, loss_of

EVERY, DEADLINE_S = 10, 120.0


def main(folder: Path, steps: int, last: int, *own: str) -> None:
    """Trains up to the step `last`."""
    strategy = jd.experimental.ElasticStrategy(timeout_s=DEADLINE_S)
    islands = strategy.extended.islands_mesh.islands  # pyright: ignore[reportAttributeAccessIssue]
    data = batches(steps)
    with strategy.scope():
        variables = [jd.Variable(value, name=name) for name, value in initial().items()]
        seen = jd.Variable(np.zeros(sum(len(ids) for _, _, ids in data), np.int32), aggregation="SUM")
        optimizer = jd.Optimizer(optax.adam(1e-2), variables)

    def replica(x: Any, y: Any, ids: Any) -> Any:
        context: Any = jd.get_replica_context()
        total = jnp.maximum(context.all_reduce("SUM", jnp.float32(len(x))), 1)
        loss, grads = jd.value_and_grad(lambda: loss_of(variables[0], variables[1], x, y, total), variables)()
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        seen.assign_add(jnp.zeros(seen.shape, jnp.int32).at[ids].add(1))
        return loss

    step = jd.function(lambda batch: strategy.reduce("SUM", strategy.run(replica, batch), axis=None))
    iterator = iter(strategy.experimental_distribute_dataset(data))
    checkpoint = jd.Checkpoint(variables=variables, optimizer=optimizer, seen=seen, data=iterator)
    place = folder / f"saves{strategy.island if own else ''}"
    manager = jd.CheckpointManager(checkpoint, place, max_to_keep=1, block=bool(own))
    restored = manager.restore_or_initialize()
    first = EVERY * int(restored.rpartition("-")[2]) if restored else 0
    members = strategy.islands
    with (folder / f"island-{strategy.island}").open("a", buffering=1) as file:
        for number in range(first, last):
            # Whoever joins is waited for, at the end: the test kills one before.
            end = time.monotonic() + DEADLINE_S
            while number == last - 1 and islands.newcomer is None and len(strategy.islands) < islands.others + 1:
                assert time.monotonic() < end
                time.sleep(0.01)
            before = strategy.islands
            step(next(iterator))
            # Behind the last step others may have ended before this one asks; one that joins is in it from the step on.
            members = max(before, strategy.islands, key=len)
            if (number + 1) % EVERY == 0:
                manager.save()
            if islands.newcomer is None:
                file.write(f"{os.getpid()} {number} {time.time()} {first}\n")
                time.sleep(0.01)
    manager.close()
    results: dict[str, Any] = {variable.name.removesuffix(":0"): np.asarray(variable) for variable in variables}
    np.savez(folder / f"result-{strategy.island}.npz", seen=np.asarray(seen), islands=members, **results)


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
