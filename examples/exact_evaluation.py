"""Evaluates a classifier on a dataset whose size no batch divides, exactly, on any number of devices.

    python examples/exact_evaluation.py                 one to four devices, batches of 64 and of 100
    python examples/exact_evaluation.py --batch 7

The 1,797 handwritten digits come with scikit-learn. The last batch is a partial one: its images are spread over the
devices as far as they go, and a device without any adds nothing to the sums. The last column is what comes out if the
means of the devices and batches are averaged instead.
"""

import argparse
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import jaxtribute as jd

DEVICES = (1, 2, 3, 4)

Arrays = tuple[Any, Any]


def digits() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The images as 1,797 vectors of 64 numbers from 0 to 1, and their labels."""
    found: Any = load_digits()
    return (found.data / 16).astype(np.float32), found.target.astype(np.int32)


def centres(images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> jax.Array:
    """A classifier that needs no training: the mean image of each label, of shape (10, 64)."""
    return jnp.asarray(np.stack([images[labels == label].mean(axis=0) for label in range(10)]))


def losses(classifier: jax.Array, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss of each image, and whether it is recognised; both of shape (images,)."""
    distances = ((images[:, None, :] - classifier[None, :, :]) ** 2).sum(axis=-1)
    log_probabilities = jax.nn.log_softmax(-distances, axis=-1)
    found = jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
    return -found, jnp.argmin(distances, axis=-1).astype(jnp.int32) == labels


def evaluate(devices: int, batch: int, data: Arrays, classifier: jax.Array) -> tuple[float, float, float]:
    """Loss and accuracy over all images on some devices, and the loss as the average of averages."""
    strategy = jd.MirroredStrategy([f"cpu:{number}" for number in range(devices)])
    dataset = strategy.experimental_make_numpy_dataset(data).shuffle(0).batch(batch)

    def sums(element: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
        loss, right = losses(classifier, *element)
        return loss.sum(), right.sum(), jnp.full((), len(loss))

    @jd.function
    def step(element: Arrays) -> Any:
        parts = strategy.run(sums, args=(element,))
        return parts, strategy.reduce(jd.ReduceOp.SUM, parts, axis=None)

    loss, right, images, means = 0.0, 0, 0, list[float]()
    for element in strategy.experimental_distribute_dataset(dataset):
        parts, (loss_sum, right_sum, count) = step(element)
        loss, right, images = loss + float(loss_sum), right + int(right_sum), images + int(count)
        local = [map(float, strategy.experimental_local_results(part)) for part in (parts[0], parts[2])]
        means.append(float(np.mean([total / number if number else 0.0 for total, number in zip(*local, strict=True)])))
    assert images == len(data[1]), f"{images} images were evaluated"
    return loss / images, right / images, float(np.mean(means))


def main() -> int:
    """Evaluates on several numbers of devices and compares. Returns 0 if all agree."""
    parser = argparse.ArgumentParser(description="Exact evaluation over batches that nothing divides.")
    parser.add_argument("--batch", type=int, action="append", metavar="N", help="batch size; may be given again")
    sizes: list[int] = parser.parse_args().batch or [64, 100]
    jd.config.set_logical_cpu_devices(max(DEVICES))
    data = digits()
    classifier = centres(*data)
    loss, right = losses(classifier, jnp.asarray(data[0]), jnp.asarray(data[1]))
    exact = float(np.asarray(loss, np.float64).mean()), float(np.asarray(right).mean())

    table = Table("devices", "batch", "last batch", "loss", "accuracy", "average of averages")
    table.add_row("all images at once", "", "", f"{exact[0]:.7f}", f"{exact[1]:.5f}", "")
    worst = 0.0
    for batch in sizes:
        for devices in DEVICES:
            found = evaluate(devices, batch, data, classifier)
            worst = max(worst, abs(found[0] / exact[0] - 1), abs(found[1] - exact[1]))
            rest = len(data[1]) % batch
            table.add_row(str(devices), str(batch), str(rest), f"{found[0]:.7f}", f"{found[1]:.5f}", f"{found[2]:.7f}")
    console = Console(width=100)
    console.print(table)
    agree = worst < len(data[1]) * np.finfo(np.float32).eps
    console.print(f"Largest relative difference: {worst:.1e}: " + ("equal." if agree else "[red]not equal.[/red]"))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
