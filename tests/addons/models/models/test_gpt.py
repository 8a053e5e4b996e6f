"""A small GPT in Flax NNX and in Equinox: the losses of plain JAX on any number of replicas, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.testing import assert_allclose

import jaxtribute as jd
from gpt_models import BATCH, EqxGpt, NnxGpt, batches, entropies, plain_equinox, plain_nnx
from replicas import mirrored, one_device
from samples import ALL_CASES

pytestmark = pytest.mark.slow  # each compiles a training, or runs it operation by operation

STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "one device": lambda: one_device(1),
    "mirrored 4": lambda: mirrored(4),
    "sharded 4": lambda: jd.FullyShardedStrategy([f"CPU:{i}" for i in range(4)], min_bytes=256),
}


@pytest.fixture(autouse=True)
def usual_promotion() -> Iterator[None]:
    """As both libraries expect."""
    options = {"jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)  # for replicas' threads, too
    yield
    for name, value in before.items():
        jax.config.update(name, value)


class Training:
    """The set-up, the step and the loop of the documentation."""

    def __init__(
        self, strategy: jd.Strategy, module: Any, call: Callable[[jd.Model, Any], Any], **options: Any
    ) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = jd.Model(module, optax.adamw(1e-2), **options)
        self.call = call

    def loss(self, tokens: Any) -> Any:
        losses = entropies(self.call(self.model, tokens[:, :-1]), tokens)
        return jd.nn.compute_average_loss(losses, global_batch_size=BATCH)

    def step(self, tokens: Any) -> Any:
        return self.strategy.reduce("SUM", self.strategy.run(self.model.minimize, (self.loss, tokens)), axis=None)

    def losses(self, steps: list[Any], *, compiled: bool = True) -> list[float]:
        step = jd.function(self.step) if compiled else self.step
        return [float(step(tokens)) for tokens in self.strategy.experimental_distribute_dataset(steps)]


def nnx_training(strategy: jd.Strategy, rate: float = 0.0) -> Training:
    return Training(strategy, NnxGpt(nnx.Rngs(0), rate), lambda model, tokens: model(tokens))


def equinox_training(strategy: jd.Strategy, rate: float = 0.0) -> Training:
    def call(model: jd.Model, tokens: Any) -> Any:
        if not rate:
            return jax.vmap(model)(tokens)
        return jax.vmap(model)(tokens, model.keys(tokens.shape[0]))

    return Training(strategy, EqxGpt(jax.random.key(0), rate), call, rng=1)


@pytest.mark.parametrize("strategy", STRATEGIES if ALL_CASES else ["sharded 4"])
def test_nnx(strategy: str) -> None:
    losses = nnx_training(STRATEGIES[strategy]()).losses(batches())
    assert_allclose(losses, plain_nnx(), rtol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES if ALL_CASES else ["mirrored 4"])
def test_equinox(strategy: str) -> None:
    losses = equinox_training(STRATEGIES[strategy]()).losses(batches())
    assert_allclose(losses, plain_equinox(), rtol=1e-6)


@pytest.mark.skipif(not ALL_CASES, reason="minutes; Equinox's is the same walk")
def test_nnx_eagerly() -> None:
    # Each operation is compiled for each device and shape: two replicas stand for all numbers, and the last batch,
    # which is cut unevenly, is compiled code's.
    losses = nnx_training(mirrored(2)).losses(batches()[:2], compiled=False)
    assert_allclose(losses, plain_nnx()[:2], rtol=1e-6)


def test_equinox_eagerly() -> None:
    strategy = jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=256)
    losses = equinox_training(strategy).losses(batches()[:2], compiled=False)
    assert_allclose(losses, plain_equinox()[:2], rtol=1e-6)


@pytest.mark.skipif(not ALL_CASES, reason="half a minute; Equinox's is the same walk")
def test_nnx_with_dropout_on_one_device_draws_what_plain_flax_draws() -> None:
    losses = nnx_training(one_device(1), 0.5).losses(batches())
    assert_allclose(losses, plain_nnx(0.5), rtol=1e-6)
    assert not np.allclose(losses, plain_nnx(), rtol=1e-3)


def test_equinox_with_dropout_draws_the_same_on_any_number_of_replicas() -> None:
    one, four = [equinox_training(STRATEGIES[name](), 0.5).losses(batches()) for name in ("one device", "mirrored 4")]
    assert_allclose(four, one, rtol=1e-6)
    assert not np.allclose(one, plain_equinox(), rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "after"), [(nnx_training, "sharded 4"), (equinox_training, "one device")][: 2 if ALL_CASES else 1]
)
def test_a_checkpoint_goes_on_under_another_number_of_replicas(
    make: Callable[..., Training], after: str, tmp_path: Path
) -> None:
    first = make(mirrored(2))
    first.losses(batches()[:1])
    path = jd.Checkpoint(training=first.model).save(tmp_path / "gpt", block=True)
    second = make(STRATEGIES[after]())
    jd.Checkpoint(training=second.model).restore(path).assert_consumed()
    plain = plain_nnx() if make is nnx_training else plain_equinox()
    assert_allclose(second.losses(batches()[1:]), plain[1:], rtol=1e-6)
