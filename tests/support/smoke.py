"""What must work in an environment that holds the wheel and its dependencies alone; `make package` runs it.

It trains a line on two logical CPU devices and looks at what the package brings along.
"""

from importlib.metadata import entry_points, version
from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

strategy = jd.MirroredStrategy()
assert strategy.num_replicas_in_sync == 2, strategy

x = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
examples = strategy.experimental_make_numpy_dataset((x, x @ np.array([1, 2, 3], np.float32)))
batches = strategy.experimental_distribute_dataset(examples.batch(16))  # the last batch has 4 examples

with strategy.scope():
    w = jd.Variable(jnp.zeros(3), name="w")
    optimizer = jd.Optimizer(optax.sgd(0.1), [w])


def replica_step(inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Updates the weights by this replica's part of the batch, and returns its loss."""

    def loss() -> jax.Array:
        return jd.nn.compute_average_loss((inputs @ w - targets) ** 2, global_batch_size=16)

    value, gradients = jd.value_and_grad(loss, [w])()
    optimizer.apply_gradients(gradients)
    return value


@jd.function
def train_step(batch: Any) -> jax.Array:
    """One step of all replicas."""
    return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)


for _ in range(10):
    for one in batches:
        train_step(one)
np.testing.assert_allclose(w.numpy(), [1, 2, 3], atol=0.05)

assert version("jaxtribute") == jd.__version__
assert files("jaxtribute").joinpath("py.typed").is_file()
(script,) = entry_points(group="console_scripts", name="jaxtribute")
assert callable(script.load())
print(f"jaxtribute {jd.__version__} works: w = {w.numpy().round(2)}")
