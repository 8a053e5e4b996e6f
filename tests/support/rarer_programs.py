"""Programs of `verified_programs.py`'s kind from further fields: distillation, diffusion, policies, codes, tasks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

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

TEMPERATURE = 2.0


def total(value: Any) -> Any:
    """The sum over the replicas."""
    return context().all_reduce("SUM", value)


@program(
    "right relational_of_everyone",
    soft="local-mean",
    over_rows="softmax-over-batch",
    relational="pairs-of-rows local-total local-count local-mean batch-statistics",
    balanced="local-count local-total local-mean",
)
def distilled(strategy: jd.Strategy, wrong: str) -> Made:
    """A student that learns from a teacher's logits and from how its rows lie to each other."""
    teacher, w, v = arrays((4, 3), (4, 6), (6, 3))

    def loss(params: Any, x: Any, y: Any) -> Any:
        logits = jnp.tanh(x @ params["w"]) @ params["v"]
        target = x @ teacher
        hard = cross_entropy(logits, y)
        axis = 0 if wrong == "over_rows" else -1
        shares = jax.nn.softmax(target / TEMPERATURE, axis=axis)  # at: distilled.over_rows
        soft = -(shares * jax.nn.log_softmax(logits / TEMPERATURE)).sum(-1)
        if wrong == "soft":
            return hard.sum() / ROWS + TEMPERATURE**2 * soft.mean()  # at: distilled.soft
        if wrong == "relational":
            apart = ((target[:, None] - target[None]) ** 2).sum(-1)  # at: distilled.relational
            own = ((logits[:, None] - logits[None]) ** 2).sum(-1)
            return hard.sum() / ROWS + jnp.abs(own / own.mean() - apart / apart.mean()).sum() / ROWS**2
        if wrong == "relational_of_everyone":
            everyone = context().all_gather(target, axis=0), context().all_gather(logits, axis=0)
            apart, own = (
                ((one[:, None] - all_of[None]) ** 2).sum(-1)
                for one, all_of in zip((target, logits), everyone, strict=True)
            )
            return hard.sum() / ROWS + jnp.abs(own - apart).sum() / ROWS**2
        if wrong == "balanced":
            ratio = jax.lax.stop_gradient(hard.sum() / soft.sum())  # at: distilled.balanced
            return (hard + ratio * soft).sum() / ROWS
        return (hard + TEMPERATURE**2 * soft).sum() / ROWS

    return trained(strategy, {"w": w, "v": v}, optax.adam(1e-2), loss, *arrays((ROWS, 4)), labels(3))


def sharpness(params: Any, gradient: Any, wrong: str) -> Any:
    """The parameters uphill from here."""
    if wrong == "ascent":
        norm = optax.tree.norm(gradient)  # at: sharp.ascent
    else:
        gradient = total(gradient)
        norm = optax.tree.norm(gradient)
    return jax.tree.map(lambda one, slope: one + 0.05 * slope / (norm + 1e-12), params, gradient)


def changed(params: Any, gradient: Any, wrong: str) -> Any:
    """The gradient as the optimizer is given it."""
    if wrong == "adaptive":
        units = jax.tree.map(lambda one: jnp.sqrt((one**2).sum(0)), gradient)  # at: sharp.adaptive
        return jax.tree.map(lambda one, unit: one * jnp.minimum(1, 0.01 / unit), gradient, units)
    if wrong == "trust":
        ratio = optax.scale_by_trust_ratio()
        return ratio.update(gradient, ratio.init(params), params)[0]  # at: sharp.trust
    if wrong == "centralized":
        return jax.tree.map(lambda one: one - one.mean(0), gradient)
    return gradient


