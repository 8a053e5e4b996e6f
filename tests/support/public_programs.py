"""More programs of `verified_programs.py`'s kind, written as public examples of the libraries write them."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from flax import nnx

import jaxtribute as jd
from verified_programs import (
    ROWS,
    Made,
    arrays,
    context,
    cross_entropy,
    labels,
    optimizer,
    program,
    trained,
    variables,
)


@program(
    "right weighted",
    prior="local-mean batch-statistics",
    class_weights="local-count local-total local-mean batch-statistics",
    focal="local-count local-mean local-total",
    mixed="same-random-numbers order-of-rows pairs-of-rows",
)
def smoothing(strategy: jd.Strategy, wrong: str) -> Made:
    w, v = arrays((4, 6), (6, 3))

    def loss(params: Any, images: Any, target: Any) -> Any:
        hot = jax.nn.one_hot(target, 3)
        if wrong == "mixed":
            images = 0.7 * images + 0.3 * jnp.flip(images, 0)  # at: smoothing.mixed
        logits = jax.nn.gelu(images @ params["w"]) @ params["v"]
        uniform = jnp.full(3, 1 / 3)
        if wrong == "prior":
            uniform = hot.mean(axis=0)  # at: smoothing.prior
        smooth = 0.9 * hot + 0.1 * uniform
        each = optax.softmax_cross_entropy(logits, smooth)
        if wrong == "class_weights":
            counts = hot.sum(axis=0)  # at: smoothing.class_weights
            each = each * (1 / (1 + counts))[target]
        if wrong == "weighted":
            counts = context().all_reduce("SUM", hot.sum(axis=0))
            each = each * (1 / (1 + counts))[target]
        if wrong == "focal":
            weights = (1 - jax.nn.softmax(logits)[jnp.arange(len(target)), target]) ** 2
            return (weights * each).sum() / weights.sum()  # at: smoothing.focal
        return each.sum() / ROWS

    return trained(strategy, {"w": w, "v": v}, optax.adamw(1e-3), loss, *arrays((ROWS, 4)), labels(3))


@program(
    "right",
    critic="local-mean",
    penalty="local-mean",
    interpolated="same-random-numbers",
    spread="batch-statistics local-mean local-total",
)
def penalized(strategy: jd.Strategy, wrong: str) -> Made:
    """A Wasserstein critic with a gradient penalty."""
    w, v = held = variables(strategy, (4, 5), (5, 1))
    adam = optimizer(strategy, optax.adam(1e-4, b1=0.5), held)

    def critic(x: Any) -> Any:
        return (jnp.tanh(x @ w) @ v)[..., 0]

    def replica(real: Any, fake: Any, key: Any) -> Any:
        own = key if wrong == "interpolated" else context().fold_in(key)
        t = jax.random.uniform(own, (real.shape[0], 1))  # at: penalized.interpolated

        def loss() -> Any:
            norms = jnp.linalg.norm(jax.vmap(jax.grad(critic))(t * real + (1 - t) * fake), axis=-1)
            distance = critic(fake) - critic(real)
            if wrong == "critic":
                return distance.mean() + 10 * ((norms - 1) ** 2).sum() / ROWS  # at: penalized.critic
            if wrong == "penalty":
                return distance.sum() / ROWS + 10 * jnp.mean((norms - 1) ** 2)  # at: penalized.penalty
            if wrong == "spread":
                spread = jnp.var(critic(fake))  # at: penalized.spread
                return distance.sum() / ROWS + spread
            return (distance + 10 * (norms - 1) ** 2).sum() / ROWS

        value, gradients = jd.value_and_grad(loss, held)()
        adam.apply_gradients(gradients)
        return value

    @jd.function
    def critic_step(real: Any, fake: Any, key: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(real, fake, key)), axis=None)

    return critic_step, (*arrays((ROWS, 4), (ROWS, 4)), jax.random.key(5))


@program(
    "right capacity_of_row",
    z_loss="local-mean",
    balance="batch-statistics local-mean local-total",
    capacity="order-of-rows numbers-of-rows",
    importance="batch-statistics local-mean local-total",
)
def routed(strategy: jd.Strategy, wrong: str) -> Made:
    """A mixture of experts over tokens, with the losses of its router."""
    gate, up = held = variables(strategy, (4, 3), (3, 4))
    adam = optimizer(strategy, optax.adam(1e-3), held)

    def replica(tokens: Any, y: Any) -> Any:
        def loss() -> Any:
            logits = tokens @ gate
            odds = jax.nn.softmax(logits)
            chosen = jax.nn.one_hot(odds.argmax(-1), 3)
            if wrong == "capacity":
                place = jnp.cumsum(chosen.reshape(-1, 3), axis=0).reshape(chosen.shape)  # at: routed.capacity
                chosen = chosen * (place <= 9)
            elif wrong == "capacity_of_row":
                chosen = chosen * (jnp.cumsum(chosen, axis=1) <= 2)
            out = jnp.einsum("bte,ed->btd", odds * chosen, up.read_value())
            task = ((out - y) ** 2).sum() / ROWS
            z = jax.nn.logsumexp(logits, axis=-1) ** 2
            if wrong == "z_loss":
                return task + 1e-1 * z.mean()  # at: routed.z_loss
            if wrong == "balance":
                fraction, mass = chosen.mean((0, 1)), odds.mean((0, 1))
                return task + 0.1 * 3 * (fraction * mass).sum() / context().num_replicas_in_sync  # at: routed.balance
            if wrong == "importance":
                load = odds.sum((0, 1))
                return task + 0.1 * load.var() / load.mean() ** 2  # at: routed.importance
            return task + 1e-3 * z.sum() / ROWS

        value, gradients = jd.value_and_grad(loss, held)()
        adam.apply_gradients(gradients)
        return value

    @jd.function
    def step(tokens: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(tokens, y)), axis=None)

    return step, tuple(arrays((ROWS, 5, 4), (ROWS, 5, 4)))


@program(
    "right per_sequence",
    documents="local-count",
    tokens="local-count",
    pooled="local-count local-total batch-statistics local-mean",
    guarded="local-count",
    contrast="pairs-of-rows softmax-over-batch",
)
def packed(strategy: jd.Strategy, wrong: str) -> Made:
    """Several documents in a row, told apart by segment ids; 0 is padding."""
    table, head = arrays((9, 4), (4, 9))

    def loss(params: Any, tokens: Any, segments: Any) -> Any:
        hidden = params["table"][tokens[:, :-1]]
        mask = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        each = cross_entropy(hidden @ params["head"], tokens[:, 1:]) * mask
        count = context().all_reduce("SUM", mask.sum())
        if wrong == "documents":
            return each.sum() / segments.max(axis=1).sum()  # at: packed.documents
        if wrong == "tokens":
            return each.sum() / jnp.maximum(jnp.count_nonzero(mask), 1)  # at: packed.tokens
        if wrong == "guarded":
            own = mask.sum()
            return jnp.where(own == 0, 0.0, each.sum() / jnp.where(own == 0, 1, own))  # at: packed.guarded
        if wrong == "pooled":
            mean = (hidden * mask[..., None]).sum((0, 1)) / mask.sum()  # at: packed.pooled
            return each.sum() / count + ((hidden - mean) ** 2).sum() / ROWS
        if wrong == "contrast":
            rows = (hidden * mask[..., None]).sum(1)
            scores = rows @ rows.T  # at: packed.contrast
            return (each.sum(1) + cross_entropy(scores, jnp.arange(len(rows)))).sum() / ROWS
        if wrong == "per_sequence":
            return (each.sum(1) / jnp.maximum(mask.sum(1), 1)).sum() / ROWS
        return each.sum() / jnp.maximum(count, 1)

    tokens = labels(9, ROWS, 6)
    segments = np.minimum(1 + np.arange(6)[None] // (1 + np.arange(ROWS)[:, None] % 3), 3) * (
        np.arange(6)[None] < 3 + np.arange(ROWS)[:, None] % 4
    )
    return trained(strategy, {"table": table, "head": head}, optax.adam(1e-2), loss, tokens, segments.astype(np.int32))


@program("right", mean="local-mean", normalized="batch-statistics", student="local-mean")
def with_nnx(strategy: jd.Strategy, wrong: str) -> Made:
    """Flax NNX, with a teacher that follows the student."""

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first, self.second = nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            hidden = self.first(x)
            if wrong == "normalized":
                hidden = (hidden - hidden.mean(0)) / (hidden.std(0) + 1e-2)  # at: with_nnx.normalized
            return self.second(nnx.relu(hidden))

    with strategy.scope():
        net = jd.Model(Net(nnx.Rngs(0)), optax.adam(1e-2))
        teacher = jd.Variable(np.ones((4, 3), np.float32), trainable=False)

    def loss_fn(x: Any, y: Any) -> Any:
        logits = net(x)
        each = cross_entropy(logits, y)
        soft = optax.softmax_cross_entropy(logits, jax.nn.softmax(x @ teacher))
        if wrong == "mean":
            return each.mean()  # at: with_nnx.mean
        if wrong == "student":
            return each.sum() / ROWS + 0.5 * soft.mean()  # at: with_nnx.student
        return (each + 0.5 * soft).sum() / ROWS

    @jd.function
    def train_step(x: Any, y: Any) -> None:
        strategy.run(net.minimize, (loss_fn, x, y))
        teacher.assign(0.99 * teacher)

    return train_step, (*arrays((ROWS, 4)), labels(3))


@program("right", mean="local-mean", keys="same-random-numbers", penalty="counted-on-each-replica")
def with_equinox(strategy: jd.Strategy, wrong: str) -> Made:
    """Equinox, with a key for each row."""
    model = eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params: Any, x: Any, y: Any, key: Any) -> Any:
        net = eqx.combine(params, static)
        own = jax.random.split(key, len(x)) if wrong == "keys" else context().example_keys(key, len(x))
        drop = eqx.nn.Dropout(0.2)
        logits = jax.vmap(lambda row, key: net(drop(row, key=key)))(x, own)  # at: with_equinox.keys
        each = cross_entropy(logits, y)
        if wrong == "mean":
            return jnp.mean(each)  # at: with_equinox.mean
        if wrong == "penalty":
            squares = sum(jnp.sum(one**2) for one in jax.tree.leaves(params))  # at: with_equinox.penalty
            return each.sum() / ROWS + 1e-2 * squares
        return each.sum() / ROWS

    return trained(strategy, params, optax.adam(1e-2), loss, *arrays((ROWS, 4)), labels(3), jax.random.key(2))


@program(
    "right",
    mean="local-mean scaled-by-replicas",
    metric="sum-of-means local-mean",
    scaled="scaled-by-replicas mean-of-sums",
)
def with_keras(strategy: jd.Strategy, wrong: str) -> Made:
    """A loop of one's own over losses of Keras."""
    (w,) = held = variables(strategy, (4, 3))
    sgd = optimizer(strategy, optax.sgd(0.1), held)
    whole = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    rows: Any = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1, reduction="none")

    def replica(x: Any, y: Any) -> Any:
        def loss() -> Any:
            if wrong == "mean":
                return whole(y, x @ w)  # at: with_keras.mean
            value = jd.nn.compute_average_loss(rows(y, x @ w), global_batch_size=ROWS)
            return value / strategy.num_replicas_in_sync if wrong == "scaled" else value  # at: with_keras.scaled

        value, gradients = jd.value_and_grad(loss, held)()
        sgd.apply_gradients(gradients)
        return jnp.mean((jax.nn.softmax(x @ w) * y).sum(-1)) if wrong == "metric" else value

    @jd.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)  # at: with_keras.metric

    return step, (*arrays((ROWS, 4)), np.eye(3, dtype=np.float32)[labels(3)])


