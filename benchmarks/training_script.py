"""The training step of one of the benchmarks' problems as a script, for `jaxtribute plan --calibrate`.

    jaxtribute plan --calibrate --local 1,2,4,8 --workers 2 benchmarks/training_script.py 64-256-256-10 256

From the root of the repository. Its arguments are a problem (`benchmarks/problems.py`) and the global batch; `python -m
benchmarks run --suite predicted` calibrates several.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import optax

import jaxtribute as jd
from benchmarks.peers.jax_steps import replica_step_of
from benchmarks.problems import LEARNING_RATE, MOMENTUM, make

problem = make(sys.argv[1], int(sys.argv[2]))
strategy = jd.MultiWorkerMirroredStrategy()  # a MirroredStrategy where there is no cluster
update = replica_step_of(problem, strategy, optax.sgd(LEARNING_RATE, momentum=MOMENTUM))


@jd.function
def step(examples: Any) -> jax.Array:
    """A step of all replicas."""
    return strategy.reduce("SUM", strategy.run(update, examples), axis=None)


examples = strategy.experimental_make_numpy_dataset(problem.data).batch(problem.batch)
while True:
    for one in strategy.experimental_distribute_dataset(examples):
        step(one)