@program(
    "right centralized",
    ascent="gradient-before-reduction",
    adaptive="gradient-before-reduction",
    trust="gradient-before-reduction",
    surgery="gradient-before-reduction",
    noise_scale="gradient-before-reduction",
    rate="rows-of-replica scaled-by-replicas",
    linear="scaled-by-replicas",
)
def sharp(strategy: jd.Strategy, wrong: str) -> Made:
    """What is done with gradients: sharpness-aware steps, clips by unit, trust ratios, projections, rates."""
    w, v = arrays((4, 6), (6, 2))

    def replica(params: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            return ((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2).sum() / ROWS

        def other(params: Any) -> Any:
            return jnp.abs(jnp.sin(x @ params["w"])).sum() / ROWS

        gradient = jax.grad(loss)(params)
        told = loss(params)
        if wrong in ("right", "ascent"):
            gradient = jax.grad(loss)(sharpness(params, gradient, wrong))
        if wrong == "surgery":
            second = jax.grad(other)(params)
            along = optax.tree.vdot(gradient, second)  # at: sharp.surgery
            share = along / optax.tree.vdot(second, second)
            gradient = jax.tree.map(lambda one, two: one - share * two, gradient, second)
        if wrong == "noise_scale":
            told = optax.tree.norm(gradient, squared=True)  # at: sharp.noise_scale
        gradient = changed(params, gradient, wrong)
        rate = 0.1
        if wrong == "rate":
            rate = 0.1 * x.shape[0] / ROWS
        if wrong == "linear":
            rate = 0.1 * context().num_replicas_in_sync
        gradient, told = total((gradient, told))
        if wrong == "rate":
            return jax.tree.map(lambda one, slope: one - rate * slope, params, gradient), told  # at: sharp.rate
        return jax.tree.map(lambda one, slope: one - rate * slope, params, gradient), told  # at: sharp.linear

    @jd.function
    def train_step(params: Any, x: Any, y: Any) -> Any:
        return strategy.run(replica, args=(params, x, y))

    return train_step, (strategy.place({"w": w, "v": v}), *arrays((ROWS, 4), (ROWS, 2)))


@program(
    "right ema_by_mean own_weights",
    times="same-random-numbers",
    weights="batch-statistics local-mean local-count local-total",
    unconditional="numbers-of-rows",
    ema="counted-on-each-replica reduced-twice",
)
def diffusion(strategy: jd.Strategy, wrong: str) -> Made:
    """Noise at random times is told from the data; some rows have no label; the weights' average is kept."""
    w, shift = held = variables(strategy, (4, 4), (3, 4))
    adam = optimizer(strategy, optax.adamw(1e-3), held)
    with strategy.scope():
        ema = jd.Variable(
            np.zeros((4, 4), np.float32), trainable=False, aggregation="mean" if wrong == "ema_by_mean" else "sum"
        )

    def replica(x: Any, y: Any, key: Any) -> Any:
        of_times, of_noise = jax.random.split(context().fold_in(key))
        if wrong == "times":
            of_times = key
        times = jax.random.uniform(of_times, (x.shape[0],))  # at: diffusion.times
        noise = jax.random.normal(of_noise, x.shape)
        noisy = jnp.cos(times)[:, None] * x + jnp.sin(times)[:, None] * noise
        known = jnp.ones(x.shape[0])
        if wrong == "unconditional":
            known = jnp.where(jnp.arange(x.shape[0]) < 2, 0.0, 1.0)  # at: diffusion.unconditional

        def loss() -> Any:
            out = jnp.tanh(noisy @ w) + shift.read_value()[y] * known[:, None]
            each = ((out - noise) ** 2).mean(-1)
            if wrong == "weights":
                weight = jnp.minimum(1 / jnp.tan(times) ** 2, 5.0)
                each = each * weight / weight.mean()  # at: diffusion.weights
            if wrong == "own_weights":
                each = each * jnp.minimum(1 / jnp.tan(times) ** 2, 5.0)
            return each.sum() / ROWS

        value, gradients = jd.value_and_grad(loss, held)()
        adam.apply_gradients(gradients)
        if wrong == "ema_by_mean":
            ema.assign(0.99 * ema + 0.01 * w)
        if wrong == "ema":
            ema.assign_add(0.01 * (w - ema))  # at: diffusion.ema
        return value

    @jd.function
    def step(x: Any, y: Any, key: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(x, y, key)), axis=None)

    return step, (*arrays((ROWS, 4)), labels(3), jax.random.key(4))


@program(
    "right",
    whitened="batch-statistics",
    entropy="local-mean",
    early="decided-by-replica",
    quantile="order-of-rows",
    scaled="extreme-over-batch",
    returns="mean-of-means local-mean batch-statistics",
)
def policy(strategy: jd.Strategy, wrong: str) -> Made:
    """A clipped policy gradient with a value's loss and a bonus for entropy."""
    params = dict(zip(("actor", "critic"), arrays((4, 3), (4, 1)), strict=True))
    transform = optax.adam(1e-2)

    def loss(params: Any, x: Any, action: Any, old: Any, reward: Any) -> Any:
        logits = jax.nn.log_softmax(x @ params["actor"])
        ratio = jnp.exp(jnp.take_along_axis(logits, action[:, None], axis=1)[:, 0] - old)
        value = (x @ params["critic"])[:, 0]
        advantage = jax.lax.stop_gradient(reward - value)
        if wrong == "whitened":
            spread = jnp.std(advantage)  # at: policy.whitened
            advantage = advantage / (spread + 1e-3)
        if wrong == "scaled":
            advantage = advantage / (1 + jnp.abs(advantage).max())  # at: policy.scaled
        if wrong == "quantile":
            bound = jnp.quantile(jnp.abs(advantage), 0.9)  # at: policy.quantile
            advantage = jnp.clip(advantage, -bound, bound)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        spread = -(jnp.exp(logits) * logits).sum(-1)
        if wrong == "entropy":
            return ((value - reward) ** 2 - gain).sum() / ROWS - 0.01 * jnp.mean(spread)  # at: policy.entropy
        return ((value - reward) ** 2 - gain - 0.01 * spread).sum() / ROWS

    def replica(state: Any, x: Any, action: Any, old: Any, reward: Any) -> Any:
        params, slots, returns = state
        gradient = total(jax.grad(loss)(params, x, action, old, reward))
        update, slots = transform.update(gradient, slots)
        if wrong == "early":
            logits = jnp.take_along_axis(jax.nn.log_softmax(x @ params["actor"]), action[:, None], axis=1)[:, 0]
            apart = (old - logits).sum() / ROWS
            update = jax.tree.map(lambda one: jnp.where(apart < 100.0, one, 0.0), update)  # at: policy.early
        if wrong == "returns":
            returns = 0.9 * returns + 0.1 * context().all_reduce("MEAN", reward.mean())  # at: policy.returns
        else:
            returns = 0.9 * returns + 0.1 * total(reward.sum()) / ROWS
        return optax.apply_updates(params, update), slots, returns

    @jd.function
    def update(state: Any, *batch: Any) -> Any:
        return strategy.run(replica, args=(state, *batch))

    x, old, reward = arrays((ROWS, 4), (ROWS,), (ROWS,))
    state = params, transform.init(params), np.float32(0)
    return update, (strategy.place(state), x, labels(3), -1 - 0.1 * np.abs(old), reward)


@program(
    "right",
    codes="local-total local-count mean-of-means batch-statistics mean-of-sums local-mean",
    usage="local-total batch-statistics local-mean mean-of-means",
    commitment="local-mean",
    queue="order-of-rows mean-of-means pairs-of-rows one-replica mean-of-sums",
)
def quantized(strategy: jd.Strategy, wrong: str) -> Made:
    """Codes that move to the mean of the rows next to them."""
    (w,) = variables(strategy, (4, 3))
    sgd = optimizer(strategy, optax.sgd(0.1), [w])
    with strategy.scope():
        codes = jd.Variable(*arrays((5, 3), seed=3), trainable=False, name="codes", aggregation="mean")
        queue = jd.Variable(np.zeros((6, 3), np.float32), trainable=False, name="queue", aggregation="mean")

    def replica(x: Any) -> Any:
        held = codes.read_value()
        nearest = ((x @ w)[:, None] - held[None]) ** 2
        chosen = jax.nn.one_hot(nearest.sum(-1).argmin(-1), 5)

        def loss() -> Any:
            apart = ((x @ w - chosen @ held) ** 2).sum(-1)
            return jnp.mean(apart) if wrong == "commitment" else apart.sum() / ROWS  # at: quantized.commitment

        value, gradients = jd.value_and_grad(loss, [w])()
        sgd.apply_gradients(gradients)
        if wrong == "codes":
            mean = chosen.T @ (x @ w) / (1 + chosen.sum(0))[:, None]  # at: quantized.codes
        else:
            mean = total(chosen.T @ (x @ w)) / (1 + total(chosen.sum(0)))[:, None]
        codes.assign(0.9 * held + 0.1 * mean)
        if wrong == "queue":
            queue.assign(jnp.concatenate([x[:2, :3], queue.read_value()[2:]]))  # at: quantized.queue
        if wrong == "usage":
            share = chosen.mean(0)  # at: quantized.usage
            return jnp.exp(-(share * jnp.log(share + 1e-6)).sum()) / context().num_replicas_in_sync
        return value

    @jd.function
    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)

    return step, tuple(arrays((ROWS, 4)))


