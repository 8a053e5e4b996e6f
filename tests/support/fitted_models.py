"""Twelve models of the kinds that users train, each as a script to fit: `python fitted_models.py KIND [BATCH]`.

Each makes its strategy, its model and a batch by itself, as a user's program does, and takes one step. What is trained
is told apart from how, as `benchmarks.fitted_by_hand` trains the same.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

BATCH = 256
WIDTH, HEADS, LENGTH, TOKENS, LAYERS = 256, 4, 128, 4096, 2
IMAGE, PIXELS, CLASSES = 32, 8, 16
KERAS = "keras"
Values = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def images(batch: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((batch, IMAGE, IMAGE, 3), np.float32), np.zeros((batch,), np.int32)


def _texts(batch: int) -> tuple[np.ndarray, ...]:
    return (np.zeros((batch, LENGTH + 1), np.int32),)


def _entropy(logits: Any, labels: Any) -> Any:
    """The mean cross-entropy of each example."""
    each = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)
    return each.reshape(each.shape[0], -1).mean(-1)


class Plain(NamedTuple):
    """Arrays of some shapes, and what makes of them, by name, and a batch each example's loss."""

    shapes: Shapes
    losses: Callable[..., Any]
    data: tuple[np.ndarray, ...]


class OfLibrary(NamedTuple):
    """Another library's model, and what makes of it and a batch each example's loss."""

    make: Callable[[], Any]
    losses: Callable[..., Any]
    data: tuple[np.ndarray, ...]


def _logits(apply: Callable[[Any, Any], Any], data: tuple[np.ndarray, ...], make: Callable[[], Any]) -> OfLibrary:
    def losses(net: Any, first: Any, labels: Any = None) -> Any:
        inputs, labels = (first[:, :-1], first[:, 1:]) if labels is None else (first, labels)
        return _entropy(apply(net, inputs), labels)

    return OfLibrary(make, losses, data)


def _normed(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype)


def _attended(v: Values, x: Any, *, causal: bool) -> Any:
    each = (_normed(x) @ v["qkv"].astype(x.dtype)).reshape(*x.shape[:2], 3, HEADS, -1)
    mixed = jax.nn.dot_product_attention(each[:, :, 0], each[:, :, 1], each[:, :, 2], is_causal=causal)
    return x + mixed.reshape(x.shape) @ v["out"].astype(x.dtype)


def _block(v: Values, x: Any, *, causal: bool = True) -> Any:
    x = _attended(v, x, causal=causal)
    return x + jax.nn.gelu(_normed(x) @ v["up"].astype(x.dtype)) @ v["down"].astype(x.dtype)


BLOCK: Shapes = {
    "qkv": (WIDTH, 3 * WIDTH),
    "out": (WIDTH, WIDTH),
    "up": (WIDTH, 4 * WIDTH),
    "down": (4 * WIDTH, WIDTH),
}
ENDS: Shapes = {"tokens": (TOKENS, WIDTH), "places": (LENGTH, WIDTH)}


def _unrolled(block: Shapes) -> Shapes:
    return {f"layer_{i}/{name}": shape for i in range(LAYERS) for name, shape in block.items()}


def _layer(v: Values, i: int) -> Values:
    return {name.partition("/")[2]: value for name, value in v.items() if name.startswith(f"layer_{i}/")}


def _texted(v: Values, tokens: Any, body: Callable[[Any], Any]) -> Any:
    x = (jnp.take(v["tokens"], tokens[:, :-1], axis=0) + v["places"]).astype(jnp.bfloat16)
    return _entropy(_normed(body(x)) @ v["tokens"].astype(jnp.bfloat16).T, tokens[:, 1:])


def mlp(batch: int) -> Plain:
    shapes: Shapes = {"first": (IMAGE * IMAGE * 3, 2048), "second": (2048, 2048), "last": (2048, CLASSES)}

    def losses(v: Values, x: Any, y: Any) -> Any:
        x = x.reshape(x.shape[0], -1)
        return _entropy(jax.nn.relu(jax.nn.relu(x @ v["first"]) @ v["second"]) @ v["last"], y)

    return Plain(shapes, losses, images(batch))


