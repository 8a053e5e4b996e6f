"""A script to search for: a perceptron that keeps much, under whatever strategy."""

from pathlib import Path

SOURCE = """
import jax.numpy as jnp
import numpy as np
import optax
import jaxtribute as jd
from beside import LAYERS

strategy = STRATEGY
with strategy.scope():
    matrices = [jd.Variable(lambda: jnp.ones((128, 128)), name=f"matrix_{i}") for i in range(LAYERS)]
    optimizer = jd.Optimizer(optax.adam(0.1), matrices)

def update(x):
    def loss():
        hidden = x
        for matrix in matrices:
            hidden = jnp.tanh(hidden @ matrix)
        return (hidden**2).sum()

    value, gradients = jd.value_and_grad(loss, matrices)()
    optimizer.apply_gradients(gradients)
    return value

@jd.function
def step(batch):
    return strategy.reduce("SUM", strategy.run(update, (batch,)), axis=None)

for batch in strategy.experimental_distribute_dataset([np.ones((512, 128), np.float32)]):
    loss = step(batch)
print("trained by", type(strategy).__name__)
"""
LAYERS = 3
STATE = LAYERS * 128 * 128 * 4
"""Bytes of the matrices."""


def write(folder: Path, strategy: str = "jd.MirroredStrategy()") -> Path:
    """Writes the script, and a module that it imports, and returns its path."""
    (folder / "beside.py").write_text(f"LAYERS = {LAYERS}\n")
    path = folder / "training.py"
    path.write_text(SOURCE.replace("STRATEGY", strategy))
    return path
