"""Models of other libraries on replicas of several devices: losses of one device, variables and slots in parts."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import gpt_models
import jaxtribute as jd
from grouped_programs import devices
from samples import ALL_CASES

GPT = {
    "tokens/embedding": ("model",),
    "(query|key|value)/kernel": (None, None, "model"),
    "attention/out/kernel": (None, "model"),
    "mlp/kernel": (None, "model"),
    "mlp/bias": ("model",),
}
EPOCHS = 17
"""Of three batches: 51 steps."""


class Convolutions(nnx.Module):
    """Two convolutions and a product, on the tokens as an image."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 8, (3,), rngs=rngs)
        self.second = nnx.Conv(8, 8, (3,), rngs=rngs)
        self.head = nnx.Linear(8, gpt_models.VOCABULARY, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = jax.nn.relu(self.first(tokens[..., None].astype(np.float32) / 16))
        return self.head(jax.nn.relu(self.second(x)))


CONVOLUTIONS = {"first/kernel": (None, None, "model"), "first/bias": ("model",), "second/kernel": (None, "model")}
MODELS: dict[str, tuple[Any, Any]] = {
    "gpt": (lambda: gpt_models.NnxGpt(nnx.Rngs(0)), GPT),
    "conv": (lambda: Convolutions(nnx.Rngs(0)), CONVOLUTIONS),
}


def losses_under(strategy: jd.Strategy, name: str, epochs: int = EPOCHS) -> tuple[list[float], Any]:
    with strategy.scope():
        model = jd.Model(MODELS[name][0](), optax.sgd(0.1))  # slots have tests of their own, and take time to compile

    def replica_step(tokens: Any) -> Any:
        def loss() -> Any:
            each = gpt_models.entropies(model(tokens[:, :-1]), tokens)
            return jd.nn.compute_average_loss(each, global_batch_size=gpt_models.BATCH)

        value, gradients = jd.value_and_grad(loss, model.parameters)()
        cast("Any", model.optimizer).apply_gradients(gradients)
        return value

    @jd.function
    def step(tokens: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (tokens,)), axis=None)

    dataset = strategy.experimental_distribute_dataset(gpt_models.batches())
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return [float(step(tokens)) for _ in range(epochs) for tokens in dataset], model


@cache
def on_one_device(name: str) -> list[float]:
    return losses_under(jd.OneDeviceStrategy("CPU:0"), name)[0]


CASES = [
    *(("gpt", jd.MirroredStrategy, *shape) for shape in [(2, 4), (1, 2)][: 1 + ALL_CASES]),
    *(("gpt", jd.FullyShardedStrategy, *shape) for shape in [(4, 2), (2, 2)] if ALL_CASES),
    *(("conv", jd.MirroredStrategy, *shape) for shape in [(4, 2)] if ALL_CASES),
    ("conv", jd.FullyShardedStrategy, 2, 4),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "replicas", "each"), CASES)
def test_fifty_steps_of_nnx(name: str, kind: Any, replicas: int, each: int) -> None:
    options: dict[str, Any] = {"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}
    strategy = kind(devices(replicas * each), devices_per_replica=each, layout=MODELS[name][1], **options)
    losses, model = losses_under(strategy, name)
    np.testing.assert_allclose(losses, on_one_device(name), rtol=1e-5, atol=1e-5)
    split = [v for v in model.trainable_variables if "model" in str(v.stored.sharding.spec)]
    assert len(split) >= 3


@pytest.mark.slow
def test_equinox() -> None:
    strategy = jd.MirroredStrategy(
        devices(4), devices_per_replica=2, layout={"tokens/weight": ("model",), "mlp/weight": (None, "model")}
    )
    with strategy.scope():
        model = jd.Model(gpt_models.EqxGpt(jax.random.key(0)), optax.adamw(1e-2))
    assert {v.name for v in model.trainable_variables if v.policy.layout} == {"tokens/weight:0", "mlp/weight:0"}

    @jd.function
    def step(tokens: Any) -> Any:
        def replica_step(tokens: Any) -> Any:
            def loss() -> Any:
                logits = model.apply(lambda gpt: jax.vmap(gpt)(tokens[:, :-1]))
                each = gpt_models.entropies(logits, tokens)
                return jd.nn.compute_average_loss(each, global_batch_size=gpt_models.BATCH)

            value, gradients = jd.value_and_grad(loss, model.parameters)()
            cast("Any", model.optimizer).apply_gradients(gradients)
            return value

        return strategy.reduce("SUM", strategy.run(replica_step, (tokens,)), axis=None)

    dataset = strategy.experimental_distribute_dataset(gpt_models.batches())
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        losses = [float(step(tokens)) for tokens in dataset]
        expected = gpt_models.plain_equinox()
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
