"""Trains a classifier on handwritten digits: one training step, on one device or on many.

    python examples/digits.py                                    one device, then mirrored on four: equal losses
    python examples/digits.py --strategy mirrored --devices 2
    python examples/digits.py --strategy one-device
    python examples/digits.py --strategy default
    jaxtribute launch --workers 2 --devices-per-worker 2 examples/digits.py --strategy multi-worker

The 1,797 images of 8 x 8 pixels come with scikit-learn. Where there are not enough accelerators, the devices are
logical CPU devices. They share the machine's cores, so they show that the result is the same, not that it is faster.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxtribute as jd

BATCH = 64
TOLERANCE = 1e-4
STRATEGIES: dict[str, Callable[[int], jd.Strategy]] = {
    "one-device": lambda count: jd.OneDeviceStrategy(pick_devices(count)[0]),
    "mirrored": lambda count: jd.MirroredStrategy(pick_devices(count)),
    "default": lambda _: jd.get_strategy(),
    "multi-worker": lambda _: jd.MultiWorkerMirroredStrategy(),
}

Arrays = tuple[Any, Any]
Sums = dict[str, jax.Array]
Step = Callable[[Arrays], Sums]


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

        self.hidden = dense("hidden", 64, 256)
        self.output = dense("output", 256, 10)
        self.variables = [*self.hidden, *self.output]

    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns logits of shape (images, 10) for pixels of shape (images, 64)."""
        kernel, bias = self.hidden
        units = jax.nn.silu(images @ kernel + bias)
        kernel, bias = self.output
        return units @ kernel + bias


@dataclass
class Training:
    """A model with its compiled steps; each takes a batch and gives the sums over all of its images."""

    step: Step
    test: Step
    variables: list[jd.Variable]


