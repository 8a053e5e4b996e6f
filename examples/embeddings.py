"""Learns what words go together, from Python's own documentation strings, with embeddings on two parameter servers.

    python examples/embeddings.py
    python examples/embeddings.py --steps 4000 --workers 3

The table has a row a word and is split over the servers. A step fetches the rows of its words only, and sends the
gradients of these rows only: a few KB, however many words there are.
"""

import argparse
import collections
import importlib
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import jaxtribute as jd

MODULES = (
    "argparse asyncio collections datetime decimal email functools http inspect itertools json logging os pathlib "
)
MODULES += "random re shutil socket statistics string subprocess tarfile threading unittest urllib zipfile"
WIDTH, BATCH, WINDOW, OTHERS = 32, 256, 4, 4


def text() -> list[str]:
    """The words of the documentation strings of some modules."""
    found: list[str] = []
    for name in MODULES.split():
        module = importlib.import_module(name)
        objects = [module, *vars(module).values()]
        methods = [vars(kind).values() for kind in objects if isinstance(kind, type)]
        for documented in [*objects, *(method for group in methods for method in group)]:
            found += re.findall(r"[a-z]{3,}", str(getattr(documented, "__doc__", "") or "").lower())
    return found


def pairs(words: np.ndarray, vocabulary: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Words, and for each one that stands near it, then some that are drawn."""
    random = np.random.default_rng(seed)
    places = random.integers(WINDOW, len(words) - WINDOW, BATCH)
    shifts = random.integers(1, WINDOW + 1, BATCH) * random.choice([-1, 1], BATCH)
    drawn = random.integers(0, vocabulary, (BATCH, OTHERS))
    return words[places], np.concatenate([words[places + shifts][:, None], drawn], axis=1).astype(np.int32)


def main() -> None:
    """Trains, and shows the words that are nearest to some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    console = Console()
    words = text()
    vocabulary = [word for word, count in collections.Counter(words).most_common() if count >= 5]
    number = {word: i for i, word in enumerate(vocabulary)}
    encoded = np.array([number[word] for word in words if word in number], np.int32)
    console.print(f"{len(encoded):,} words of text, {len(vocabulary):,} different ones", highlight=False)

    partitioner = jd.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
    with jd.ParameterServerStrategy({"ps": 2, "worker": options.workers}, partitioner) as strategy:
        coordinator = jd.coordinator.ClusterCoordinator(strategy)
        random = np.random.default_rng(0)
        with strategy.scope():
            first = random.normal(scale=0.3, size=(len(vocabulary), WIDTH)).astype(np.float32)
            table, context = jd.Variable(first, name="words"), jd.Variable(np.zeros_like(first), name="neighbours")
            optimizer = jd.Optimizer(optax.adagrad(1.0), [table, context])

        @jd.function
        def step(middle: jax.Array, others: jax.Array) -> jax.Array:
            def loss() -> jax.Array:
                rows = jd.nn.embedding_lookup(table, middle)
                scores = jnp.einsum("bw,bow->bo", rows, jd.nn.embedding_lookup(context, others))
                near = jnp.zeros_like(scores).at[:, 0].set(1.0)
                return optax.sigmoid_binary_cross_entropy(scores, near).sum() / BATCH

            value, gradients = jd.value_and_grad(loss, [table, context])()
            optimizer.apply_gradients(gradients)
            return value

        start = time.perf_counter()
        losses = [coordinator.schedule(step, pairs(encoded, len(vocabulary), seed)) for seed in range(options.steps)]
        coordinator.join()
        values = coordinator.fetch(losses)
        speed = options.steps / (time.perf_counter() - start)
        few = max(1, options.steps // 10)
        first_loss, last_loss = np.mean(values[:few]), np.mean(values[-few:])
        console.print(f"loss {first_loss:.3f} -> {last_loss:.3f}, {speed:,.0f} steps/s", highlight=False)

        vectors = table.numpy()
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        for word in [word for word in ("file", "string", "thread", "year") if word in number]:
            nearest = np.argsort(-(vectors @ vectors[number[word]]))[1:6]
            console.print(f"  {word:8} {', '.join(vocabulary[i] for i in nearest)}", highlight=False)


if __name__ == "__main__":
    main()
