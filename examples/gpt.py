"""Trains a GPT to continue text, byte by byte; or, with `--size 1.3b`, tells a compiler of what size of model to think.

    python examples/gpt.py                                            a small one, mirrored on two devices
    python examples/gpt.py --strategy fully-sharded --devices 4
    python examples/gpt.py --devices 8 --per-replica 4                two replicas of four devices each
    jaxtribute plan --topology v5e:4x4 examples/gpt.py --size 1.3b --strategy fully-sharded
    jaxtribute plan --topology v5e:4x4 examples/gpt.py --size 1.3b --per-replica 4
    jaxtribute plan --fit --topology v5e:4x4 examples/gpt.py --size 125m

The layers are one scan over stacked weights, so that a compiler sees a single layer. `FullyShardedStrategy` gathers a
variable whole: there each layer has variables of its own, and stands by itself.
Variables are made by functions, which `plan --topology` does not call: planning a large model takes no memory for it.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import pick_devices

import jaxtribute as jd


@dataclass(frozen=True)
class Size:
    """Layers, width, heads, vocabulary and examples' length of a model, and how many examples a device gets."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    examples: int


SIZES = {
    "small": Size(layers=2, width=64, heads=4, vocabulary=256, length=64, examples=8),
    "125m": Size(layers=12, width=768, heads=12, vocabulary=50304, length=1024, examples=8),
    "1.3b": Size(layers=24, width=2048, heads=16, vocabulary=50304, length=1024, examples=4),
}


def layout(*, scanned: bool) -> jd.LayoutMap:
    """How the devices of a replica share the variables, where it has several."""
    stacked = (None,) if scanned else ()
    return jd.LayoutMap(
        {
            "tokens": ("model",),  # by vocabulary
            "projections": (*stacked, None, None, "model"),  # by heads
            "mixed": (*stacked, "model"),
            "/up": (*stacked, None, "model"),  # by columns, the next product by rows: one sum over the devices for both
            "/down": (*stacked, "model"),
        }
    )


STRATEGIES: dict[str, Callable[[list[jax.Device], int], jd.Strategy]] = {
    "one-device": lambda devices, _: jd.OneDeviceStrategy(devices[0]),
    "mirrored": lambda devices, each: jd.MirroredStrategy(
        devices, devices_per_replica=each, layout=layout(scanned=True)
    ),
    "fully-sharded": lambda devices, each: jd.FullyShardedStrategy(
        devices, devices_per_replica=each, layout=layout(scanned=False)
    ),
}


