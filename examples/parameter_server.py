"""Trains a classifier on handwritten digits with a parameter server and two workers that do not wait for each other.

    python examples/parameter_server.py                          one server, two workers: processes of this machine
    python examples/parameter_server.py --servers 2 --workers 3
    python examples/parameter_server.py --kill                   a worker is killed half-way; training goes on

The variables are on the server. Each worker fetches them, computes the gradients of a batch of its own, and sends these
to the server, which updates the variables in the order in which gradients come.
"""

import argparse
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxtribute as jd

BATCH = 64


class Classifier:
    """A perceptron of 64, 256 and 10 units; its variables go where the strategy in force puts them."""

    def __init__(self) -> None:
        random = np.random.default_rng(seed=0)

        def dense(name: str, inputs: int, units: int) -> tuple[jd.Variable, jd.Variable]:
            kernel = random.normal(scale=(2 / inputs) ** 0.5, size=(inputs, units))
            return (
                jd.Variable(kernel, name=f"{name}/kernel", dtype=jnp.float32),
                jd.Variable(np.zeros(units), name=f"{name}/bias", dtype=jnp.float32),
            )

        self.layers = [dense("hidden", 64, 256), dense("output", 256, 10)]
        self.variables = [variable for layer in self.layers for variable in layer]

    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns logits of shape (images, 10) for pixels of shape (images, 64)."""
        (kernel, bias), (last_kernel, last_bias) = self.layers
        return jax.nn.silu(images @ kernel + bias) @ last_kernel + last_bias


def digits() -> list[np.ndarray]:
    """Images to train on and to test with, of mean 0 and deviation 1, then their labels."""
    images, labels = load_digits(return_X_y=True)
    images = ((images - images.mean()) / images.std()).astype(np.float32)
    parts = train_test_split(images, labels.astype(np.int32), test_size=0.2, random_state=42, stratify=labels)
    return [np.asarray(part) for part in parts]


def main() -> None:
    """Trains, and prints how it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--kill", action="store_true", help="kill a worker half-way")
    options = parser.parse_args()
    console = Console()
    train_images, test_images, train_labels, test_labels = digits()
    steps = len(train_images) // BATCH

    with jd.ParameterServerStrategy({"ps": options.servers, "worker": options.workers}) as strategy:
        coordinator = jd.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            model = Classifier()
            optimizer = jd.Optimizer(optax.sgd(0.05, momentum=0.9), model.variables)
        console.print(f"{strategy} and {len(model.variables) + len(optimizer.variables)} variables on servers")

        def batches() -> jd.DistributedDataset:
            seed = jd.coordinator.experimental_get_current_worker_index() or 0
            examples = strategy.experimental_make_numpy_dataset((train_images, train_labels))
            dataset = examples.shuffle(seed=seed).repeat().batch(BATCH)
            return strategy.distribute_datasets_from_function(lambda _: dataset)

        @jd.function
        def step(iterator: jd.DistributedIterator) -> jax.Array:
            def update(images: jax.Array, labels: jax.Array) -> jax.Array:
                def loss() -> jax.Array:
                    losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
                    return jd.nn.compute_average_loss(losses, global_batch_size=BATCH)

                value, gradients = jd.value_and_grad(loss, model.variables)()
                optimizer.apply_gradients(gradients)
                return value

            return strategy.run(update, args=next(iterator))

        @jd.function
        def hits(images: jax.Array, labels: jax.Array) -> jax.Array:
            return (model(images).argmax(axis=-1) == labels).sum()

        iterator = iter(coordinator.create_per_worker_dataset(batches))
        console.print("\n  [bold]epoch     loss   accuracy      steps/s[/]   (the first epoch compiles)")
        for epoch in range(options.epochs):
            start = time.perf_counter()
            losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]
            if options.kill and epoch == options.epochs // 2:
                os.kill(strategy.process_of("worker", 0), signal.SIGKILL)
                console.print("  a worker has been killed")
            coordinator.join()
            speed = steps / (time.perf_counter() - start)
            right = coordinator.schedule(hits, args=(test_images, test_labels)).fetch()
            loss = np.mean(coordinator.fetch(losses))
            accuracy = right / len(test_labels)
            console.print(f"  {epoch + 1:5} {loss:8.4f} {accuracy:10.2%} {speed:12,.0f}", highlight=False)


if __name__ == "__main__":
    main()
