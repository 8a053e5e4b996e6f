"""A user's program, every expression of whose main path an editor knows the type of: `tests/test_types.py` asks it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

# Data, and where to train.
strategy = jd.MirroredStrategy(1)
x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
rows = strategy.experimental_make_numpy_dataset((x, x.sum(axis=1)))
batched = rows.shuffle(seed=0).batch(16)
batches = strategy.experimental_distribute_dataset(batched)

# A model, and variables.
with strategy.scope():
    model = jd.Model({"w": jnp.zeros(3), "b": jnp.zeros(())}, optax.sgd(0.1))
    count = jd.Variable(0.0, name="count", aggregation="SUM")
    w = jd.Variable(jnp.zeros(3), name="w")
    optimizer = jd.Optimizer(optax.adam(1e-2), [w])
weights = model.value
product = w @ w
scaled = 2.0 * w + jnp.ones(3)
first = w[0]
total = w.sum()
held = w.read_value()
copies = w.values


def loss(x: jax.Array, y: jax.Array) -> jax.Array:
    residual = x @ model.value["w"] + model.value["b"] - y
    return jd.nn.compute_average_loss(residual**2, global_batch_size=16)


def replica_step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    value = model.minimize(loss, x, y)
    both = jd.value_and_grad(lambda: jnp.mean((x @ w - y) ** 2), [w])()
    optimizer.apply_gradients(both[1], reduce_op="MEAN")
    context = jd.get_replica_context()
    assert context is not None
    counted = context.all_reduce("SUM", jnp.float32(len(y)))
    seen = count.assign_add(1.0)
    return value, counted + 0 * seen.sum()


@jd.function
def train_step(batch: tuple[jd.PerReplica | jax.Array, ...]) -> jax.Array:
    results = strategy.run(replica_step, args=batch)
    losses, examples = results
    return strategy.reduce("SUM", losses, axis=None) / strategy.reduce("MEAN", examples, axis=None)


for batch in batches:
    inputs, targets = batch
    step_loss = train_step(batch)
    number = float(step_loss)
means = strategy.run(lambda: jnp.mean(w.read_value()))
mean = strategy.reduce(jd.ReduceOp.MEAN, means, axis=None)
parts = strategy.experimental_local_results(means)
gathered = strategy.gather(strategy.run(w.read_value), axis=0)
named = strategy.run(lambda: {"loss": jnp.ones(())})
sums = strategy.reduce("SUM", named, axis=None)
shape = w.shape
iterator = iter(batches)
element = next(iterator)
