"""What the examples for single libraries share: the digits, the strategies, and a training that can be interrupted.

An example says what its model is and what one step does; see `plain_jax.py`, `flax_nnx.py`, `equinox_digits.py` and
`haiku_style.py`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxtribute as jd

BATCH = 64
TOLERANCE = 1e-4

Arrays = tuple[Any, Any]
Sums = dict[str, Any]


class Training(Protocol):
    """What an example makes under a strategy."""

    state: Any
    """What a checkpoint keeps: variables, an optimizer, or a nest of arrays that each step replaces."""
    step: Any
    """Trains on a batch; returns sums over all of its images."""
    test: Any
    """Measures a batch; returns sums over all of its images."""


def tpu(devices: list[jax.Device]) -> jd.Strategy:
    """TPUs; where there are none, these devices stand in for them."""
    if devices[0].platform == "tpu":
        return jd.TPUStrategy(experimental_device_assignment=devices)
    stand_ins = {f"TPU:{i}": f"{device.platform.upper()}:{device.id}" for i, device in enumerate(devices)}
    with jd.config.alias_devices(stand_ins):
        return jd.TPUStrategy(experimental_device_assignment=list(stand_ins))


STRATEGIES: dict[str, Callable[[list[jax.Device]], jd.Strategy]] = {
    "default": lambda _: jd.get_strategy(),
    "one-device": lambda devices: jd.OneDeviceStrategy(devices[0]),
    "mirrored": jd.MirroredStrategy,
    "fully-sharded": lambda devices: jd.FullyShardedStrategy(devices, min_bytes=1024),
    "central-storage": jd.CentralStorageStrategy,
    "tpu": tpu,
    "multi-worker": lambda _: jd.MultiWorkerMirroredStrategy(),
}


def measured(logits: Any, labels: Any) -> Sums:
    """Loss, hit and presence of each image, from logits of shape (images, 10) and labels of shape (images,)."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    hits = (logits.argmax(axis=-1) == labels).astype(losses.dtype)
    return {"losses": losses, "hits": hits, "images": jnp.ones_like(losses)}


def main(description: str | None, make: Callable[[jd.Strategy], Training]) -> int:
    """Trains what `make` makes under the strategies of the command line; returns the exit status.

    With several strategies their losses must agree.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=STRATEGIES, nargs="+", default=["mirrored"], help="one or more")
    parser.add_argument("--devices", type=int, default=2, metavar="N", help="how many devices (2)")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="passes over the training images (5)")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="save each epoch there, and go on from there")
    options = parser.parse_args()
    count = 1 if options.strategy == ["one-device"] else options.devices
    # The devices of a cluster's workers are what the cluster says.
    devices = [] if "multi-worker" in options.strategy else pick_devices(count)
    console = Console()
    losses = [train(name, STRATEGIES[name](devices), make, options, console) for name in options.strategy]
    apart = max(losses) - min(losses)
    if len(losses) > 1:
        console.print(f"the losses differ by {apart:.1e}", highlight=False)
    return 0 if apart <= TOLERANCE * max(losses) else 1


def train(
    name: str,
    strategy: jd.Strategy,
    make: Callable[[jd.Strategy], Training],
    options: argparse.Namespace,
    console: Console,
) -> float:
    """Trains under one strategy; returns the mean loss over the test images."""
    console.quiet = jax.process_index() > 0  # of several workers, the first one reports
    console.print(f"[bold]{type(strategy).__name__}[/], {strategy.num_replicas_in_sync} replica(s)", highlight=False)
    training = make(strategy)
    checkpoint = jd.Checkpoint(state=training.state, epoch=0)
    manager = None
    if options.checkpoint is not None:
        manager = jd.CheckpointManager(checkpoint, options.checkpoint / name, max_to_keep=1, block=True)
        if manager.restore_or_initialize():
            training.state = checkpoint.state
            console.print(f"  goes on after epoch {checkpoint.epoch}", highlight=False)
    train_images, test_images, train_labels, test_labels = digits()
    examples = strategy.experimental_make_numpy_dataset((train_images, train_labels))
    for epoch in range(int(checkpoint.epoch), options.epochs):
        # The last batch of an epoch has 29 images: 15 and 14 of them on two replicas.
        batches = strategy.experimental_distribute_dataset(examples.shuffle(seed=epoch).batch(BATCH))
        loss, accuracy = means([training.step(batch) for batch in batches])
        console.print(f"  epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy:.2%}", highlight=False)
        if manager is not None:
            checkpoint.state, checkpoint.epoch = training.state, epoch + 1
            manager.save()
    examples = strategy.experimental_make_numpy_dataset((test_images, test_labels))
    tests = strategy.experimental_distribute_dataset(examples.batch(BATCH))
    loss, accuracy = means([training.test(batch) for batch in tests])
    console.print(f"  on the test images: loss {loss:.6f}, accuracy {accuracy:.2%}", highlight=False)
    return loss


def pick_devices(count: int) -> list[jax.Device]:
    """That many accelerators; where there are fewer, logical CPU devices."""
    jd.config.set_logical_cpu_devices(count)
    enough = len(jax.devices()) >= count
    return (jax.devices() if enough else jax.devices("cpu"))[:count]


def means(sums: list[Sums]) -> tuple[float, float]:
    """Mean loss and accuracy over all images, however they were batched."""
    total = {name: float(np.sum([np.asarray(batch[name]) for batch in sums])) for name in sums[0]}
    return total["losses"] / total["images"], total["hits"] / total["images"]


def digits() -> list[Any]:
    """Images to train on and to test with, of mean 0 and deviation 1, then their labels."""
    images, labels = load_digits(return_X_y=True)
    images = ((images - images.mean()) / images.std()).astype(np.float32)
    return train_test_split(images, labels.astype(np.int32), test_size=0.2, random_state=42, stratify=labels)
