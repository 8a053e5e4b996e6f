"""Trains Keras models on islands that meet after each 3 steps, or computes the same by hand with Keras alone.

    python keras_apart.py KIND FOLDER            as an island: writes `FOLDER/told-RANK.json`
    python keras_apart.py KIND FOLDER DEVICES    by hand, for islands of so many devices: writes `FOLDER/alone.json`

What is written has the histories of losses and metrics, an evaluation, predictions and weights; KIND is one of `KINDS`.
The last batch of an epoch has one row, so that the second island has none.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import optax

import jaxtribute as jd

EXAMPLES, BATCH, EPOCHS, EVERY = 49, 8, 3, 3
OUTER = optax.sgd(0.7, momentum=0.9, nesterov=True)
QUIET: Any = 0


class Own(keras.Model):
    """A model with a step in TensorFlow's form."""

    def train_step(self, data: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, y = data

        def loss() -> Any:
            outputs = self(x, training=True)
            return self.compute_loss(x, y, outputs), outputs

        (value, outputs), gradients = jd.value_and_grad(loss, self.trainable_variables, has_aux=True)()
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.metrics[0].update_state(value, sample_weight=x.shape[0])
        return self.compute_metrics(x, y, outputs)


def model_of(kind: str, synchronized: bool = True) -> Any:
    """A model with statistics of batches, with a layer that needs a row, and with an average of its weights."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(8, activation="tanh")(inputs)
    frozen = keras.layers.Dense(8, name="frozen")
    outputs = keras.layers.Flatten()(keras.layers.BatchNormalization(synchronized=synchronized)(frozen(outputs)))
    outputs = keras.layers.Dense(1)(outputs)
    frozen.trainable = False
    model: Any = (Own if kind == "step" else keras.Model)(inputs, outputs)
    adam = keras.optimizers.Adam(1e-2, use_ema=kind == "average", ema_momentum=0.8)
    model.compile(optimizer=adam, loss="mse", metrics=["mae"])
    return model


def data() -> tuple[Any, Any]:
    """All examples."""
    x = np.random.default_rng(3).normal(size=(EXAMPLES, 4)).astype(np.float32)
    return x, np.sin(x.sum(1, keepdims=True))


def batches() -> list[tuple[Any, Any]]:
    """Those of an epoch."""
    x, y = data()
    return [(x[start : start + BATCH], y[start : start + BATCH]) for start in range(0, EXAMPLES, BATCH)]


def told(model: Any, history: Any) -> dict[str, Any]:
    """What is compared."""
    x, _ = data()
    with contextlib.redirect_stdout(sys.stderr):
        predicted = model.predict(x, batch_size=BATCH, verbose=QUIET)
    weights = [np.asarray(weight).ravel().tolist() for weight in model.get_weights()]
    return {"history": history, "predicted": predicted.ravel().tolist(), "weights": weights}


def fitted(strategy: Any, kind: str) -> dict[str, Any]:
    """A model that is trained by `fit`."""
    x, y = data()
    with strategy.scope():
        model = model_of(kind)
    history = model.fit(
        x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=QUIET, validation_data=(x, y)
    ).history
    evaluated = np.ravel(model.evaluate(x, y, batch_size=BATCH, verbose=QUIET))
    return told(model, history | {"evaluated": evaluated.tolist()})


def looped(strategy: Any) -> dict[str, Any]:
    """A model that is trained by a loop of one's own."""
    with strategy.scope():
        model = model_of("loop")
        model.optimizer.build(model.trainable_variables)

    def replica(x: Any, y: Any) -> Any:
        loss = lambda: keras.ops.mean((model(x, training=True) - y) ** 2)  # noqa: E731
        _, gradients = jd.value_and_grad(loss, model.trainable_variables)()
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = jd.function(lambda batch: strategy.run(replica, batch))
    for _ in range(EPOCHS):
        for batch in strategy.experimental_distribute_dataset(batches()):
            step(batch)
        strategy.synchronize()
    return told(model, {})


class ByHand:
    """Two islands, as models of Keras alone.

    Args:
      kind: of the models.
      devices: of each island.
    """

    def __init__(self, kind: str, devices: int) -> None:
        of_keras = "fit" if kind == "step" else kind
        self.models = [model_of(of_keras, synchronized=False) for _ in range(2)]
        self.devices, self.kind = devices, kind
        self.common: Any = [np.asarray(v) for v in self._learning(self.models[0])]
        self.outer: Any = OUTER.init(self.common)
        self.examples = [0, 0]

    @staticmethod
    def _learning(model: Any) -> list[Any]:
        return [variable.value for variable in model.trainable_variables]

    @staticmethod
    def _means(model: Any) -> list[Any]:
        """The variables that become means: statistics, and averages of weights."""
        averages = [v for v in model.optimizer.variables if v.name.endswith("_average")]
        return [*[v for v in model.non_trainable_variables if "moving" in v.path], *averages]

    def meet(self) -> None:
        if any(self.examples):
            shares = [count / sum(self.examples) for count in self.examples]
            news = [self._learning(model) for model in self.models]
            change = [
                sum(share * (old - np.asarray(new)) for share, new in zip(shares, each, strict=True))
                for old, *each in zip(self.common, *news, strict=True)
            ]
            updates, self.outer = OUTER.update(change, self.outer)
            applied: Any = optax.apply_updates(self.common, updates)
            self.common = [np.asarray(new) for new in applied]
            for group in zip(*map(self._means, self.models), strict=True):
                mean = sum(share * np.asarray(one) for share, one in zip(shares, group, strict=True))
                for variable in group:
                    variable.assign(mean)
            for model in self.models:
                model.optimizer.iterations.assign(np.asarray(self.models[0].optimizer.iterations))
                for variable, value in zip(model.trainable_variables, self.common, strict=True):
                    variable.assign(value)
        self.examples = [0, 0]

    def _share(self, array: Any) -> list[Any]:
        sizes = [len(part) for part in np.array_split(np.arange(len(array)), 2 * self.devices)]
        middle = sum(sizes[: self.devices])
        return [array[:middle], array[middle:]]

    def epoch(self, call: str) -> list[float]:
        sums, rows = np.zeros(2), 0
        for number, (x, y) in enumerate(batches(), 1):
            for island, (own_x, own_y) in enumerate(zip(self._share(x), self._share(y), strict=True)):
                if len(own_x):
                    sums, rows = (
                        sums + len(own_x) * np.asarray(getattr(self.models[island], call)(own_x, own_y)),
                        rows + len(own_x),
                    )
                    self.examples[island] += len(own_x) if call == "train_on_batch" else 0
            if call == "train_on_batch" and number % EVERY == 0:
                self.meet()
        self.meet()
        return (sums / rows).tolist()

    def run(self) -> dict[str, Any]:
        names = ["loss", "mae"]
        history: dict[str, list[Any]] = {}
        for _ in range(EPOCHS):
            for prefix, call in (("", "train_on_batch"), ("val_", "test_on_batch")):
                for name, value in zip(names, self.epoch(call), strict=True):
                    history.setdefault(prefix + name, []).append(value)
        for model in self.models:
            model.optimizer.finalize_variable_values(model.trainable_variables)
        history["evaluated"] = self.epoch("test_on_batch")
        return told(self.models[0], {} if self.kind == "loop" else history)


KINDS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda strategy: fitted(strategy, "fit"),
    "average": lambda strategy: fitted(strategy, "average"),
    "step": lambda strategy: fitted(strategy, "step"),
    "loop": looped,
}


def main() -> None:
    kind, folder, *devices = sys.argv[1:]
    if devices:
        # A step of the model's own in TensorFlow's form computes what Keras does itself.
        found = ByHand(kind, int(devices[0])).run()
        (Path(folder) / "alone.json").write_text(json.dumps(found))
        return
    names: Sequence[Any] = jax.devices()
    strategy: Any = jd.experimental.ElasticStrategy(
        jd.MirroredStrategy(names), sync_every=EVERY, outer_optimizer=OUTER, timeout_s=100
    )
    (Path(folder) / f"told-{strategy.island}.json").write_text(json.dumps(KINDS[kind](strategy)))


if __name__ == "__main__":
    main()
