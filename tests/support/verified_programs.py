"""Programs of many kinds, right and with planted mistakes; a comment `at: NAME` marks the line of each mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

ROWS = 12
Made = tuple[Any, tuple[Any, ...]]


class Case(NamedTuple):
    """A program, one of its mistakes (none if empty), and the patterns that name it."""

    program: Callable[[jd.Strategy, str], Made]
    wrong: str = ""
    patterns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.program.__name__}-{self.wrong or 'right'}"


RIGHT: list[Case] = []
WRONG: list[Case] = []


def program(right: str = "right", **wrong: str) -> Callable[[Callable[[jd.Strategy, str], Made]], Any]:
    """Lists a program: names of its right forms, and for each mistake the patterns that name it."""

    def listed(make: Callable[[jd.Strategy, str], Made]) -> Any:
        RIGHT.extend(Case(make, name) for name in right.split())
        WRONG.extend(Case(make, name, tuple(patterns.split())) for name, patterns in wrong.items())
        return make

    return listed


def file_of(case: Case) -> str:
    """The file of a program."""
    return case.program.__code__.co_filename


def line_of(case: Case) -> int:
    """The line of a mistake."""
    for number, line in enumerate(Path(file_of(case)).read_text(encoding="utf-8").splitlines(), start=1):
        if line.endswith(f"# at: {case.program.__name__}.{case.wrong}"):
            return number
    raise LookupError(str(case))


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def labels(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(9).integers(0, count, shape or (ROWS,)).astype(np.int32)


def variables(strategy: jd.Strategy, *shapes: tuple[int, ...]) -> list[jd.Variable]:
    with strategy.scope():
        return [jd.Variable(0.5 * value, name=f"w{number}") for number, value in enumerate(arrays(*shapes, seed=1))]


def optimizer(strategy: jd.Strategy, transform: Any, held: Any) -> jd.Optimizer:
    with strategy.scope():
        return jd.Optimizer(transform, held)


def context() -> jd.ReplicaContext:
    """The replica context, where there is one."""
    found = jd.get_replica_context()
    assert found is not None
    return found


def cross_entropy(logits: Any, target: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, target)


def trained(strategy: jd.Strategy, params: Any, transform: Any, loss: Any, *batch: Any) -> Made:
    """A step of plain JAX and Optax, whose state goes in and comes out."""

    def replica(state: Any, *batch: Any) -> Any:
        params, slots = state
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        value, gradients = context().all_reduce("SUM", (value, gradients))
        updates, slots = transform.update(gradients, slots, params)
        return (optax.apply_updates(params, updates), slots), value

    @jd.function
    def train_step(state: Any, *batch: Any) -> Any:
        return strategy.run(replica, args=(state, *batch))

    return train_step, (strategy.place((params, transform.init(params))), *batch)


def perceptron_loss(x: Any, y: Any, held: Any, wrong: str) -> Any:
    w, b, v = held
    each = cross_entropy(jax.nn.relu(x @ w + b) @ v, y)
    if wrong == "local_mean":
        return each.mean()  # at: perceptron.local_mean
    if wrong == "uneven":
        return jnp.mean(each)  # at: perceptron.uneven
    if wrong == "no_size":
        return jd.nn.compute_average_loss(each)  # at: perceptron.no_size
    if wrong == "scaled":
        share = jd.nn.compute_average_loss(each, global_batch_size=ROWS)
        return share / context().num_replicas_in_sync  # at: perceptron.scaled
    return jd.nn.compute_average_loss(each, global_batch_size=ROWS)


@program(
    "right reduced functional",
    local_mean="local-mean",
    uneven="mean-of-means",
    no_size="default-batch-size",
    mean_of_sums="mean-of-sums",
    scaled="scaled-by-replicas",
    metric="sum-of-means local-mean",
    twice="reduced-twice",
    result_twice="reduced-twice sum-of-means",
)
def perceptron(strategy: jd.Strategy, wrong: str) -> Made:
    w, *_ = held = variables(strategy, (5, 6), (6,), (6, 3))
    adam = optimizer(strategy, optax.adam(1e-2), held)

    def replica(x: Any, y: Any) -> Any:

        value, gradients = jd.value_and_grad(lambda: perceptron_loss(x, y, held, wrong), held)()
        if wrong == "reduced":
            gradients = context().all_reduce("SUM", gradients)
            adam.apply_gradients(gradients, reduce_op=None)
        elif wrong == "twice":
            gradients = context().all_reduce("SUM", gradients)
            adam.apply_gradients(gradients)  # at: perceptron.twice
        elif wrong == "mean_of_sums":
            adam.apply_gradients(gradients, "MEAN")  # at: perceptron.mean_of_sums
        else:
            adam.apply_gradients(gradients, "MEAN" if wrong == "uneven" else "SUM")
        if wrong == "metric":
            return cross_entropy(x @ w[:, :3], y).mean()
        if wrong == "result_twice":
            return context().all_reduce("SUM", value)
        return value

    @jd.function
    def step(batch: Any) -> Any:
        values = strategy.run(replica, args=batch)
        if wrong == "metric":
            return strategy.reduce("SUM", values, axis=None)  # at: perceptron.metric
        if wrong == "result_twice":
            return strategy.reduce("SUM", values, axis=None)  # at: perceptron.result_twice
        return strategy.reduce("SUM" if wrong != "uneven" else "MEAN", values, axis=None)

    return step, ((*arrays((ROWS, 5)), labels(3)),)


@program(
    "right synced per_example layer_norm",
    statistics="batch-statistics",
    variance="batch-statistics",
    moving="mean-of-means batch-statistics",
)
def convolution(strategy: jd.Strategy, wrong: str) -> Made:
    kernel, scale, head = held = variables(strategy, (3, 3, 1, 4), (4,), (4, 3))
    sgd = optimizer(strategy, optax.sgd(0.1, momentum=0.9), held)
    with strategy.scope():
        moving = jd.Variable(
            np.zeros(4, np.float32), trainable=False, name="moving", aggregation=jd.VariableAggregation.MEAN
        )

    def replica(x: Any, y: Any) -> Any:

        def loss() -> Any:
            h = jax.lax.conv_general_dilated(
                x, kernel.read_value(), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            if wrong == "statistics":
                mean = h.mean((0, 1, 2))  # at: convolution.statistics
                h = (h - mean) * scale
            elif wrong == "variance":
                h = h / jnp.sqrt(jnp.var(h, axis=(0, 1, 2)) + 1e-3)  # at: convolution.variance
            elif wrong == "synced":
                count = context().all_reduce("SUM", jnp.float32(x.shape[0] * 16))
                mean = context().all_reduce("SUM", h.sum((0, 1, 2))) / count
                square = context().all_reduce("SUM", (h * h).sum((0, 1, 2))) / count
                h = (h - mean) * jax.lax.rsqrt(square - mean**2 + 1e-3) * scale
            elif wrong == "per_example":
                h = (h - h.mean((1, 2), keepdims=True)) * scale
            elif wrong == "layer_norm":
                h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-3)
            each = cross_entropy(jax.nn.relu(h).mean((1, 2)) @ head, y)
            return jd.nn.compute_average_loss(each, global_batch_size=ROWS)

        value, gradients = jd.value_and_grad(loss, held)()
        sgd.apply_gradients(gradients)
        if wrong == "moving":
            moving.assign(0.9 * moving + 0.1 * x.mean((0, 1, 2)).repeat(4))  # at: convolution.moving
        return value

    @jd.function
    def step(images: Any, target: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(images, target)), axis=None)

    return step, (*arrays((ROWS, 4, 4, 1)), labels(3))


@program(
    "right constant_weights gathered_count",
    tokens="local-count",
    two_lines="local-count",
    per_batch="local-count",
    weights="local-count",
    epsilon="local-count",
    mean_count="mean-of-sums",
    perplexity="local-mean local-count local-total mean-of-means batch-statistics",
)
def language(strategy: jd.Strategy, wrong: str) -> Made:
    table, mixed = held = variables(strategy, (11, 6), (6, 11))
    adam = optimizer(strategy, optax.adamw(1e-2), held)

    def replica(batch: Any) -> Any:
        tokens, mask = batch["tokens"], batch["mask"]

        def loss() -> Any:
            hidden = jnp.take(table.read_value(), tokens[:, :-1], axis=0)
            each = cross_entropy(jnp.cumsum(hidden, axis=1) @ mixed, tokens[:, 1:])
            total = (each * mask).sum()
            if wrong == "tokens":
                return total / mask.sum()  # at: language.tokens
            if wrong == "two_lines":
                count = jnp.maximum(mask.sum(), 1.0)
                return total / count  # at: language.two_lines
            if wrong == "per_batch":
                return jnp.average(each, weights=mask)  # at: language.per_batch
            if wrong == "weights":
                weights = mask / mask.sum()  # at: language.weights
                return (each * weights).sum()
            if wrong == "epsilon":
                return total / (mask.sum() + 1e-6)  # at: language.epsilon
            if wrong == "perplexity":
                return jnp.exp(each.mean()) / 100  # at: language.perplexity
            if wrong == "constant_weights":
                return jd.nn.compute_average_loss(each, sample_weight=mask, global_batch_size=ROWS * 4)
            how = "MEAN" if wrong == "mean_count" else "SUM"
            count = context().all_reduce(how, mask.sum())  # at: language.mean_count
            if wrong == "gathered_count":
                count = context().all_gather(mask, axis=0).sum()
            return total / count

        value, gradients = jd.value_and_grad(loss, held)()
        adam.apply_gradients(gradients, "MEAN" if wrong in ("tokens", "two_lines", "per_batch") else "SUM")
        return value

    @jd.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(batch,)), axis=None)

    tokens = labels(11, ROWS, 5)
    mask = (np.arange(4)[None] < 1 + np.arange(ROWS)[:, None] % 4).astype(np.float32)
    return step, ({"tokens": tokens, "mask": mask},)


@program(
    "right scaled after proximal",
    l2="counted-on-each-replica",
    two_lines="counted-on-each-replica",
    l1="counted-on-each-replica",
    orthogonal="counted-on-each-replica",
    entropy="counted-on-each-replica",
)
def regularized(strategy: jd.Strategy, wrong: str) -> Made:
    w, v = held = variables(strategy, (4, 4), (4, 2))
    transform = optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(0.1)) if wrong == "after" else optax.sgd(0.1)
    sgd = optimizer(strategy, transform, held)

    def replica(x: Any, y: Any) -> Any:
        def loss() -> Any:
            each = cross_entropy(jnp.tanh(x @ w) @ v, y)
            data = jd.nn.compute_average_loss(each, global_batch_size=ROWS)
            if wrong == "l2":
                return data + 1e-2 * sum(jnp.sum(one.read_value() ** 2) for one in held)  # at: regularized.l2
            if wrong == "two_lines":
                decay = 1e-2 * jnp.sum(w.read_value() ** 2)  # at: regularized.two_lines
                return data + decay
            if wrong == "l1":
                return data + 1e-2 * jnp.abs(v.read_value()).sum()  # at: regularized.l1
            if wrong == "orthogonal":
                gram = w.read_value().T @ w.read_value()
                return data + 1e-2 * jnp.sum((gram - jnp.eye(4)) ** 2)  # at: regularized.orthogonal
            if wrong == "entropy":
                share = jax.nn.softmax(v.read_value().reshape(-1))
                penalty = jnp.sum(share * jnp.log(share))  # at: regularized.entropy
                return data + 0.1 * penalty
            if wrong == "scaled":
                return data + jd.nn.scale_regularization_loss(1e-2 * jnp.sum(w.read_value() ** 2))
            if wrong == "proximal":
                return data + 1e-2 * jnp.sum(w.read_value() ** 2) * x.shape[0] / ROWS
            return data

        value, gradients = jd.value_and_grad(loss, held)()
        sgd.apply_gradients(gradients)
        return value

    @jd.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)

    return step, ((*arrays((ROWS, 4)), labels(2)),)


@program(
    "right wasserstein",
    discriminator="local-mean",
    generator="local-mean",
    matching="batch-statistics local-mean",
    noise="same-random-numbers",
)
def adversarial(strategy: jd.Strategy, wrong: str) -> Made:
    g, d, e = variables(strategy, (3, 4), (4, 5), (5, 1))
    first = optimizer(strategy, optax.adam(1e-3), [g])
    second = optimizer(strategy, optax.adam(1e-3), [d, e])

    def judged(x: Any) -> Any:
        return (jax.nn.leaky_relu(x @ d) @ e)[:, 0]

    def replica(x: Any, key: Any) -> Any:
        own = key if wrong == "noise" else context().fold_in(key)
        z = jax.random.normal(own, (x.shape[0], 3))  # at: adversarial.noise

        def of_second() -> Any:
            if wrong == "wasserstein":
                each = judged(jnp.tanh(z @ g)) - judged(x)
            else:
                each = jax.nn.softplus(-judged(x)) + jax.nn.softplus(judged(jnp.tanh(z @ g)))
            if wrong == "discriminator":
                return each.mean()  # at: adversarial.discriminator
            return each.sum() / ROWS

        def of_first() -> Any:
            each = jax.nn.softplus(-judged(jnp.tanh(z @ g)))
            if wrong == "matching":
                gap = jnp.tanh(z @ g).mean(0)  # at: adversarial.matching
                return each.sum() / ROWS + (gap**2).sum() / context().num_replicas_in_sync
            if wrong == "generator":
                return jnp.mean(each)  # at: adversarial.generator
            return each.sum() / ROWS

        second.apply_gradients(jd.grad(of_second, [d, e])())
        first.apply_gradients(jd.grad(of_first, [g])())

    @jd.function
    def step(x: Any, key: Any) -> None:
        strategy.run(replica, args=(x, key))

    return step, (*arrays((ROWS, 4)), jax.random.key(3))


def put_back(everyone: Any, own: Any, first: Any, wrong: str) -> Any:
    """Gathered rows, or, wrong, these without gradients, and a replica's own rows in their place."""
    held_back = jax.lax.stop_gradient(everyone)
    if wrong == "replaced":
        return jax.lax.dynamic_update_slice(held_back, own, (first, 0))  # at: contrastive.replaced
    if wrong == "replaced_at":
        return held_back.at[first + jnp.arange(own.shape[0])].set(own)  # at: contrastive.replaced_at
    return everyone


