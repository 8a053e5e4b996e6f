"""Trains a Keras model by `fit` on islands that may be killed at any moment.

    python elastic_keras.py FOLDER EPOCHS PACE

Each island tells in `FOLDER/island-RANK` its process and each batch that it has finished, and the number of islands; at
its end it writes what `fit` has returned, and what `evaluate` says, to `FOLDER/history-RANK.json`. After each batch it
rests for PACE seconds. Without PACE, Keras trains alone, and writes `FOLDER/alone.json`.

With VIRTUAL in the environment islands have so many virtual replicas, the model has layers that draw random numbers and
that take statistics of a batch, and alone it trains on one island.

With SYNC_EVERY islands train alone, and meet after so many steps; OVERLAP of these changes travel.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import jaxtribute as jd

EXAMPLES, BATCH = 100, 8
"""The last batch of an epoch is smaller, and islands do not divide it."""
APART: Any = {
    "sync_every": int(os.environ.get("SYNC_EVERY", "0")),
    "overlap_steps": int(os.environ.get("OVERLAP", "0")),
}
VIRTUAL = int(os.environ.get("VIRTUAL", "0")) or None


SAVED = "last.keras"


def trained(
    strategy: jd.Strategy | None, epochs: int, folder: Path, *callbacks: keras.callbacks.Callback
) -> dict[str, Any]:
    """What `fit` and `evaluate` have returned (of Keras alone: no strategy), and whether the saved file is right."""
    keras.utils.set_random_seed(0)
    chance = np.random.default_rng(3)
    x = chance.normal(size=(EXAMPLES, 4)).astype(np.float32)
    y = np.sin(x.sum(1, keepdims=True))
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        more = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)] if VIRTUAL else []
        hidden = keras.layers.Dense(16, activation="tanh")
        model = keras.Sequential([keras.Input((4,)), hidden, *more, keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse", metrics=["mae"])
    quiet: Any = 0
    saving = keras.callbacks.ModelCheckpoint(folder / SAVED)
    both = [saving, *callbacks]
    history = model.fit(
        x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=quiet, validation_data=(x, y), callbacks=both
    )
    loaded: Any = keras.models.load_model(folder / SAVED)
    saved = list(map(np.array_equal, loaded.get_weights(), model.get_weights()))
    evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=quiet)
    return history.history | {"evaluated": evaluated, "saved": all(saved)}


class Telling(keras.callbacks.Callback):
    """Tells each batch that an island has finished, and rests."""

    def __init__(self, folder: Path, strategy: jd.experimental.ElasticStrategy, pace_s: float) -> None:
        super().__init__()
        self._strategy, self._pace_s, self._count = strategy, pace_s, 0
        self._file = (folder / f"island-{strategy.island}").open("a", buffering=1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        islands: Any = self._strategy.extended
        if getattr(islands, "islands_mesh", islands.mesh).islands.newcomer is None:
            count = len(self._strategy.islands)
            self._file.write(f"{os.getpid()} {self._count} {time.time()} {count}\n")
            time.sleep(self._pace_s)
        self._count += 1


def main() -> None:
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) == 3:
        alone = jd.experimental.ElasticStrategy(virtual_replicas=VIRTUAL) if VIRTUAL else None
        (folder / "alone.json").write_text(json.dumps(trained(alone, epochs, folder)))
        return
    pace_s = float(sys.argv[3])
    apart = APART if APART["sync_every"] else {}
    strategy = jd.experimental.ElasticStrategy(timeout_s=100, virtual_replicas=VIRTUAL, **apart)
    history = trained(strategy, epochs, folder, Telling(folder, strategy, pace_s))
    (folder / f"history-{strategy.island}.json").write_text(json.dumps([history, strategy.islands]))


if __name__ == "__main__":
    main()