def divided(one: Any, other: Any) -> Any:
    """The quotient; 0 where the divisor is."""
    safe = jnp.where(other == 0, 1, other)
    return jnp.where(other == 0, 0, one / safe)


def guarded_loss(params: Any, x: Any, y: Any, wrong: str) -> Any:
    each = ((jnp.tanh(x @ params["w"]) - y) ** 2).sum(-1)
    known = (y[:, 0] > -10).astype(jnp.float32)
    if wrong == "no_nan":
        # The mean of each replica, weighed by its own number of rows.
        mean, count = divided((each * known).sum(), known.sum()), known.sum()
        return divided(mean * count, context().all_reduce("SUM", count))
    if wrong == "positive":
        count = known.sum()
        mean = (each * known).sum() / jnp.where(count > 0, count, 1.0)
        return jnp.where(count <= 0, 0.0, mean * count / context().all_reduce("SUM", jnp.sum(known)))
    if wrong == "norm":
        square = jnp.sum(params["w"] ** 2)
        length = jnp.where(square == 0, 0.0, jnp.sqrt(jnp.where(square == 0, 1.0, square)))
        return each.sum() / ROWS * jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1.0), 1.0)
    if wrong == "twice":
        count = known.sum()
        share = jnp.where(jnp.logical_not(jnp.equal(count, 0)), 1 / jnp.maximum(count, 1), 0.0)
        mean = jnp.where(jnp.sum(known) != 0, (each * known).sum() * share, 0.0)
        return mean * count / context().all_reduce("SUM", count)
    return each.sum() / ROWS