def build(strategy: jd.Strategy, epochs: int, batches: int) -> Training:
    """Makes the model and its steps. Nothing in here depends on which strategy it is."""
    with strategy.scope():
        model = Classifier()
        rate = optax.cosine_decay_schedule(0.1, epochs * batches)
        optimizer = jd.Optimizer(optax.sgd(rate, momentum=0.9), model.variables)

    def measure(images: jax.Array, labels: jax.Array) -> Sums:
        logits = model(images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        hits = (logits.argmax(axis=-1) == labels).astype(losses.dtype)
        return {"losses": losses, "hits": hits, "images": jnp.ones_like(losses)}

    def update(images: jax.Array, labels: jax.Array) -> Sums:
        def loss() -> tuple[jax.Array, Sums]:
            measured = measure(images, labels)
            return jd.nn.compute_average_loss(measured["losses"], global_batch_size=BATCH), measured

        (_, measured), gradients = jd.value_and_grad(loss, model.variables, has_aux=True)()
        optimizer.apply_gradients(gradients)
        return measured

    @jd.function
    def step(batch: Arrays) -> Sums:
        return strategy.reduce("SUM", strategy.run(update, args=batch), axis=0)

    @jd.function
    def test(batch: Arrays) -> Sums:
        return strategy.reduce("SUM", strategy.run(measure, args=batch), axis=0)

    return Training(step, test, [*model.variables, *optimizer.variables])


@dataclass
class Result:
    """What a training run ended with: mean loss and accuracy over the test images, and images a second."""

    name: str
    loss: float
    accuracy: float
    speeds: list[float] = field(default_factory=list[float])


def train(name: str, devices: int, epochs: int, console: Console) -> Result:
    """Trains a model under one strategy and shows how it goes."""
    strategy = STRATEGIES[name](devices)
    console.quiet = jax.process_index() > 0  # of several workers, the first one reports
    train_images, test_images, train_labels, test_labels = digits()
    batches = -(-len(train_images) // BATCH)
    training = build(strategy, epochs, batches)
    show_variables(training.variables, strategy, console)

    examples = strategy.experimental_make_numpy_dataset((train_images, train_labels))
    speeds: list[float] = []
    columns = TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console.print("\n  [bold]epoch     loss   accuracy     images/s[/]   (the first epoch compiles)")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("training", total=epochs * batches)
        for epoch in range(epochs):
            start, sums = time.perf_counter(), list[Sums]()
            # The last batch of an epoch has 29 images: 8, 8, 8 and 5 of them on four replicas.
            for batch in strategy.experimental_distribute_dataset(examples.shuffle(seed=epoch).batch(BATCH)):
                sums.append(training.step(batch))
                progress.advance(bar)
            loss, accuracy = means(sums)
            speeds.append(len(train_images) / (time.perf_counter() - start))
            console.print(f"  {epoch + 1:5} {loss:8.4f} {accuracy:10.2%} {speeds[-1]:12,.0f}", highlight=False)

    examples = strategy.experimental_make_numpy_dataset((test_images, test_labels))
    test_batches = strategy.experimental_distribute_dataset(examples.batch(BATCH))
    return Result(name, *means([training.test(batch) for batch in test_batches]), speeds)


def pick_devices(count: int) -> list[jax.Device]:
    """That many accelerators; where there are fewer, logical CPU devices."""
    enough = len(jax.devices()) >= count
    return (jax.devices() if enough else jax.devices("cpu"))[:count]


def means(sums: list[Sums]) -> tuple[float, float]:
    """Mean loss and accuracy over all images, however they were batched."""
    total = {name: float(np.sum([batch[name] for batch in sums])) for name in sums[0]}
    return total["losses"] / total["images"], total["hits"] / total["images"]


def digits() -> list[np.ndarray]:
    """Images to train on and to test with, of mean 0 and deviation 1, then their labels."""
    images, labels = load_digits(return_X_y=True)
    images = ((images - images.mean()) / images.std()).astype(np.float32)
    parts = train_test_split(images, labels.astype(np.int32), test_size=0.2, random_state=42, stratify=labels)
    return [np.asarray(part) for part in parts]


def show_variables(variables: list[jd.Variable], strategy: jd.Strategy, console: Console) -> None:
    """Prints where each variable lives."""
    console.print(f"\n[bold]{type(strategy).__name__}[/], {strategy.num_replicas_in_sync} replica(s)")
    table = Table(box=None, padding=(0, 2))
    table.add_column("variable", no_wrap=True)
    table.add_column("shape", no_wrap=True)
    table.add_column("a copy on")
    for variable in variables:
        homes = [copy.device for copy in variable.values]
        shape = " x ".join(map(str, variable.shape)) or "scalar"
        table.add_row(variable.name, shape, " ".join(f"{home.platform.upper()}:{home.id}" for home in homes))
    console.print(table)


def main() -> int:
    """Trains under the chosen strategy, or compares two; returns the exit status."""
    parser = argparse.ArgumentParser(description="Train a classifier on handwritten digits.")
    parser.add_argument("--strategy", choices=STRATEGIES, help="by default one-device, then mirrored")
    parser.add_argument("--devices", type=int, default=4, metavar="N", help="devices to mirror on (4)")
    parser.add_argument("--epochs", type=int, default=15, metavar="N", help="passes over the training images (15)")
    options = parser.parse_args()

    console = Console()
    names = [options.strategy] if options.strategy else ["one-device", "mirrored"]
    if "multi-worker" not in names:
        jd.config.set_logical_cpu_devices(options.devices)
    # To be compared, one device is of the kind of the many.
    used = 1 if names == ["one-device"] else options.devices
    results = [train(name, used, options.epochs, console) for name in names]

    table = Table(title="\nOn the test images", title_justify="left", box=None, padding=(0, 2))
    for title in ("strategy", "loss", "accuracy", "images/s in training (median)"):
        table.add_column(title, justify="left" if title == "strategy" else "right")
    for result in results:
        speed = float(np.median(result.speeds))
        table.add_row(result.name, f"{result.loss:.6f}", f"{result.accuracy:.2%}", f"{speed:,.0f}")
    console.print(table)
    if len(results) == 1:
        return 0
    first, second = results
    difference = abs(first.loss - second.loss) / first.loss
    same = difference < TOLERANCE
    verdict = "[green]Both end with the same loss" if same else "[red]The losses differ"
    console.print(f"\n{verdict}[/]: relative difference {difference:.1e}, allowed {TOLERANCE:.0e}", highlight=False)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