@program(
    "right supervised pairs_of_one_example",
    local="pairs-of-rows",
    targets="numbers-of-rows pairs-of-rows",
    one_way="pairs-of-rows",
    replaced="gathered-without-gradients",
    replaced_at="gathered-without-gradients",
    whole="whole-on-each-replica",
    softmax="softmax-over-batch",
    redundancy="local-total",
)
def contrastive(strategy: jd.Strategy, wrong: str) -> Made:
    w, v = held = variables(strategy, (4, 3), (5, 3))
    sgd = optimizer(strategy, optax.sgd(0.1), held)

    def replica(x: Any, y: Any) -> Any:

        def loss() -> Any:
            one, other = x @ w, y @ v
            rows = x.shape[0]
            if wrong == "local":
                scores = one @ other.T  # at: contrastive.local
                return cross_entropy(scores, jnp.arange(rows)).sum() / ROWS
            if wrong == "softmax":
                chosen = (one * other).sum(-1)
                share = jax.nn.softmax(chosen)  # at: contrastive.softmax
                return -(share * chosen).sum()
            if wrong == "redundancy":
                shared = one.T @ other / ROWS
                return jnp.sum((shared - jnp.eye(3)) ** 2)  # at: contrastive.redundancy
            if wrong == "pairs_of_one_example":
                return ((one[:, :, None] * other[:, None, :]) ** 2).sum() / ROWS
            everyone = context().all_gather(other, axis=0)
            if wrong == "targets":
                target = jnp.arange(rows)  # at: contrastive.targets
            else:
                before = context().all_gather(jnp.full(1, rows), axis=0)
                place = jnp.arange(before.shape[0]) < context().replica_id_in_sync_group
                first = jnp.where(place, before, 0).sum()
                target = first + jnp.arange(rows)
                everyone = put_back(everyone, other, first, wrong)
            each = cross_entropy(one @ everyone.T, target)
            if wrong == "one_way":
                logits = other @ one.T, jnp.arange(rows)  # at: contrastive.one_way
                each = each + optax.softmax_cross_entropy_with_integer_labels(*logits)
            if wrong == "whole":
                scores = context().all_gather(one, axis=0) @ everyone.T
                return cross_entropy(scores, jnp.arange(len(scores))).mean()  # at: contrastive.whole
            if wrong == "supervised":
                each = each + ((one - other) ** 2).sum(-1)
            return each.sum() / ROWS

        value, gradients = jd.value_and_grad(loss, held)()
        sgd.apply_gradients(gradients)
        return value

    @jd.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)

    return step, (tuple(arrays((ROWS, 4), (ROWS, 5))),)