def _conv(x: Any, kernel: Any, stride: int = 1) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)


def conv(batch: int) -> Plain:
    shapes: Shapes = {"stem": (3, 3, 3, 64), "last": (128, CLASSES)}
    for i, (before, after) in enumerate(((64, 64), (64, 128))):
        shapes |= {f"layer_{i}/one": (3, 3, before, after), f"layer_{i}/two": (3, 3, after, after)}

    def losses(v: Values, x: Any, y: Any) -> Any:
        x = _conv(x, v["stem"], 2)
        for i in range(2):
            layer = _layer(v, i)
            x = jax.nn.relu(_conv(x, layer["one"], 1 + i))
            x = x + jax.nn.relu(_conv(x, layer["two"]))
        return _entropy(x.mean((1, 2)) @ v["last"], y)

    return Plain(shapes, losses, images(batch))


def _through(block: Callable[[Values, Any], Any], v: Values, x: Any) -> Any:
    """What the layers of a model make of `x`, one after the other."""
    for i in range(LAYERS):
        x = block(_layer(v, i), x)
    return x


def vit(batch: int) -> Plain:
    shapes = _unrolled(BLOCK) | {"patch": (PIXELS, PIXELS, 3, WIDTH), "last": (WIDTH, CLASSES)}

    def losses(v: Values, x: Any, y: Any) -> Any:
        x = _conv(x, v["patch"], PIXELS).reshape(x.shape[0], -1, WIDTH).astype(jnp.bfloat16)
        x = _through(partial(_block, causal=False), v, x)
        return _entropy(_normed(x).mean(1) @ v["last"].astype(x.dtype), y)

    return Plain(shapes, losses, images(batch))


def gpt(batch: int) -> Plain:
    def losses(v: Values, tokens: Any) -> Any:
        return _texted(v, tokens, partial(_through, _block, v))

    return Plain(ENDS | _unrolled(BLOCK), losses, _texts(batch))


def scanned(batch: int) -> Plain:
    stacked: Shapes = {name: (LAYERS, *shape) for name, shape in BLOCK.items()}

    def losses(v: Values, tokens: Any) -> Any:
        layers = {name: v[name] for name in BLOCK}
        return _texted(v, tokens, lambda x: jax.lax.scan(lambda h, w: (_block(w, h), None), x, layers)[0])

    return Plain(ENDS | stacked, losses, _texts(batch))


def experts(batch: int) -> Plain:
    count = 8
    block: Shapes = {
        "qkv": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "gate": (WIDTH, count),
        "up": (count, WIDTH, 2 * WIDTH),
        "down": (count, 2 * WIDTH, WIDTH),
    }

    def mixed(v: Values, x: Any) -> Any:
        x = _attended(v, x, causal=True)
        gates = jax.nn.softmax((_normed(x) @ v["gate"].astype(x.dtype)).astype(jnp.float32))
        best, which = jax.lax.top_k(gates, 2)
        weights = (jax.nn.one_hot(which, count) * best[..., None]).sum(-2).astype(x.dtype)
        inner = jax.nn.gelu(jnp.einsum("btd,edh->bteh", _normed(x), v["up"].astype(x.dtype)))
        return x + jnp.einsum("bteh,ehd,bte->btd", inner, v["down"].astype(x.dtype), weights)

    def losses(v: Values, tokens: Any) -> Any:
        return _texted(v, tokens, partial(_through, mixed, v))

    return Plain(ENDS | _unrolled(block), losses, _texts(batch))


