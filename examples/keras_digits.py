"""Trains a Keras model on handwritten digits with `model.fit`, on one device or on many.

    pip install -e '.[keras,examples]'
    python examples/keras_digits.py                                    one device, then mirrored on four: equal losses
    python examples/keras_digits.py --strategy central-storage --devices 2
    jaxtribute launch --workers 2 --devices-per-worker 2 examples/keras_digits.py --strategy multi-worker

The 1,797 images of 8 x 8 pixels come with scikit-learn. Batches of 50 leave a last one of 47, and four replicas never
get equal parts of either. Where there are not enough accelerators, the devices are logical CPU devices.
"""

import argparse
import os
import sys
from collections.abc import Callable

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np
from sklearn.datasets import load_digits

import jaxtribute as jd

BATCH, TOLERANCE = 50, 1e-4
STRATEGIES: dict[str, Callable[[int], jd.Strategy]] = {
    "one-device": lambda count: jd.OneDeviceStrategy(pick_devices(count)[0]),
    "mirrored": lambda count: jd.MirroredStrategy(pick_devices(count)),
    "central-storage": lambda count: jd.CentralStorageStrategy(pick_devices(count)),
    "fully-sharded": lambda count: jd.FullyShardedStrategy(pick_devices(count)),
    "multi-worker": lambda _: jd.MultiWorkerMirroredStrategy(),
}


def pick_devices(count: int) -> list[jax.Device]:
    """That many accelerators; where there are fewer, logical CPU devices."""
    jd.config.set_logical_cpu_devices(count)
    enough = len(jax.devices()) >= count
    return (jax.devices() if enough else jax.devices("cpu"))[:count]


def train(name: str, count: int, epochs: int) -> float:
    """Trains under a strategy and returns the loss on all images."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)

    strategy = STRATEGIES[name](count)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)],
        )
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(images, labels, batch_size=BATCH, epochs=epochs, verbose=2)
    loss, accuracy = model.evaluate(images, labels, batch_size=BATCH, verbose=0)
    print(f"{name}, {strategy.num_replicas_in_sync} replica(s): loss {loss:.6f}, accuracy {accuracy:.2%}")
    return loss


def main() -> int:
    """Trains under the chosen strategy, or compares two; returns the exit status."""
    parser = argparse.ArgumentParser(description="Train a Keras model on handwritten digits.")
    parser.add_argument("--strategy", choices=STRATEGIES, help="by default one-device, then mirrored")
    parser.add_argument("--devices", type=int, default=4, metavar="N", help="devices to train on (4)")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="passes over the images (3)")
    options = parser.parse_args()
    names = [options.strategy] if options.strategy else ["one-device", "mirrored"]
    # To be compared, one device is of the kind of the many.
    devices = 1 if names == ["one-device"] else options.devices
    losses = [train(name, devices, options.epochs) for name in names]
    difference = abs(losses[-1] - losses[0]) / losses[0]
    if len(losses) > 1:
        print(f"relative difference of the losses {difference:.1e}, allowed {TOLERANCE:.0e}")
    return int(difference > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
