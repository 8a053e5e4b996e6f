"""Training of Llama's shapes as MaxText's recipes have it, for compilers: scanned layers whose weights all chips share.

Each weight lies in parts over all chips, each chip has examples of its own, and a layer's weights are gathered as it
runs, which leaves the division to the compiler, as MaxText does. Numbers of 32 bits are kept, those of 16 are computed
with. Attention is a kernel that states its operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import PartitionSpec

import jaxtribute as jd

CHIPS = "chips"
Weights = dict[str, jax.Array]


@dataclass(frozen=True)
class Shape:
    """Layers, width, heads of queries and of keys, units of the perceptron, vocabulary, and tokens of an example."""

    layers: int
    width: int
    heads: int
    shared: int
    units: int
    vocabulary: int
    length: int
    each: int = 128
    base: float = 5e5

    @property
    def weights(self) -> dict[str, tuple[tuple[int, ...], int | None]]:
        """The shape of each variable, and which of its dimensions the chips share."""
        layers, queries, keys = self.layers, self.heads * self.each, self.shared * self.each
        return {
            "layers/query": ((layers, self.width, queries), 1),
            "layers/key": ((layers, self.width, keys), 1),
            "layers/value": ((layers, self.width, keys), 1),
            "layers/mixed": ((layers, queries, self.width), 2),
            "layers/gate": ((layers, self.width, self.units), 1),
            "layers/up": ((layers, self.width, self.units), 1),
            "layers/down": ((layers, self.units, self.width), 2),
            "layers/first": ((layers, self.width), 1),
            "layers/second": ((layers, self.width), 1),
            "tokens": ((self.vocabulary, self.width), 1),
            "head": ((self.width, self.vocabulary), 0),
            "scale": ((self.width,), 0),
        }


@dataclass(frozen=True)
class Way:
    """How a shape is trained.

    Attributes:
      examples: those of each chip.
      moved: values of a layer that go to the host's memory until the backward pass.
      kept: values of a layer that stay for it.
      block: queries and keys of a tile of the attention.
      half: whether weights have 16 bits.
    """

    examples: int
    moved: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    block: int = 2048
    half: bool = False


def _normed(hidden: jax.Array, scale: jax.Array) -> jax.Array:
    wide = hidden.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)
    return (normed * jnp.expand_dims(scale, (0, 1))).astype(jnp.bfloat16)


def _turned(heads: jax.Array, base: float) -> jax.Array:
    """Queries or keys of shape (examples, length, heads, each), turned by their places."""
    half = heads.shape[-1] // 2
    speeds = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.outer(jnp.arange(heads.shape[1], dtype=jnp.float32), speeds)[None, :, None, :]
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(jnp.bfloat16)


class Attention:
    """Causal attention of a shape as a kernel that is handed over to the compiler as a whole.

    It has the operands, results and operations of JAX's splash kernel, whose backward pass is one kernel, too. All
    that a compiler or a predictor knows of such a kernel is what it states; what it does inside is left out, and takes
    minutes to compile in the recipes' tiles.
    """

    def __init__(self, shape: Shape, block: int) -> None:
        self._shape, blocks = shape, shape.length // block
        # Blocks above the diagonal are left out, those on it are computed whole.
        self._product = shape.heads * shape.each * shape.length**2 * (blocks + 1) // blocks
        self.run = jax.custom_vjp(lambda *operands: self._forward(*operands)[0])
        self.run.defvjp(self._forward, self._backward)

    def _forward(self, query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, Any]:
        sums = jax.ShapeDtypeStruct(query.shape[:-1], jnp.float32)
        mixed, sums = self._kernel("forward", 2, (query, key, value), (query, sums))
        return mixed, (query, key, value, mixed, sums)

    def _backward(self, kept: Any, change: jax.Array) -> Any:
        query, key, value, mixed, sums = kept
        shares = jnp.sum(mixed.astype(jnp.float32) * change.astype(jnp.float32), axis=-1)
        return self._kernel("backward", 5, (query, key, value, change, sums, shares), (query, key, value))

    def _kernel(self, name: str, products: int, operands: Any, results: Any) -> Any:
        touched = sum(one.size * one.dtype.itemsize for one in (*operands, *results))
        cost = pallas.CostEstimate(
            flops=len(operands[0]) * products * self._product, transcendentals=0, bytes_accessed=touched
        )
        places = pallas.BlockSpec(memory_space=pallas.ANY)
        return pallas.pallas_call(
            lambda *_: None,
            out_shape=[jax.ShapeDtypeStruct(one.shape, one.dtype) for one in results],
            in_specs=[places] * len(operands),
            out_specs=[places] * len(results),
            cost_estimate=cost,
            name=f"attention_{name}",
        )(*operands)


class Model:
    """The variables of a shape under the strategy in force, and the losses of tokens."""

    def __init__(self, shape: Shape, way: Way, mesh: Any) -> None:
        self.shape, self.way, self._mesh = shape, way, mesh
        kind = jnp.bfloat16 if way.half else jnp.float32
        self.variables = {
            name: jd.Variable(partial(jnp.ones, size, kind), name=name) for name, (size, _) in shape.weights.items()
        }

    def losses(self, tokens: jax.Array) -> jax.Array:
        """Cross-entropy of each next token, of shape (examples, length), for tokens of shape (examples, length + 1)."""
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        weights = {name: variable.read_value() for name, variable in self.variables.items()}
        # The recipes multiply rather than look up.
        chosen = _own(jax.nn.one_hot(inputs, self.shape.vocabulary, dtype=jnp.bfloat16))
        hidden = _own(chosen @ weights["tokens"].astype(jnp.bfloat16))
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=list(self.way.kept),
            names_which_can_be_offloaded=list(self.way.moved),
            offload_src="device",
            offload_dst="pinned_host",
        )
        run = jax.checkpoint(self._layer, policy=policy, prevent_cse=False)
        stacked = {name: value for name, value in weights.items() if name.startswith("layers/")}
        hidden, _ = jax.lax.scan(run, hidden, stacked)
        scores = _own(_normed(hidden, weights["scale"]) @ weights["head"].astype(jnp.bfloat16)).astype(jnp.float32)
        chosen = jnp.arange(self.shape.vocabulary) == labels[..., None]
        return jax.nn.logsumexp(scores, axis=-1) - jnp.sum(jnp.where(chosen, scores, 0.0), axis=-1)

    def _layer(self, hidden: jax.Array, layer: Weights) -> tuple[jax.Array, None]:
        shape = self.shape
        hidden = _own(checkpoint_name(_in_order(hidden), "input"))
        first, second = layer["layers/first"], layer["layers/second"]
        layer = {name: value.astype(jnp.bfloat16) for name, value in layer.items()}
        normed = _normed(hidden, first)
        heads = (*hidden.shape[:2], -1, shape.each)
        query = checkpoint_name(_turned(_own(normed @ layer["layers/query"]).reshape(heads), shape.base), "query")
        key = checkpoint_name(_turned(_own(normed @ layer["layers/key"]).reshape(heads), shape.base), "key")
        value = checkpoint_name(_own(normed @ layer["layers/value"]).reshape(heads), "value")
        attended = self._attended(query, key, value).reshape(*hidden.shape[:2], -1)
        hidden = _own(hidden + checkpoint_name(_in_order(_own(attended @ layer["layers/mixed"])), "mixed"))
        normed = _normed(hidden, second)
        units = jax.nn.silu(_own(normed @ layer["layers/gate"])) * checkpoint_name(
            _own(normed @ layer["layers/up"]), "up"
        )
        return _own(hidden + checkpoint_name(_own(units @ layer["layers/down"]), "down")), None

    def _attended(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        own = PartitionSpec(CHIPS)
        attention = Attention(self.shape, self.way.block)

        def alone(*arrays: jax.Array) -> jax.Array:
            return jnp.swapaxes(attention.run(*(jnp.swapaxes(each, 1, 2) for each in arrays)), 1, 2)

        # The compiler divides no kernel by itself.
        divided = jax.shard_map(alone, mesh=self._mesh, in_specs=(own,) * 3, out_specs=own, check_vma=False)
        return divided(query * self.shape.each**-0.5, key, value)


def _own(values: jax.Array) -> jax.Array:
    """Values of which each chip has those of its own examples."""
    return jd.with_layout(values, (CHIPS,))


def _in_order(values: jax.Array) -> jax.Array:
    """Values whose numbers lie in the order of their axes, so that those which move are written as they are read."""
    return with_layout_constraint(values, Layout(tuple(range(values.ndim))))


def training(shape: Shape, way: Way, chips: int) -> Callable[[], None]:
    """A function that makes the model and calls its step once, on so many chips."""
    layout = {name: (*(None,) * place, CHIPS) for name, (_, place) in shape.weights.items() if place is not None}

    def train() -> None:
        strategy = jd.MirroredStrategy(replica_shape={CHIPS: chips}, layout=jd.LayoutMap(layout))
        with strategy.scope():
            model = Model(shape, way, strategy.extended.mesh.mesh)
            variables = list(model.variables.values())
            transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-5, b2=0.95, weight_decay=0.1))
            optimizer = jd.Optimizer(transform, variables)

        def update(tokens: jax.Array) -> jax.Array:
            value, gradients = jd.value_and_grad(lambda: model.losses(tokens).mean(), variables)()
            optimizer.apply_gradients(gradients)
            return value

        @jd.function
        def step(tokens: Any) -> jax.Array:
            return strategy.reduce("SUM", strategy.run(update, args=(tokens,)), axis=None)

        tokens = np.zeros((way.examples * chips, shape.length + 1), np.int32)
        for batch in strategy.experimental_distribute_dataset([tokens]):
            step(batch)

    return train


def operations(shape: Shape, way: Way) -> float:
    """Operations of the model for a step of a chip as MaxText counts them: causal attention by half, nothing twice."""
    products = sum(math.prod(size) for name, (size, _) in shape.weights.items() if len(size) > 1 and name != "tokens")
    attention = 2 * shape.layers * shape.heads * shape.each * shape.length
    return 3.0 * way.examples * shape.length * (2 * products + attention)