def unet(batch: int) -> Plain:
    widths = (32, 64)
    shapes: Shapes = {"stem": (3, 3, 3, 32), "head": (1, 1, 32, 3)}
    for i, (outer, inner) in enumerate(pairwise(widths)):
        shapes |= {f"down_{i}": (3, 3, outer, inner), f"middle_{i}": (3, 3, inner, inner)}
        shapes |= {f"up_{i}": (3, 3, inner, outer), f"joined_{i}": (3, 3, 2 * outer, outer)}

    def losses(v: Values, x: Any, _: Any) -> Any:
        wanted, kept = x, list[Any]()
        x = jax.nn.silu(_conv(x, v["stem"]))
        for i in range(len(widths) - 1):
            kept.append(x)
            x = jax.nn.silu(_conv(jax.nn.silu(_conv(x, v[f"down_{i}"], 2)), v[f"middle_{i}"]))
        for i in reversed(range(len(widths) - 1)):
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = jnp.concatenate([jax.nn.silu(_conv(x, v[f"up_{i}"])), kept[i]], axis=-1)
            x = jax.nn.silu(_conv(x, v[f"joined_{i}"]))
        return ((_conv(x, v["head"]) - wanted) ** 2).mean((1, 2, 3))

    return Plain(shapes, losses, images(batch))


