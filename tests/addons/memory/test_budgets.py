"""`memory=`: gradients are those of plain JAX, what is kept stays within the budget, and what cannot be is refused."""

import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError
from jaxtribute.experimental import Event, Observer, observe

ALL = os.environ.get("JAXTRIBUTE_ALL_CASES") == "1"
DEPTH, WIDTH, ROWS = 4, 8, 256
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "one": lambda: jd.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: jd.MirroredStrategy(["CPU:0", "CPU:1"]),
    "sharded": lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0),
    "groups": lambda: jd.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"], devices_per_replica=2),
}


class Choices(Observer):
    """Keeps what was chosen."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def on_end(self, event: Event) -> None:
        """Keeps it."""
        self.made.append(event.result)


def unrolled(weights: Any, x: Any) -> Any:
    for i in range(DEPTH):
        x = x + jax.nn.gelu(x @ weights[i])
    return x


def scanned(weights: Any, x: Any) -> Any:
    return jax.lax.scan(lambda h, w: (h + jax.nn.gelu(h @ w), None), x, weights)[0]


def nested_scan(weights: Any, x: Any) -> Any:
    def outer(h: Any, pair: Any) -> Any:
        return jax.lax.scan(lambda g, w: (g + jnp.tanh(g @ w), g.sum()), h, pair)

    h, sums = jax.lax.scan(outer, x, weights.reshape(DEPTH // 2, 2, WIDTH, WIDTH))
    return h + sums.mean()


def checkpointed(weights: Any, x: Any) -> Any:
    for i in range(DEPTH):
        x = jax.checkpoint(lambda h, w: h + jax.nn.gelu(jnp.tanh(h @ w)))(x, weights[i])
    return x


def with_conditions(weights: Any, x: Any) -> Any:
    for i in range(DEPTH):
        x = jax.lax.cond(x.sum() > 0, lambda h, w: h @ w + h, lambda h, w: jnp.sin(h @ w), x, weights[i])
        x = jnp.exp(jnp.tanh(x))
    return x


@jax.custom_vjp
def _doubled(x: Any) -> Any:
    return jnp.sin(x)


_doubled.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda kept, g: (2 * kept * g,))


@jax.custom_jvp
def _tripled(x: Any) -> Any:
    return jnp.sin(x)


@_tripled.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return jnp.sin(primals[0]), 3 * jnp.cos(primals[0]) * tangents[0]


def custom(weights: Any, x: Any) -> Any:
    for i in range(DEPTH):
        x = _tripled(_doubled(x @ weights[i]))
    return x


def dropped(weights: Any, x: Any) -> Any:
    for i in range(DEPTH):
        key = jax.random.fold_in(jax.random.key(7), i)
        x = x + jnp.where(jax.random.bernoulli(key, 0.5, x.shape), jax.nn.gelu(x @ weights[i]), 0.0)
    return x


MODELS = {
    "unrolled": unrolled,
    "scanned": scanned,
    "nested_scan": nested_scan,
    "checkpointed": checkpointed,
    "conditions": with_conditions,
    "custom": custom,
    "random": dropped,
}
SMALL_CHECK = ("unrolled", "scanned")


def _data(dtype: str = "float64", rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    weights = random.normal(size=(DEPTH, WIDTH, WIDTH)).astype(dtype) / 8
    return weights, random.normal(size=(rows, WIDTH)).astype(dtype)


@pytest.fixture
def wide() -> Any:
    with jax.enable_x64(True):
        yield


def _made(strategy: jd.Strategy, model: Any, memory: Any, rows: int) -> tuple[Any, Any, Any]:
    weights, x = _data(rows=rows)
    with strategy.scope():
        w = jd.Variable(weights, name="w")
        calls = jd.Variable(np.float64(0), trainable=False, aggregation="MEAN", synchronization="ON_READ", name="calls")

    def replica_step(x: Any) -> Any:
        def loss() -> Any:
            calls.assign(calls + 1.0)
            out = model(w.read_value(), x)
            return jnp.sum(jnp.mean(out**2, axis=-1)) / rows, {"rows": out[:1, 0], "name": "kept as it is"}

        (value, aux), grads = jd.value_and_grad(loss, w, has_aux=True, memory=memory)()
        assert aux["name"] == "kept as it is"
        replica = jd.get_replica_context()
        assert replica is not None
        return replica.all_reduce("SUM", value), replica.all_reduce("SUM", grads)

    @jd.function
    def step(x: Any) -> Any:
        return strategy.run(replica_step, args=(x,))

    if strategy.num_replicas_in_sync == 1:
        batch = jnp.asarray(x)
    else:
        batch = next(iter(strategy.experimental_distribute_dataset([x])))
    value, grads = step(batch)
    first = [strategy.experimental_local_results(one)[0] for one in (value, grads)]
    return np.asarray(first[0]), np.asarray(first[1]), float(calls.read_value())


CASES = [
    (model, strategy, rows)
    for model in MODELS
    for strategy in STRATEGIES
    for rows in (ROWS, ROWS - 3)
    if ALL or (rows == ROWS and strategy == "one") or (model in SMALL_CHECK and strategy in ("mirrored", "sharded"))
]


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize(("name", "kind", "rows"), CASES)
def test_gradients_are_those_of_plain_jax(name: str, kind: str, rows: int, wide: None) -> None:
    weights, x = _data(rows=rows)
    model, choices = MODELS[name], Choices()
    if name == "random" and kind != "one":
        pytest.skip("each replica draws for its own rows")
    if name == "conditions" and kind != "one":
        pytest.skip("each replica's rows decide")
    if name == "nested_scan" and kind != "one":
        pytest.skip("sums over a replica's rows are part of the model")

    def plain(w: Any) -> Any:
        return jnp.sum(jnp.mean(model(w, jnp.asarray(x)) ** 2, axis=-1)) / rows

    value, grads = jax.jit(jax.value_and_grad(plain))(jnp.asarray(weights))
    with observe(choices, "budget"):
        mine, own, calls = _made(STRATEGIES[kind](), model, 1 << 40, rows)
        whole = choices.made[-1].everything
        assert choices.made[-1].recomputed == 0
        choices.made.clear()
        share = 0.97 if name in ("checkpointed", "custom", "conditions") else 0.5
        value_again, grads_again, _ = _made(STRATEGIES[kind](), model, int(whole * share), rows)
    assert calls == 1.0
    for choice in choices.made:
        assert choice.recomputed > 0
        assert choice.pieces > 0
        assert choice.kept < choice.everything
        assert choice.peak <= choice.budget
    np.testing.assert_allclose(mine, value, rtol=1e-12)
    np.testing.assert_allclose(value_again, value, rtol=1e-12)
    np.testing.assert_allclose(own, grads, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(grads_again, grads, rtol=1e-9, atol=1e-14)


@pytest.mark.quick_cases(6, whole=True)
@pytest.mark.parametrize("name", MODELS)
def test_a_refusal_names_the_least_budget(name: str, wide: None) -> None:
    weights, x = _data(rows=ROWS)

    def traced(memory: int) -> None:
        w = jd.Variable(weights)
        gradient = jd.grad(lambda: jnp.mean(MODELS[name](w.read_value(), jnp.asarray(x))), w, memory=memory)
        jd.function(gradient)()

    with pytest.raises(ArgumentError, match="needs") as refused:
        traced(1)
    figure = re.search(r"needs ([\d.]+) KiB", str(refused.value))
    assert figure is not None
    least = float(figure[1]) * 1024
    traced(int(least * 1.01))
    with pytest.raises(ArgumentError, match=r"needs"):
        traced(int(least * 0.8))
