"""A Keras model trained by Ray's processes, one of which is killed; prints how many steps were applied."""

import os
import signal
import warnings
from typing import Any

import numpy as np

import jaxtribute as jd

keras: Any = __import__("keras")
warnings.filterwarnings("ignore", "__array__ implementation")  # of Keras's variables, in every get_config

X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)


class Scaled(keras.layers.Layer):
    """A layer that only this program knows, and that Keras could not save."""

    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.factor = factor

    def call(self, x: Any) -> Any:
        return self.factor(x)


def dataset_fn(context: jd.InputContext) -> Any:
    def batches() -> Any:
        generator = np.random.default_rng(jd.coordinator.experimental_get_current_worker_index())
        while True:
            rows = generator.integers(0, 64, context.get_per_replica_batch_size(16))
            yield X[rows], Y[rows]

    return batches()


def main() -> None:
    """Trains."""
    killed: list[int] = []
    with jd.ParameterServerStrategy({"ps": 1, "worker": 2}, timeout_s=120) as strategy:
        with strategy.scope():
            layers = [keras.layers.Dense(8, "relu"), Scaled(lambda x: 2 * x), keras.layers.Dense(2)]
            model = keras.Sequential([keras.layers.Input((8,)), *layers])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.1, momentum=0.5), loss, metrics=["accuracy"])

        def kill(epoch: int, logs: Any) -> None:
            del logs
            if epoch == 1:
                killed.append(strategy.process_of("worker", 0))
                os.kill(killed[0], signal.SIGKILL)

        callback = keras.callbacks.LambdaCallback(on_epoch_begin=kill)
        data = jd.experimental.DatasetCreator(dataset_fn)
        history = model.fit(data, steps_per_epoch=20, epochs=3, callbacks=[callback], verbose=0).history
        assert history["loss"][-1] < history["loss"][0], history
        assert model.evaluate(data, steps=4, verbose=0, return_dict=True)["accuracy"] > 0.6
        assert model.predict(X[:3], verbose=0).shape == (3, 2)
        print(f"steps {int(model.optimizer.iterations.numpy())}, killed {len(killed)}")


if __name__ == "__main__":
    main()