@program(
    "right by_value after",
    norm="gradient-before-reduction",
    optax_norm="gradient-before-reduction",
    by_value="",
    signs="gradient-before-reduction",
    with_mean="gradient-before-reduction",
    per_variable="gradient-before-reduction",
)
def clipped(strategy: jd.Strategy, wrong: str) -> Made:
    w, v = held = variables(strategy, (4, 4), (4, 2))
    after = optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(0.1))
    sgd = optimizer(strategy, after if wrong == "after" else optax.sgd(0.1), held)

    def replica(x: Any, y: Any) -> Any:
        def loss() -> Any:
            each = cross_entropy(jnp.tanh(x @ w) @ v, y)
            if wrong == "with_mean":
                return each.mean()
            return jd.nn.compute_average_loss(each, global_batch_size=ROWS)

        value, gradients = jd.value_and_grad(loss, held)()
        if wrong == "norm":
            norm = jnp.sqrt(sum(jnp.sum(one**2) for one in gradients))  # at: clipped.norm
            gradients = [one * jnp.minimum(1.0, 0.05 / norm) for one in gradients]
        elif wrong == "optax_norm":
            norm = optax.tree.norm(gradients)  # at: clipped.optax_norm
            gradients = [one / norm for one in gradients]
        elif wrong == "signs":
            gradients = [jnp.sign(one) for one in gradients]  # at: clipped.signs
        elif wrong == "with_mean":
            norm = optax.tree.norm(gradients)  # at: clipped.with_mean
            gradients = [one * jnp.minimum(1.0, 0.05 / norm) for one in gradients]
        elif wrong == "per_variable":
            gradients = [jnp.clip(one, -0.01, 0.01) for one in gradients]  # at: clipped.per_variable
        elif wrong == "by_value":
            gradients = context().all_reduce("SUM", gradients)
            gradients = [jnp.clip(one, -0.01, 0.01) for one in gradients]
        sgd.apply_gradients(gradients, None if wrong == "by_value" else "MEAN" if wrong == "with_mean" else "SUM")
        return value if wrong != "with_mean" else jnp.zeros(())

    @jd.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=batch), axis=None)

    return step, ((*arrays((ROWS, 4)), labels(2)),)