class Model:
    """A decoder: attention and a perceptron in each layer, computed in bfloat16; the output shares the embedding."""

    def __init__(self, size: Size, *, scanned: bool) -> None:
        self.size, self.scanned = size, scanned
        self.variables: list[jd.Variable] = []
        width = size.width
        self.tokens = self._matrix("tokens", size.vocabulary, width)
        self.places = self._matrix("places", size.length, width)
        if scanned:
            self.layers = [self._layer("layers", size.layers)]
        else:
            self.layers = [self._layer(f"layer_{i}") for i in range(size.layers)]
        self.scale = self._ones("scale", width)

    def _matrix(self, name: str, *shape: int) -> jd.Variable:
        key = jax.random.key(len(self.variables))
        made = jd.Variable(lambda: 0.02 * jax.random.normal(key, shape), name=name)
        self.variables.append(made)
        return made

    def _ones(self, name: str, *shape: int) -> jd.Variable:
        made = jd.Variable(lambda: jnp.ones(shape), name=name)
        self.variables.append(made)
        return made

    def _layer(self, name: str, *layers: int) -> list[jd.Variable]:
        width = self.size.width
        return [
            self._ones(f"{name}/attention_scale", *layers, width),
            self._matrix(f"{name}/projections", *layers, width, 3, width),
            self._matrix(f"{name}/mixed", *layers, width, width),
            self._ones(f"{name}/perceptron_scale", *layers, width),
            self._matrix(f"{name}/up", *layers, width, 4 * width),
            self._matrix(f"{name}/down", *layers, 4 * width, width),
        ]

    def losses(self, tokens: jax.Array) -> jax.Array:
        """Cross-entropy of each next token, of shape (examples, length), for tokens of shape (examples, length + 1)."""
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        hidden = (jnp.take(self.tokens.read_value(), inputs, axis=0) + self.places).astype(jnp.bfloat16)
        # The backward pass computes a layer again rather than keep what it was made of.
        run = jax.checkpoint(self._run)
        for layer in self.layers:
            weights = [variable.read_value() for variable in layer]
            if self.scanned:
                hidden, _ = jax.lax.scan(lambda given, each: (run(given, each), None), hidden, weights)
            else:
                hidden = run(hidden, weights)
        return jax.checkpoint(self._measured)(hidden, self.scale.read_value(), self.tokens.read_value(), labels)

    def _run(self, hidden: jax.Array, layer: list[jax.Array]) -> jax.Array:
        first, projections, mixed, second, up, down = layer
        examples, length, width = hidden.shape
        each = jnp.einsum("elw,wpv->elpv", _normed(hidden, first), projections.astype(jnp.bfloat16))
        each = self._divided(each.reshape(examples, length, 3, self.size.heads, width // self.size.heads), 3)
        attended = jax.nn.dot_product_attention(each[:, :, 0], each[:, :, 1], each[:, :, 2], is_causal=True)
        attended = self._divided(attended, 2)
        hidden = self._shared(hidden + attended.reshape(hidden.shape) @ mixed.astype(jnp.bfloat16))
        units = self._divided(jax.nn.gelu(_normed(hidden, second) @ up.astype(jnp.bfloat16)), 2)
        return self._shared(hidden + units @ down.astype(jnp.bfloat16))

    def _shared(self, hidden: jax.Array) -> jax.Array:
        """Between the products the devices of a replica share the positions of the examples, not each all of them."""
        return self._divided(hidden, 1)

    def _divided(self, values: jax.Array, dimension: int) -> jax.Array:
        """Values of which each device of a replica has a part of one dimension: heads, units, or positions."""
        return jd.with_layout(values, (*(None,) * dimension, "model"))

    def _measured(self, hidden: jax.Array, scale: jax.Array, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        logits = self._divided(_normed(hidden, scale) @ tokens.astype(jnp.bfloat16).T, 2)
        wide = logits.astype(jnp.float32)
        # Compared rather than looked up: each device has the scores of a part of the vocabulary.
        chosen = jnp.arange(self.size.vocabulary) == labels[..., None]
        return jax.nn.logsumexp(wide, axis=-1) - jnp.sum(jnp.where(chosen, wide, 0.0), axis=-1)


def _normed(hidden: jax.Array, scale: jax.Array) -> jax.Array:
    wide = hidden.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean_square + 1e-5) * jnp.expand_dims(scale, (0, 1))).astype(jnp.bfloat16)


def text() -> np.ndarray:
    """The bytes of some of Python's own modules."""
    folder = Path(argparse.__file__).parent
    names = ("argparse", "ast", "datetime", "decimal", "inspect", "pathlib", "tarfile", "typing")
    sources = [folder / f"{name}.py" for name in names]
    return np.frombuffer(b"".join(path.read_bytes() for path in sources if path.is_file()), np.uint8)


def main() -> None:
    """Trains, and prints the loss now and then."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--strategy", choices=STRATEGIES, default="mirrored")
    parser.add_argument("--devices", type=int, default=2, metavar="N", help="how many devices (2)")
    parser.add_argument("--per-replica", type=int, default=1, metavar="N", help="how many of them each replica has (1)")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="how many steps (50)")
    options = parser.parse_args()
    size = SIZES[options.size]
    strategy = STRATEGIES[options.strategy](pick_devices(options.devices), options.per_replica)
    batch = size.examples * strategy.num_replicas_in_sync
    with strategy.scope():
        model = Model(size, scanned=options.strategy != "fully-sharded")
        optimizer = jd.Optimizer(optax.adam(3e-4 if size.layers > 2 else 3e-3), model.variables)

    def update(tokens: jax.Array) -> jax.Array:
        def loss() -> jax.Array:
            return jd.nn.compute_average_loss(model.losses(tokens).mean(axis=-1), global_batch_size=batch)

        value, gradients = jd.value_and_grad(loss, model.variables)()
        optimizer.apply_gradients(gradients)
        return value

    @jd.function
    def step(tokens: jax.Array) -> jax.Array:
        return strategy.reduce("SUM", strategy.run(update, args=(tokens,)), axis=None)

    random, source = np.random.default_rng(0), text().astype(np.int32)

    def batches() -> Iterator[np.ndarray]:
        for _ in range(options.steps):
            starts = random.integers(0, len(source) - size.length - 1, batch)
            yield np.stack([source[start : start + size.length + 1] for start in starts])

    for i, tokens in enumerate(strategy.experimental_distribute_dataset(batches())):
        loss = step(tokens)
        if i % 10 == 0 or i == options.steps - 1:
            sys.stdout.write(f"step {i}: loss {float(loss):.3f}\n")


if __name__ == "__main__":
    main()