def guarded_gradients(gradients: Any, wrong: str) -> Any:
    norm = optax.tree.norm(gradients)
    if wrong == "finite":
        fine = jnp.isfinite(norm)
        gradients = jax.tree.map(lambda one: jnp.where(fine, one, jnp.zeros_like(one)), gradients)
        return jax.tree.map(lambda one: jnp.where(jnp.isfinite(norm), one / jnp.where(fine, norm, 1.0), 0), gradients)
    if wrong == "clip":
        return jax.tree.map(lambda one: jnp.where(norm < 1e3, one, one / norm * 1e3), gradients)
    if wrong == "scaled":
        small = norm < 1e-8
        factor = jnp.where(small, 1.0, 1 / jnp.where(small, 1.0, norm))
        return jax.tree.map(lambda one: one * factor, gradients)
    return gradients


@program("no_nan positive norm twice finite clip scaled")
def guarded(strategy: jd.Strategy, wrong: str) -> Made:
    """Right programs with conditions that never hold, and whose choices belong together."""
    (w,) = arrays((4, 2))
    transform = optax.sgd(0.1)

    def replica(state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(guarded_loss)(state, x, y, wrong)
        value, gradients = context().all_reduce("SUM", (value, gradients))
        updates, _ = transform.update(guarded_gradients(gradients, wrong), transform.init(state))
        return optax.apply_updates(state, updates), value

    @jd.function
    def step(state: Any, x: Any, y: Any) -> Any:
        return strategy.run(replica, args=(state, x, y))

    return step, (strategy.place({"w": w}), *arrays((ROWS, 4), (ROWS, 2)))
