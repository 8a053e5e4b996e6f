"""The first epoch of a Keras model whose last batch is partial, under four replicas or by plain Keras.

python -m benchmarks.peers.first_epoch jaxtribute transformer-6
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

BATCH, EXAMPLES, CLASSES = 16, 37, 10


def made(kind: str) -> Any:
    """A model, not compiled."""
    import keras

    layers = keras.layers

    def mlp() -> Any:
        return keras.Sequential([keras.Input((64,)), *(layers.Dense(256, "relu") for _ in range(3)), layers.Dense(10)])

    def conv() -> Any:
        parts: list[Any] = [keras.Input((28, 28, 1))]
        for filters in (16, 32, 64):
            parts += [layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.MaxPooling2D()]
        return keras.Sequential([*parts, layers.Flatten(), layers.Dropout(0.0), layers.Dense(10)])

    def transformer(depth: int) -> Any:
        tokens = keras.Input((32,), dtype="int32")
        x = layers.Embedding(100, 64)(tokens)
        for _ in range(depth):
            x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(4, 16)(x, x)]))
            x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(64)(layers.Dense(256, "gelu")(x))]))
        return keras.Model(tokens, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))

    def recurrent() -> Any:
        parts = [layers.Embedding(100, 32), layers.Bidirectional(layers.LSTM(32, return_sequences=True))]
        return keras.Sequential([keras.Input((32,), dtype="int32"), *parts, layers.GRU(32), layers.Dense(10)])

    def u_net() -> Any:
        def twice(x: Any, filters: int) -> Any:
            for _ in range(2):
                x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
            return x

        image = keras.Input((32, 32, 3))
        down = [twice(image, 8)]
        for filters in (16, 32):
            down.append(twice(layers.MaxPooling2D()(down[-1]), filters))
        x = down.pop()
        for filters in (16, 8):
            x = twice(layers.Concatenate()([layers.Conv2DTranspose(filters, 2, 2)(x), down.pop()]), filters)
        return keras.Model(image, layers.Conv2D(CLASSES, 1)(x))

    name, _, depth = kind.partition("-")
    kinds: dict[str, Callable[[], Any]] = {"mlp": mlp, "conv": conv, "recurrent": recurrent, "u": u_net}
    return transformer(int(depth)) if name == "transformer" else kinds[name]()


def main() -> None:
    """Prints the seconds of processors that the first epoch took, and its loss."""
    contender, kind = sys.argv[1], sys.argv[2]
    import numpy as np

    import jaxtribute as jd

    jd.config.set_logical_cpu_devices(4)
    jd.config.prepare_cpu_backend()  # plain Keras has the library's pool and allocator, too
    import keras

    scope: Any = jd.MirroredStrategy().scope() if contender == "jaxtribute" else contextlib.nullcontext()
    keras.utils.set_random_seed(0)
    with scope:
        model = made(kind)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    rng = np.random.default_rng(0)
    shape, labels = (EXAMPLES, *model.input_shape[1:]), (EXAMPLES, *model.output_shape[1:-1])
    tokens = model.inputs[0].dtype == "int32"
    x = rng.integers(0, 100, shape, np.int32) if tokens else rng.normal(size=shape).astype(np.float32)
    y = rng.integers(0, CLASSES, labels, np.int32)
    busy = time.process_time()
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history
    print(json.dumps({"busy": time.process_time() - busy, "loss": history["loss"][0]}))


if __name__ == "__main__":
    main()