WRONG[:] = [case for case in WRONG if case.patterns]


@program(
    "right whole_key example_keys noise_of_weights",
    same_mask="same-random-numbers",
    noise="same-random-numbers",
    split="same-random-numbers",
)
def dropout(strategy: jd.Strategy, wrong: str) -> Made:
    w, v = held = variables(strategy, (4, 6), (6, 2))
    sgd = optimizer(strategy, optax.sgd(0.1), held)

    def replica(x: Any, y: Any, key: Any) -> Any:
        own = context().fold_in(key)

        def loss() -> Any:
            h = jnp.tanh(x @ w)
            if wrong == "same_mask":
                h = jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h * 2, 0)  # at: dropout.same_mask
            elif wrong == "noise":
                h = h + 0.1 * jax.random.normal(key, h.shape)  # at: dropout.noise
            elif wrong == "split":
                keys = jax.random.split(key, x.shape[0])
                h = h * jax.vmap(lambda one: jax.random.bernoulli(one, 0.5, (6,)))(keys)  # at: dropout.split
            elif wrong == "whole_key":
                h = jnp.where(jax.random.bernoulli(key, 0.5, (6,)), h * 2, 0)
            elif wrong == "example_keys":
                keys = context().example_keys(key, x.shape[0])
                h = h * jax.vmap(lambda one: jax.random.bernoulli(one, 0.5, (6,)))(keys)
            elif wrong == "noise_of_weights":
                h = jnp.tanh(x @ (w + 0.1 * jax.random.normal(key, (4, 6))))
            else:
                h = jnp.where(jax.random.bernoulli(own, 0.5, h.shape), h * 2, 0)
            return jd.nn.compute_average_loss(cross_entropy(h @ v, y), global_batch_size=ROWS)

        value, gradients = jd.value_and_grad(loss, held)()
        sgd.apply_gradients(gradients)
        return value

    @jd.function
    def step(batch: Any, key: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(*batch, key)), axis=None)

    return step, ((*arrays((ROWS, 4)), labels(2)), jax.random.key(1))


@program(
    "right scanned",
    short="mean-of-means",
    masked="local-count",
    summed="local-mean",
    clipped="gradient-before-reduction",
)
def accumulated(strategy: jd.Strategy, wrong: str) -> Made:
    w, v = held = variables(strategy, (4, 4), (4, 2))
    sgd = optimizer(strategy, optax.sgd(0.1), held)

    def replica(x: Any, y: Any) -> Any:
        half = x.shape[0] // 2

        def loss_of(x: Any, y: Any) -> Any:
            each = cross_entropy(jnp.tanh(x @ w) @ v, y)
            if wrong == "short":
                return jnp.mean(each) / 2  # at: accumulated.short
            if wrong == "masked":
                seen = (y > 0).astype(jnp.float32)
                return (each * seen).sum() / (1 + seen.sum())  # at: accumulated.masked
            if wrong == "summed":
                return each.mean() / 2  # at: accumulated.summed
            return each.sum() / ROWS

        total = [jnp.zeros(one.shape) for one in held]
        if wrong in ("scanned", "clipped") and x.shape[0] % 2 == 0:

            def body(total: Any, part: Any) -> Any:
                found = jd.grad(lambda: loss_of(*part), held)()
                if wrong == "clipped":
                    norm = optax.tree.norm(found)  # at: accumulated.clipped
                    found = [one * jnp.minimum(1.0, 0.01 / norm) for one in found]
                return [one + other for one, other in zip(total, found, strict=True)], None

            parts = x.reshape(2, half, 4), y.reshape(2, half)
            total, _ = jax.lax.scan(body, total, parts)
        else:
            for part in (slice(None, half), slice(half, None)):
                found = jd.grad(lambda part=part: loss_of(x[part], y[part]), held)()
                total = [one + other for one, other in zip(total, found, strict=True)]
        sgd.apply_gradients(total, "MEAN" if wrong == "short" else "SUM")

    @jd.function
    def step(batch: Any) -> None:
        strategy.run(replica, args=batch)

    return step, ((*arrays((ROWS, 4)), labels(2)),)


