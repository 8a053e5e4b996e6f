"""A small GPT in Flax NNX and in Equinox, its data, and its training in plain JAX."""

from __future__ import annotations

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

VOCABULARY, WIDTH, LENGTH, BATCH = 16, 8, 6, 8


def batches() -> list[Any]:
    """Tokens of shape (examples, LENGTH + 1), int32; the last batch has 5 examples in place of 8."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCABULARY, (rows, LENGTH + 1)).astype(np.int32) for rows in (BATCH, BATCH, 5)]


def entropies(logits: Any, tokens: Any) -> Any:
    """The loss of each example."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean(-1)


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float) -> None:
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.mlp = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.dropout(self.attention(self.norms[0](x), mask=mask))
        return x + jax.nn.gelu(self.mlp(self.norms[1](x)))


class NnxGpt(nnx.Module):
    """Logits of shape (examples, length, VOCABULARY) for tokens of shape (examples, length)."""

    def __init__(self, rngs: nnx.Rngs, rate: float = 0.0) -> None:
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(rngs, rate)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.places(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))


class EqxGpt(eqx.Module):
    """Logits of shape (length, VOCABULARY) for the tokens of one example, of shape (length,)."""

    tokens: eqx.nn.Embedding
    places: eqx.nn.Embedding
    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, key: Any, rate: float = 0.0) -> None:
        keys = jax.random.split(key, 4)
        self.tokens = eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[0])
        self.places = eqx.nn.Embedding(LENGTH, WIDTH, key=keys[1])
        self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(3)]
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=keys[2])
        self.mlp = eqx.nn.Linear(WIDTH, WIDTH, key=keys[3])
        self.dropout = eqx.nn.Dropout(rate)

    def __call__(self, tokens: Any, key: Any = None) -> Any:
        length = tokens.shape[0]
        x = jax.vmap(self.tokens)(tokens) + self.places.weight[:length]
        h, mask = jax.vmap(self.norms[0])(x), jnp.tril(jnp.ones((length, length), bool))
        x = x + self.dropout(self.attention(h, h, h, mask=mask), key=key, inference=key is None)
        x = x + jax.nn.gelu(jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x)))
        return jax.vmap(self.norms[2])(x) @ self.tokens.weight.T


@cache
def plain_nnx(rate: float = 0.0) -> list[float]:
    """The losses of a training in plain Flax."""
    model = NnxGpt(nnx.Rngs(0), rate)
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, tokens: Any) -> Any:
        def loss(model: Any) -> Any:
            return entropies(model(tokens[:, :-1]), tokens).sum() / BATCH

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return [float(step(model, optimizer, tokens)) for tokens in batches()]


@cache
def plain_equinox() -> list[float]:
    """The losses of a training in plain Equinox."""
    model, transform = EqxGpt(jax.random.key(0)), optax.adamw(1e-2)
    slots = transform.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model: Any, slots: Any, tokens: Any) -> Any:
        def loss(model: Any) -> Any:
            return entropies(jax.vmap(model)(tokens[:, :-1]), tokens).sum() / BATCH

        value, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, slots = transform.update(gradients, slots, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), slots, value

    losses: list[float] = []
    for tokens in batches():
        model, slots, value = step(model, slots, tokens)
        losses.append(float(value))
    return losses