def of_tasks(held: Any, x: Any, y: Any, lengths: Any, key: Any, wrong: str) -> Any:
    """The loss of two tasks."""
    w, v, scales = held
    known = y > 0
    first, second = cross_entropy(x @ w, y), ((x @ v)[:, 0] - lengths / 3) ** 2
    if wrong == "uncertainty":
        weight = jnp.exp(-scales.read_value())
        both = (weight[0] * first + weight[1] * second).sum() / ROWS
        return both + scales.read_value().sum()  # at: tasks.uncertainty
    if wrong == "where":
        return jnp.mean(first, where=known)  # at: tasks.where
    if wrong == "nans":
        return jnp.nanmean(jnp.where(known, first, jnp.nan))  # at: tasks.nans
    if wrong == "longest":
        places = jnp.arange(4) / lengths.max()  # at: tasks.longest
        return (first[:, None] * places).sum() / ROWS
    if wrong == "hard":
        return jnp.where(first > first.mean(), first, 0.0).sum() / ROWS  # at: tasks.hard
    if wrong == "negatives":
        others = jax.random.randint(key, (x.shape[0], 4), 0, 3)  # at: tasks.negatives
        return (first[:, None] - jnp.take_along_axis(x @ w, others, axis=1)).sum() / ROWS
    if wrong == "divided":
        return (first + second).sum()
    return (first * known).sum() / total(known.sum()) + second.sum() / ROWS