@program("right", own="gradient-before-reduction")
def sharpness_aware(strategy: jd.Strategy, wrong: str) -> Made:
    """Gradients at a disturbed place, behind statistics of the batch: those of the first bias cancel."""
    held = variables(strategy, (4, 4), (4,), (4, 3))
    sgd = optimizer(strategy, optax.sgd(0.1), held)

    def loss(params: Any, x: Any, y: Any) -> Any:
        w, b, v = params
        h = x @ w + b
        h = h - context().all_reduce("SUM", h.sum(0)) / ROWS
        h = h / jnp.sqrt(context().all_reduce("SUM", (h**2).sum(0)) / ROWS + 1e-3)
        return cross_entropy(jax.nn.relu(h) @ v, y).sum() / ROWS

    def replica(x: Any, y: Any) -> None:
        now = [one.read_value() for one in held]
        found = jax.grad(loss)(now, x, y)
        if wrong != "own":
            found = context().all_reduce("SUM", found)
        norm = optax.tree.norm(found)  # at: sharpness_aware.own
        disturbed = [one + 0.05 * change / norm for one, change in zip(now, found, strict=True)]
        sgd.apply_gradients(jax.grad(loss)(disturbed, x, y))

    @jd.function
    def step(batch: Any) -> None:
        strategy.run(replica, args=batch)

    return step, ((*arrays((ROWS, 4)), labels(3)),)


@program("right", mean="local-mean", counted="local-count", clipped="gradient-before-reduction")
def over_calls(strategy: jd.Strategy, wrong: str) -> Made:
    w, v = held = variables(strategy, (4, 4), (4, 2))
    with strategy.scope():
        sgd = jd.Optimizer(optax.sgd(0.1), held, accumulate_steps=4, accumulate_op="SUM")

    def replica(x: Any, y: Any) -> Any:
        def loss() -> Any:
            each = cross_entropy(jnp.tanh(x @ w) @ v, y)
            if wrong == "mean":
                return each.sum() / (x.shape[0] * 4)  # at: over_calls.mean
            if wrong == "counted":
                return each.sum() / (jnp.ones_like(each).sum() * 4)  # at: over_calls.counted
            return each.sum() / (ROWS * 4)

        found = jd.grad(loss, held)()
        if wrong == "clipped":
            norm = optax.tree.norm(found)  # at: over_calls.clipped
            found = [one * jnp.minimum(1.0, 0.01 / norm) for one in found]
        sgd.apply_gradients(found)

    @jd.function
    def step(batch: Any) -> None:
        strategy.run(replica, args=batch)

    return step, ((*arrays((ROWS, 4)), labels(2)),)


def measured(x: Any, y: Any, w: Any, wrong: str) -> Any:
    """The metric of a replica."""
    right = (jnp.argmax(x @ w, -1) == y).astype(jnp.float32)
    if wrong == "f1":
        found = right.sum()
        return 2 * found / (found + y.sum())  # at: metrics.f1
    if wrong == "maximum_of_rows":
        return jnp.max(jnp.abs(x @ w))  # at: metrics.maximum_of_rows
    if wrong == "maximum":
        return (
            context().all_gather(jnp.abs(x @ w).max(initial=0.0)[None], axis=0).max() / context().num_replicas_in_sync
        )
    if wrong == "in_loss":
        return context().all_reduce("SUM", right.sum()) / context().num_replicas_in_sync
    if wrong in ("accuracy", "ratio"):
        return right.mean()
    return right


@program(
    "right counted in_loss maximum",
    accuracy="sum-of-means local-mean",
    ratio="mean-of-means",
    variable="mean-of-means local-mean",
    first="one-replica",
    steps="counted-on-each-replica",
    running="local-total mean-of-sums",
    f1="local-count local-total mean-of-means",
    maximum_of_rows="extreme-over-batch",
    best="local-total",
    around="scaled-by-replicas",
)
def metrics(strategy: jd.Strategy, wrong: str) -> Made:
    (w,) = variables(strategy, (4, 3))
    with strategy.scope():
        hits = jd.Variable(0.0, trainable=False, name="hits", aggregation=jd.VariableAggregation.SUM)
        share = jd.Variable(0.0, trainable=False, name="share", aggregation=jd.VariableAggregation.MEAN)
        on_read = jd.VariableSynchronization.ON_READ
        steps = jd.Variable(
            0.0, trainable=False, name="steps", synchronization=on_read, aggregation=jd.VariableAggregation.SUM
        )
        last = jd.Variable(0.0, trainable=False, name="last", aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA)

    def replica(x: Any, y: Any) -> Any:
        right = (jnp.argmax(x @ w, -1) == y).astype(jnp.float32)
        hits.assign_add(right.sum())
        if wrong == "variable":
            share.assign(right.mean())  # at: metrics.variable
        if wrong == "steps":
            steps.assign_add(1.0)  # at: metrics.steps
        if wrong == "running":
            share.assign(0.9 * share + 0.1 * right.sum())  # at: metrics.running
        if wrong == "best":
            share.assign(jnp.maximum(share.read_value(), right.sum()))  # at: metrics.best
        if wrong == "first":
            last.assign(right.sum())  # at: metrics.first
        return measured(x, y, w, wrong)

    @jd.function
    def step(x: Any, y: Any) -> Any:
        result = strategy.run(replica, args=(x, y))
        if wrong == "accuracy":
            return strategy.reduce("SUM", result, axis=None)  # at: metrics.accuracy
        if wrong == "ratio":
            return strategy.reduce("MEAN", result, axis=None)  # at: metrics.ratio
        if wrong == "around":
            return strategy.reduce("SUM", result, axis=0) * strategy.num_replicas_in_sync / ROWS  # at: metrics.around
        if wrong in ("right", "counted", "variable", "first", "steps", "running", "best"):
            return strategy.reduce("MEAN", result, axis=0)
        return strategy.reduce("SUM" if wrong in ("maximum", "in_loss") else "MEAN", result, axis=None)

    return step, (*arrays((ROWS, 4)), labels(3))


