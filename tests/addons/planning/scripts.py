"""A script to plan, and the step of it in this process."""

from pathlib import Path

SOURCE = """
import sys
import jax.numpy as jnp
import numpy as np
import optax
import jaxtribute as jd

strategy = jd.MirroredStrategy()
with strategy.scope():
    w = jd.Variable(np.zeros((16, 32), np.float32), name="w")
    optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [w])

def update(x):
    x.T @ x  # nothing uses it
    _, gradients = jd.value_and_grad(lambda: ((x @ w) ** 2).sum(), [w])()
    optimizer.apply_gradients(gradients)

@jd.function
def step(batch):
    strategy.run(update, (batch,))

data = np.ones((24, 16), np.float32)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1000):
    for batch in strategy.experimental_distribute_dataset([data]):
        step(batch)
"""
VARIABLES = 2 * 16 * 32 * 4
"""Bytes of the weights and their momentum."""


def write(directory: Path) -> Path:
    """Writes the script and returns its path."""
    path = directory / "training.py"
    path.write_text(SOURCE)
    return path