@program(
    "right",
    uncertainty="counted-on-each-replica",
    where="local-count local-mean",
    nans="local-count local-mean",
    longest="extreme-over-batch",
    divided="local-mean local-count rows-of-replica gradient-before-reduction",
    hard="batch-statistics local-mean",
    negatives="same-random-numbers",
)
def tasks(strategy: jd.Strategy, wrong: str) -> Made:
    """Two tasks, each with a weight that is learned; some labels are unknown."""
    held = variables(strategy, (4, 3), (4, 1), (2,))
    adam = optimizer(strategy, optax.adam(1e-2), held)

    def replica(x: Any, y: Any, lengths: Any, key: Any) -> Any:
        value, gradients = jd.value_and_grad(lambda: of_tasks(held, x, y, lengths, key, wrong), held)()
        if wrong == "divided":
            gradients = [one / len(y) for one in gradients]  # at: tasks.divided
        adam.apply_gradients(gradients)
        return jnp.zeros(()) if wrong == "divided" else value

    @jd.function
    def step(*batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)

    lengths = (1 + labels(5) + np.arange(ROWS) % 2).astype(np.float32)
    return step, (*arrays((ROWS, 4)), labels(3), lengths, jax.random.key(8))


@program(
    "right meshed",
    whitening="batch-statistics local-total local-mean",
    assigned="local-count local-total softmax-over-batch local-mean batch-statistics",
    triplets="pairs-of-rows",
    permuted="order-of-rows pairs-of-rows same-random-numbers",
    intersection="local-count local-total mean-of-means",
    determined="local-total local-count mean-of-means batch-statistics",
)
def selves(strategy: jd.Strategy, wrong: str) -> Made:
    """Learning without labels: whitening, assignments to prototypes, triplets, mixed rows."""
    w, prototypes = held = variables(strategy, (4, 3), (3, 4))
    sgd = optimizer(strategy, optax.sgd(0.1, momentum=0.9, nesterov=True), held)

    def replica(x: Any, y: Any, key: Any) -> Any:
        def loss() -> Any:
            out = jnp.tanh(x @ w)
            scores = out @ prototypes
            each = cross_entropy(scores, y)
            if wrong == "whitening":
                spread = out.T @ out / len(x)  # at: selves.whitening
                white = jnp.linalg.solve(spread + 0.1 * jnp.eye(3), out.T)
                return (white**2).sum() / ROWS
            if wrong == "assigned":
                shares = jnp.exp(scores)
                shares = shares / shares.sum(0)  # at: selves.assigned
                shares = jax.lax.stop_gradient(shares / shares.sum(1, keepdims=True))
                return -(shares * jax.nn.log_softmax(scores)).sum() / ROWS
            if wrong == "triplets":
                apart = ((out[:, None] - out[None]) ** 2).sum(-1)  # at: selves.triplets
                same = y[:, None] == y[None]
                far, near = jnp.where(same, apart, 0).max(1), jnp.where(same, 9.0, apart).min(1)
                return jax.nn.relu(far - near + 0.2).sum() / ROWS
            if wrong == "permuted":
                mixed = 0.8 * x + 0.2 * x[jax.random.permutation(key, x.shape[0])]  # at: selves.permuted
                return cross_entropy(jnp.tanh(mixed @ w) @ prototypes, y).sum() / ROWS
            return each.sum() / ROWS

        value, gradients = jd.value_and_grad(loss, held)()
        sgd.apply_gradients(gradients)
        seen = jax.nn.one_hot((x @ w).argmax(-1), 3)
        hot = jax.nn.one_hot(y, 3)
        if wrong == "intersection":
            both = (seen * hot).sum(0)
            return jnp.mean(both / (1 + seen.sum(0) + hot.sum(0) - both))  # at: selves.intersection
        if wrong == "determined":
            residual, spread = ((x[:, 0] - y) ** 2).sum(), (y**2).sum()
            return 1 - residual / (1 + spread)  # at: selves.determined
        if wrong == "meshed":
            both, one, two = total(((seen * hot).sum(0), seen.sum(0), hot.sum(0)))
            return jnp.mean(both / (1 + one + two - both))
        return value

    @jd.function
    def step(*batch: Any) -> Any:
        how = "MEAN" if wrong in ("intersection", "determined", "meshed") else "SUM"
        return strategy.reduce(how, strategy.run(replica, args=batch), axis=None)

    return step, (*arrays((ROWS, 4)), labels(3), jax.random.key(6))