@program(
    "right teacher centered",
    center="batch-statistics",
    average="mean-of-means local-mean",
)
def averaged(strategy: jd.Strategy, wrong: str) -> Made:
    (w,) = variables(strategy, (4, 3))
    sgd = optimizer(strategy, optax.sgd(0.1), [w])
    with strategy.scope():
        copy = jd.Variable(w.read_value() * 0.9, trainable=False, name="copy")
        center = jd.Variable(
            np.zeros(3, np.float32), trainable=False, name="center", aggregation=jd.VariableAggregation.MEAN
        )

    def replica(x: Any) -> Any:

        def loss() -> Any:
            target = x @ copy
            if wrong == "center":
                target = target - target.mean(0)  # at: averaged.center
            elif wrong == "centered":
                target = target - context().all_reduce("SUM", target.sum(0)) / context().all_reduce(
                    "SUM", x.shape[0] * 1.0
                )
            each = -(jax.nn.softmax(target) * jax.nn.log_softmax(x @ w)).sum(-1)
            return jd.nn.compute_average_loss(each, global_batch_size=ROWS)

        value, (gradient,) = jd.value_and_grad(loss, [w])()
        sgd.apply_gradients([gradient])
        if wrong == "average":
            center.assign(0.9 * center + 0.1 * (x @ copy).mean(0))  # at: averaged.average
        return value

    @jd.function
    def step(x: Any) -> Any:
        value = strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)
        copy.assign(0.99 * copy + 0.01 * w)
        return value

    return step, tuple(arrays((ROWS, 4)))