def recurrent(batch: int) -> Plain:
    shapes: Shapes = {"tokens": (TOKENS, WIDTH), "wx": (WIDTH, 4 * WIDTH), "wh": (WIDTH, 4 * WIDTH)}

    def losses(v: Values, tokens: Any) -> Any:
        def turn(carry: Any, row: Any) -> Any:
            hidden, cell = carry
            i, f, g, o = jnp.split(row + hidden @ v["wh"], 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden

        x = jnp.take(v["tokens"], tokens[:, :-1], axis=0) @ v["wx"]
        start = jnp.zeros((x.shape[0], WIDTH))
        _, x = jax.lax.scan(turn, (start, start), jnp.swapaxes(x, 0, 1))
        return _entropy(jnp.swapaxes(x, 0, 1) @ v["tokens"].T, tokens[:, 1:])

    return Plain(shapes, losses, _texts(batch))


def embeddings(batch: int) -> Plain:
    fields, rows, width = 8, 100_000, 64
    shapes: Shapes = {f"table_{i}": (rows, width) for i in range(fields)}
    shapes |= {"first": (fields * width, 512), "last": (512, 2)}

    def losses(v: Values, ids: Any, y: Any) -> Any:
        x = jnp.concatenate([jnp.take(v[f"table_{i}"], ids[:, i], axis=0) for i in range(fields)], axis=-1)
        return _entropy(jax.nn.relu(x @ v["first"]) @ v["last"], y)

    return Plain(shapes, losses, (np.zeros((batch, fields), np.int32), np.zeros((batch,), np.int32)))


def keras_model() -> Any:
    import keras as library

    layers = library.layers
    parts = [
        part
        for width in (64, 128)
        for part in (
            layers.Conv2D(width, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
        )
    ]
    ends = layers.GlobalAveragePooling2D(), layers.Dropout(0.1), layers.Dense(CLASSES)
    net = library.Sequential([layers.Input((IMAGE, IMAGE, 3)), *parts, *ends])
    net.compile("adam", library.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return net


def nnx(batch: int) -> OfLibrary:
    from flax import nnx as flax

    class Block(flax.Module):
        def __init__(self, rngs: Any) -> None:
            self.first, self.second = flax.LayerNorm(WIDTH, rngs=rngs), flax.LayerNorm(WIDTH, rngs=rngs)
            self.attention = flax.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
            self.up, self.down = flax.Linear(WIDTH, 4 * WIDTH, rngs=rngs), flax.Linear(4 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.first(x))
            return x + self.down(jax.nn.gelu(self.up(self.second(x))))

    class Vit(flax.Module):
        def __init__(self, rngs: Any) -> None:
            self.patch = flax.Conv(3, WIDTH, (PIXELS, PIXELS), PIXELS, rngs=rngs)
            self.blocks = flax.List([Block(rngs) for _ in range(LAYERS)])
            self.last = flax.Linear(WIDTH, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = self.patch(x).reshape(x.shape[0], -1, WIDTH)
            for block in self.blocks:
                x = block(x)
            return self.last(x.mean(1))

    return _logits(lambda net, x: net(x), images(batch), lambda: Vit(flax.Rngs(0)))


def equinox(batch: int) -> OfLibrary:
    import equinox as eqx

    class Gpt(eqx.Module):
        tokens: Any
        places: Any
        attention: list[Any]
        up: list[Any]
        down: list[Any]
        norms: list[Any]

        def __init__(self, key: Any) -> None:
            keys = iter(jax.random.split(key, 3 * LAYERS + 2))
            self.tokens = eqx.nn.Embedding(TOKENS, WIDTH, key=next(keys))
            self.places = eqx.nn.Embedding(LENGTH, WIDTH, key=next(keys))
            self.attention = [eqx.nn.MultiheadAttention(HEADS, WIDTH, key=next(keys)) for _ in range(LAYERS)]
            self.up = [eqx.nn.Linear(WIDTH, 4 * WIDTH, key=next(keys)) for _ in range(LAYERS)]
            self.down = [eqx.nn.Linear(4 * WIDTH, WIDTH, key=next(keys)) for _ in range(LAYERS)]
            self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS)]

        def __call__(self, tokens: Any) -> Any:
            x = jax.vmap(self.tokens)(tokens) + self.places.weight
            mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
            for i in range(LAYERS):
                h = jax.vmap(self.norms[2 * i])(x)
                x = x + self.attention[i](h, h, h, mask=mask)
                h = jax.vmap(self.norms[2 * i + 1])(x)
                x = x + jax.vmap(self.down[i])(jax.nn.gelu(jax.vmap(self.up[i])(h)))
            return x @ self.tokens.weight.T

    return _logits(lambda net, x: jax.vmap(net)(x), _texts(batch), lambda: Gpt(jax.random.key(0)))


KINDS: dict[str, Callable[[int], Plain | OfLibrary]] = {
    one.__name__: one for one in (mlp, conv, vit, gpt, scanned, experts, unet, recurrent, embeddings, nnx, equinox)
}


def _variables(problem: Plain) -> Any:
    """Variables for the arrays, their optimizer, and the update of a replica."""
    variables = {
        name: jd.Variable(lambda shape=shape: 0.02 * jax.random.normal(jax.random.key(0), shape), name=name)
        for name, shape in problem.shapes.items()
    }
    optimizer = jd.Optimizer(optax.adamw(1e-3), variables)

    def update(*batch: Any) -> Any:
        def loss() -> Any:
            values = {name: variable.read_value() for name, variable in variables.items()}
            losses = problem.losses(values, *batch)
            return jd.nn.compute_average_loss(losses, global_batch_size=len(problem.data[0]))

        value, gradients = jd.value_and_grad(loss, variables)()
        optimizer.apply_gradients(gradients)
        return value

    return update


def _model(problem: OfLibrary) -> Any:
    """The update of a replica."""
    net = jd.Model(problem.make(), optax.adamw(1e-3))

    def loss(*batch: Any) -> Any:
        return jd.nn.compute_average_loss(problem.losses(net, *batch), global_batch_size=len(problem.data[0]))

    return lambda *batch: net.minimize(loss, *batch)


def train(problem: Plain | OfLibrary) -> None:
    strategy = jd.MirroredStrategy()
    with strategy.scope():
        update = _variables(problem) if isinstance(problem, Plain) else _model(problem)

    @jd.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(update, batch), axis=None)

    dataset = strategy.experimental_make_numpy_dataset(problem.data).batch(len(problem.data[0]))
    for batch in strategy.experimental_distribute_dataset(dataset):
        step(batch)


def main(kind: str, size: str = str(BATCH)) -> None:
    batch = int(size)
    if kind == KERAS:
        with jd.MirroredStrategy().scope():
            net = keras_model()
        net.fit(*images(batch), batch_size=batch, verbose=0)
    else:
        train(KINDS[kind](batch))


if __name__ == "__main__":
    main(*sys.argv[1:])