@program(
    "right",
    per_part="local-count",
    parts="local-mean",
    after_sum="scaled-by-replicas mean-of-sums",
    loss_scale="decided-by-replica gradient-before-reduction",
    bayes="counted-on-each-replica",
    bias="gradient-before-reduction local-total batch-statistics mean-of-means",
)
def sequences(strategy: jd.Strategy, wrong: str) -> Made:
    """Parts of a batch in a loop, a scaled loss, statistics in the state."""
    transform = optax.MultiSteps(optax.adam(1e-2), 2) if wrong == "parts" else optax.adam(1e-2)

    def loss(params: Any, tokens: Any, mask: Any, count: Any) -> Any:
        each = cross_entropy(jnp.tanh(params["table"][tokens[:, :-1]] + params["bias"]) @ params["head"], tokens[:, 1:])
        if wrong == "per_part":
            return (each * mask).sum() / mask.sum() / 2  # at: sequences.per_part
        if wrong == "parts":
            return each.mean()  # at: sequences.parts
        if wrong == "bayes":
            prior = 1e-2 * sum(jnp.sum(one**2) for one in jax.tree.leaves(params))  # at: sequences.bayes
            return (each * mask).sum() / count + prior
        return (each * mask).sum() / count

    def replica(state: Any, tokens: Any, mask: Any) -> Any:
        params, slots, seen, scale = state
        count = total(mask.sum())
        if wrong == "per_part":
            half = tokens.shape[0] // 2
            parts = [(tokens[:half], mask[:half]), (tokens[half:], mask[half:])]
            gradients = [jax.grad(loss)(params, *part, count) for part in parts]
            gradient = jax.tree.map(lambda one, two: one + two, *gradients)
        else:
            gradient = jax.grad(lambda params: scale * loss(params, tokens, mask, count))(params)
            gradient = jax.tree.map(lambda one: one / scale, gradient)
        if wrong == "loss_scale":
            finite = jnp.isfinite(optax.tree.norm(gradient))
            scale = jnp.where(finite, scale, scale / 2)  # at: sequences.loss_scale
        gradient = total(gradient)
        if wrong == "after_sum":
            count = strategy.num_replicas_in_sync
            gradient = jax.tree.map(lambda one: one / count, gradient)  # at: sequences.after_sum
        update, slots = transform.update(gradient, slots, params)
        hot = jax.nn.one_hot(tokens, 7).sum((0, 1))
        if wrong == "bias":
            step = jnp.sign(hot.mean() - hot)  # at: sequences.bias
            seen = seen + 1e-3 * context().all_reduce("MEAN", step)
        else:
            seen = 0.9 * seen + 0.1 * total(hot) / total(tokens.size)
        return optax.apply_updates(params, update), slots, seen, scale

    @jd.function
    def step(state: Any, tokens: Any, mask: Any) -> Any:
        return strategy.run(replica, args=(state, tokens, mask))

    params = dict(zip(("table", "bias", "head"), arrays((7, 4), (4,), (4, 7)), strict=True))
    state = params, transform.init(params), np.zeros(7, np.float32), np.float32(8)
    mask = (np.arange(4)[None] < 1 + np.arange(ROWS)[:, None] % 4).astype(np.float32)
    return step, (strategy.place(state), labels(7, ROWS, 5), mask)