@program(
    "right gathered",
    ranks="order-of-rows",
    rolled="order-of-rows pairs-of-rows",
    hardest="order-of-rows extreme-over-batch",
    running="order-of-rows",
    correlation="batch-statistics local-total local-mean",
    positions="numbers-of-rows",
)
def ranked(strategy: jd.Strategy, wrong: str) -> Made:
    (w,) = variables(strategy, (4, 1))
    sgd = optimizer(strategy, optax.sgd(0.1), [w])

    def replica(x: Any, y: Any) -> Any:

        def loss() -> Any:
            scores = (x @ w)[:, 0]
            each = (scores - y) ** 2
            if wrong == "ranks":
                order = jnp.argsort(scores)  # at: ranked.ranks
                return (each * order).sum() / ROWS
            if wrong == "rolled":
                return ((scores - jnp.roll(scores, 1)) ** 2).sum() / ROWS  # at: ranked.rolled
            if wrong == "hardest":
                hard = jax.lax.top_k(each, max(1, x.shape[0] // 2))[0]  # at: ranked.hardest
                return hard.sum() / ROWS
            if wrong == "running":
                return (jnp.cumsum(each) * y).sum() / ROWS  # at: ranked.running
            if wrong == "correlation":
                one = scores - scores.mean()  # at: ranked.correlation
                return (one * y).sum() / ROWS
            if wrong == "positions":
                weight = jnp.arange(x.shape[0]) + 1.0  # at: ranked.positions
                return (each * weight).sum() / ROWS
            if wrong == "gathered":
                everyone = context().all_gather(scores, axis=0)
                return ((scores[:, None] - everyone[None, :]) ** 2).sum() / ROWS
            return each.sum() / ROWS

        value, gradients = jd.value_and_grad(loss, [w])()
        sgd.apply_gradients(gradients)
        return value

    @jd.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

    return step, tuple(arrays((ROWS, 4), (ROWS,)))


@program(
    "right means cosine half",
    root="local-mean local-total mean-of-means batch-statistics",
    logarithm="local-total",
    dice="local-count local-total",
)
def regression(strategy: jd.Strategy, wrong: str) -> Made:
    (w,) = variables(strategy, (4, 2))
    sgd = optimizer(strategy, optax.sgd(0.1), [w])

    def replica(x: Any, y: Any) -> Any:
        def loss() -> Any:
            out = x @ w
            if wrong == "half":
                out = (x.astype(jnp.bfloat16) @ w.read_value().astype(jnp.bfloat16)).astype(jnp.float32)
            each = ((out - y) ** 2).mean(-1)
            if wrong == "root":
                return jnp.sqrt(each.mean())  # at: regression.root
            if wrong == "logarithm":
                return jnp.log(each.sum())  # at: regression.logarithm
            if wrong == "dice":
                both = (jax.nn.sigmoid(out) * jax.nn.sigmoid(y)).sum()
                return 1 - both / (jax.nn.sigmoid(out).sum() + jax.nn.sigmoid(y).sum())  # at: regression.dice
            if wrong == "cosine":
                each = optax.losses.cosine_distance(out, y, epsilon=1e-6)
            return each.sum() / ROWS

        value, gradients = jd.value_and_grad(loss, [w])()
        sgd.apply_gradients(gradients, "MEAN" if wrong == "root" else "SUM")
        return value

    @jd.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

    return step, tuple(arrays((ROWS, 4), (ROWS, 2)))


@program(
    "right merged",
    mean_outside="mean-of-sums",
    sum_outside="local-mean sum-of-means",
    merged_mean="mean-of-sums",
)
def outside(strategy: jd.Strategy, wrong: str) -> Made:
    """Gradients that the code around the replicas reduces and applies."""
    (w,) = variables(strategy, (4, 2))
    sgd = optimizer(strategy, optax.sgd(0.1), [w])

    def merged(strategy: jd.Strategy, gradient: Any) -> Any:
        if wrong == "merged_mean":
            return strategy.reduce("MEAN", gradient, axis=None)  # at: outside.merged_mean
        return strategy.reduce("SUM", gradient, axis=None)

    def replica(x: Any, y: Any) -> Any:
        def loss() -> Any:
            each = ((x @ w - y) ** 2).sum(-1)
            if wrong == "sum_outside":
                return each.mean()  # at: outside.sum_outside
            return each.sum() / ROWS

        (gradient,) = jd.grad(loss, [w])()
        if wrong.startswith("merged"):
            gradient = context().merge_call(merged, args=(gradient,))
            sgd.apply_gradients([gradient], reduce_op=None)
        return gradient

    @jd.function
    def step(x: Any, y: Any) -> Any:
        gradient = strategy.run(replica, args=(x, y))
        if wrong.startswith("merged"):
            return
        if wrong == "mean_outside":
            total = strategy.reduce("MEAN", gradient, axis=None)  # at: outside.mean_outside
        else:
            total = strategy.reduce("SUM", gradient, axis=None)
        sgd.apply_gradients([total], reduce_op=None)

    return step, tuple(arrays((ROWS, 4), (ROWS, 2)))


@program(
    "right clipped",
    updates="gradient-before-reduction",
    mean="local-mean",
    decay="counted-on-each-replica",
    decided="decided-by-replica",
)
def functional(strategy: jd.Strategy, wrong: str) -> Made:
    """A state that goes in and comes out."""
    transform = optax.chain(optax.clip_by_global_norm(0.1 if wrong == "clipped" else 10.0), optax.adam(1e-2))

    def replica(state: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            each = ((jnp.tanh(x @ w) - y) ** 2).sum(-1)
            return each.mean() if wrong == "mean" else each.sum() / ROWS  # at: functional.mean

        w, slots = state
        value, gradient = jax.value_and_grad(loss)(w)
        if wrong == "updates":
            updates = transform.update(gradient, slots)  # at: functional.updates
            update, slots = context().all_reduce("MEAN", updates)
        else:
            if wrong == "decay":
                gradient = gradient + 0.01 * w  # at: functional.decay
            update, slots = transform.update(context().all_reduce("SUM", gradient), slots)
        if wrong == "decided":
            update = jnp.where(value < 100.0, jnp.asarray(update), 0.0)  # at: functional.decided
        return (w + update, slots), value

    @jd.function
    def step(state: Any, x: Any, y: Any) -> Any:
        state, value = strategy.run(replica, args=(state, x, y))
        return state, strategy.reduce("SUM", value, axis=None)

    (w,) = arrays((4, 2))
    return step, (strategy.place((w, transform.init(w))), *arrays((ROWS, 4), (ROWS, 2)))


@program(
    "right",
    advantage="batch-statistics",
    share="local-total batch-statistics",
)
def experts(strategy: jd.Strategy, wrong: str) -> Made:
    """A mixture whose load is balanced, trained on advantages."""
    gate, head = held = variables(strategy, (4, 3), (4, 3))
    adam = optimizer(strategy, optax.adam(1e-2), held)

    def replica(x: Any, reward: Any) -> Any:
        mean = context().all_reduce("SUM", reward.sum()) / ROWS
        if wrong == "advantage":
            mean = reward.mean()  # at: experts.advantage
        advantage = reward - mean

        def loss() -> Any:
            odds = jax.nn.softmax(x @ gate)
            chosen = jax.nn.one_hot(odds.argmax(-1), 3)
            share = context().all_reduce("SUM", chosen.sum(0)) / ROWS
            if wrong == "share":
                share = chosen.sum(0) / ROWS  # at: experts.share
            balance = (share * odds.sum(0) / ROWS).sum()
            return (advantage[:, None] * odds * (x @ head)).sum() / ROWS + balance

        value, gradients = jd.value_and_grad(loss, held)()
        adam.apply_gradients(gradients)
        return value

    @jd.function
    def step(x: Any, reward: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(x, reward)), axis=None)

    return step, tuple(arrays((ROWS, 4), (ROWS,)))


@program(
    "right",
    mean="local-mean",
    norm="gradient-before-reduction",
)
def shifted(strategy: jd.Strategy, wrong: str) -> Made:
    """One gradient is rounding alone, and the first step of Adam is as long for any gradient."""
    w, shift = held = variables(strategy, (4, 3), (1,))
    adam = optimizer(strategy, optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2)), held)

    def replica(x: Any, y: Any) -> Any:
        def loss() -> Any:
            each = cross_entropy(x @ w + shift, y)
            return each.mean() if wrong == "mean" else each.sum() / ROWS  # at: shifted.mean

        value, gradients = jd.value_and_grad(loss, held)()
        adam.apply_gradients(gradients)
        return optax.tree.norm(gradients) if wrong == "norm" else value  # at: shifted.norm

    @jd.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("MEAN" if wrong == "norm" else "SUM", strategy.run(replica, args=(x, y)), axis=None)

    return step, (*arrays((ROWS, 4)), labels(3))


def with_clip(x: Any, y: Any, key: Any, held: Any, wrong: str) -> Any:
    """The gradients of a step, with noise and without spikes."""
    (w,) = held
    rows = context().all_reduce("SUM", x.shape[0])
    count = (y > 0).sum()
    share = count if wrong in ("times", "early") else context().all_reduce("SUM", count)
    if wrong == "times":
        share = share * context().num_replicas_in_sync
    total = rows if wrong == "early" else share

    def loss() -> Any:
        return (cross_entropy(x @ w, y) * (y > 0)).sum() / total  # at: private.times

    value, [gradient] = jd.value_and_grad(loss, held)()
    if wrong == "early":
        gradient = gradient * rows / share / context().num_replicas_in_sync  # at: private.early
    if wrong == "spike":
        spike = optax.tree.norm(gradient) > 1e-9  # each gradient is: the numbers hide it
        gradient = jnp.where(spike, 0.1 * gradient, gradient)  # at: private.spike
    noise = 0.1 * jax.random.normal(key, w.shape)
    if wrong == "noise":
        gradient = gradient + noise  # at: private.noise
    gradient = context().all_reduce("SUM", gradient)
    return value, gradient if wrong == "noise" else gradient + noise


@program(
    "right",
    times="local-count",
    early="local-count gradient-before-reduction",
    spike="gradient-before-reduction",
    noise="noise-on-each-replica",
    sentinel="order-of-rows extreme-over-batch one-replica",
    counter="reduced-twice counted-on-each-replica scaled-by-replicas",
)
def private(strategy: jd.Strategy, wrong: str) -> Made:
    """Mistakes that other values of the step hide."""
    held = variables(strategy, (5, 3))
    sgd = optimizer(strategy, optax.sgd(0.1), held)
    with strategy.scope():
        best = jd.Variable(-1e9, trainable=False, name="best", aggregation="mean")
        calls = jd.Variable(0, trainable=False, name="calls", aggregation="only_first_replica")

    def replica(x: Any, y: Any, key: Any) -> Any:
        value, gradient = with_clip(x, y, key, held, wrong)
        sgd.apply_gradients([gradient], None)
        scores = x.sum(1)
        everyone = scores if wrong == "sentinel" else context().all_gather(scores, axis=0)
        best.assign(jnp.maximum(best.read_value(), jnp.sort(everyone)[1]))  # at: private.sentinel
        if wrong == "counter":
            calls.assign(calls.read_value() + context().all_reduce("SUM", 1))  # at: private.counter
        return value

    @jd.function
    def step(x: Any, y: Any, key: Any) -> Any:
        value = strategy.reduce("SUM", strategy.run(replica, args=(x, y, key)), axis=None)
        calls.assign_add(1)
        return value

    return step, (*arrays((ROWS, 5)), labels(3), jax.random.key(1))


@program("right", mean="local-mean", pooled="local-count local-mean batch-statistics", pairs="pairs-of-rows")
def graphs(strategy: jd.Strategy, wrong: str) -> Made:
    """Rows are numbered within a replica, which is right, and clipping hides how large gradients are."""
    transform = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))

    def loss(w: Any, x: Any, y: Any) -> Any:
        count, number = context().all_reduce("SUM", x.shape[0]), x.shape[0]
        total = x.sum((0, 1)) if wrong == "pooled" else context().all_reduce("SUM", x.sum((0, 1)))
        nodes = (x - total / (number if wrong == "pooled" else count)).reshape(-1, x.shape[-1])  # at: graphs.pooled
        owner = jnp.repeat(jnp.arange(number), x.shape[1])
        pooled = jnp.tanh(jax.ops.segment_sum(nodes @ w, owner, num_segments=number))
        each = cross_entropy(pooled, y)
        if wrong == "pairs":
            each = each + cross_entropy(pooled @ pooled.T, jnp.arange(number))  # at: graphs.pairs
        return each.mean() if wrong == "mean" else each.sum() / count  # at: graphs.mean

    def replica(state: Any, x: Any, y: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(state[0], x, y)
        value, gradient = context().all_reduce("SUM", (value, gradient))
        updates, slots = transform.update(gradient, state[1])
        return (optax.apply_updates(state[0], updates), slots), value

    @jd.function
    def step(state: Any, x: Any, y: Any) -> Any:
        return strategy.run(replica, args=(state, x, y))

    [w, x] = arrays((3, 3), (ROWS, 4, 3))
    return step, (strategy.place((w, transform.init(w))), x, labels(3))


@program("right", decay="counted-on-each-replica", count="local-count mean-of-means local-mean")
def embedded(strategy: jd.Strategy, wrong: str) -> Made:
    """A table whose rows lie over the replicas."""
    (head,) = variables(strategy, (4,))
    with strategy.scope():
        table = jd.nn.ShardedTable(20, 4, lambda ids: jnp.cos(ids[:, None].astype(jnp.float32) + jnp.arange(4.0)))
        adagrad = jd.Optimizer(optax.adagrad(0.1), [table, head])

    def replica(ids: Any, y: Any) -> Any:
        known = (y > 0).sum()
        known = known if wrong == "count" else context().all_reduce("SUM", known)

        def loss() -> Any:
            visits = jd.nn.embedding_lookup(table, ids, combiner="mean")
            each = optax.sigmoid_binary_cross_entropy(visits @ head, y > 1) * (y > 0)
            decay = 0.1 * jnp.sum(head.read_value() ** 2)  # at: embedded.decay
            decay = decay if wrong == "decay" else jd.nn.scale_regularization_loss(decay)
            return each.sum() / known + decay  # at: embedded.count

        value, gradients = jd.value_and_grad(loss, [table, head])()
        adagrad.apply_gradients(gradients)
        return value

    @jd.function
    def step(ids: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(ids, y)), axis=None)

    return step, (labels(20, ROWS, 3), labels(3))
